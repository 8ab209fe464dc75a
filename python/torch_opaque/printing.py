"""repr() of an opaque tensor: its values are computed once, copied to the CPU once, and formatted there.

PyTorch's own path looks at a tensor with dozens of small ops, each of which would be recorded and
run. Only the part that prints the numbers is replaced; device, dtype, requires_grad and grad_fn are
written by PyTorch from the tensor itself.
"""

import torch
from torch import _tensor_str

from . import _C


def register() -> None:
    """Wraps torch._tensor_str._tensor_str, which formats the numbers."""
    format_numbers = _tensor_str._tensor_str
    no_dispatch = torch.Tensor.__torch_dispatch__

    def _tensor_str_opaque(self, indent):
        # A subclass with its own dispatch (FakeTensor, ...) has no values of ours.
        if self.device.type == "opaque" and type(self).__torch_dispatch__ is no_dispatch:
            self = self.detach()
            _C.materialize([self], "print")
            self = self.cpu()
        return format_numbers(self, indent)

    _tensor_str._tensor_str = _tensor_str_opaque
