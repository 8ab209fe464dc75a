"""nn.Module conversions that land on or leave the device keep parameters the objects they are.

PyTorch makes new Parameters when a conversion changes the device: tied weights come apart and an optimizer built before `.to()` goes
on updating the old ones, both silently. Its own remedy, swap_tensors, puts the new contents into the old objects; it is chosen by
a process-wide switch. Here the switch is on for one conversion at a time, and only if the device is involved: all of `.to()`,
`.opaque()`, `.cpu()`, `.bfloat16()`, `.to_empty()` go through Module._apply, which is what is wrapped.
"""

import threading

import torch
from torch.nn import Module
from torch.nn.parallel import data_parallel

from . import _C

_inside = threading.local()


def _first_tensor(module: Module):
    """The parameter or buffer that Module._apply converts first: children before their parent."""
    for child in module.children():
        found = _first_tensor(child)
        if found is not None:
            return found
    for group in (module._parameters, module._buffers):
        for tensor in group.values():
            if tensor is not None:
                return tensor
    return None


def _is_opaque(tensor) -> bool:
    return tensor.device.type == "opaque"


def _holds_opaque(module: Module) -> bool:
    if not _C.is_initialized():
        return False
    return any(map(_is_opaque, module.parameters())) or any(map(_is_opaque, module.buffers()))


def _ask_once(fn, first):
    """Applies `fn` to `first` ahead of the conversion. Returns the result's device type and an `fn` that reuses the result, so
    that each tensor is converted once, in the usual order."""
    with torch.no_grad():
        result = [fn(first)]

    def converted(tensor):
        return result.pop() if tensor is first and result else fn(tensor)

    return result[0].device.type, converted


def register() -> None:
    """Wraps Module._apply, and keeps nn.DataParallel from choosing the device for programs that never asked for it."""
    plain_apply = Module._apply

    def _apply(self, fn, recurse=True):
        if getattr(_inside, "active", False) or torch.__future__.get_swap_module_params_on_conversion():
            return plain_apply(self, fn, recurse)
        first = _first_tensor(self)
        if first is None:
            return plain_apply(self, fn, recurse)
        swap = _holds_opaque(self)
        if not swap:
            target, fn = _ask_once(fn, first)
            swap = target == "opaque"
        _inside.active = True
        try:
            if not swap:
                return plain_apply(self, fn, recurse)
            torch.__future__.set_swap_module_params_on_conversion(True)
            try:
                return plain_apply(self, fn, recurse)
            finally:
                torch.__future__.set_swap_module_params_on_conversion(False)
        finally:
            _inside.active = False

    _apply.__doc__ = plain_apply.__doc__
    Module._apply = _apply

    available_device = data_parallel._get_available_device_type

    def other_device():
        kind = available_device()
        return None if kind == "opaque" else kind

    data_parallel._get_available_device_type = other_device
