"""torch.distributed with opaque tensors: any backend that works on CPU tensors works on theirs.

The kernels of the collectives (registration/collectives.cpp) hand the device's host memory to the
backend a process group has for device "opaque". Here PyTorch learns that gloo is such a backend, so
that init_process_group("gloo") covers the device.
"""

import sys

import torch.distributed

from .imports import after_import


def _linear_backward(op, args, kwargs):
    """aten::linear is no composition on this device, and DTensor knows how to shard it, but not its gradient."""
    x, gradient, weight, wanted = args
    rows, columns = gradient.reshape(-1, gradient.shape[-1]), x.reshape(-1, x.shape[-1])
    return (
        gradient @ weight if wanted[0] else None,
        rows.t() @ columns if wanted[1] else None,
        rows.sum(0) if wanted[2] else None,
    )


def _add_to(dispatcher) -> None:
    dispatcher._custom_op_handlers[torch.ops.aten.linear_backward.default] = _linear_backward


def _teach(dispatch) -> None:
    make = dispatch.OpDispatcher.__init__

    def __init__(self):
        make(self)
        _add_to(self)

    dispatch.OpDispatcher.__init__ = __init__


def _with_cpu(make_config):
    """BackendConfig.__init__, for which no backend given means the accelerator's. Ours is there
    whether or not a program uses it, so the CPU keeps what it has without the package."""

    def __init__(self, backend):
        make_config(self, backend)
        if str(backend) == "undefined" and "opaque" in self.device_backend_map:
            gloo = self.device_backend_map["opaque"]
            self.device_backend_map = {"cpu": gloo, "opaque": gloo}

    return __init__


def register() -> None:
    """Makes gloo the backend of the device, where torch was built with it."""
    if not torch.distributed.is_available():
        return
    from torch.distributed.distributed_c10d import Backend, BackendConfig

    Backend.default_device_backend_map["opaque"] = Backend.GLOO
    Backend.backend_capability[Backend.GLOO].append("opaque")
    BackendConfig.__init__ = _with_cpu(BackendConfig.__init__)
    tensor = "torch.distributed.tensor"
    # Where import torch did not import this package, and something else came before it, there is a dispatcher.
    if f"{tensor}._api" in sys.modules:
        _add_to(sys.modules[f"{tensor}._api"].DTensor._op_dispatcher)
    after_import(f"{tensor}._dispatch", _teach)
