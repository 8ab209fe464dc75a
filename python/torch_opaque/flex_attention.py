"""torch.nn.attention.flex_attention on the device.

PyTorch has a list of devices that may call it. Without torch.compile it is made of operators, which run anywhere, gradients included.
"""

from .imports import after_import


def _allow(module) -> None:
    listed = module._validate_device

    def _validate_device(query, key, value):
        if query.device.type != "opaque":
            listed(query, key, value)

    module._validate_device = _validate_device


def register() -> None:
    after_import("torch.nn.attention.flex_attention", _allow)
