"""nn.Module conversions that land on or leave the device keep parameters the objects they are.

PyTorch makes new Parameters when a conversion ends in another tensor class: tied weights come apart
and an optimizer built before `.to()` goes on updating the old ones, both silently. Here the new
contents go into the old objects (as torch.__future__'s swap_module_params_on_conversion does for a
whole process), for conversions that involve the device and no others. All of `.to()`, `.opaque()`,
`.cpu()`, `.bfloat16()`, `.to_empty()` go through Module._apply, which is what is wrapped.

A TorchScript module keeps its tensors on the C++ side: its slots get the object with the new contents.

Beyond what torch.utils.swap_tensors does, a Parameter keeps its class, attributes and hooks, and
may be in use by a graph that is still alive. That graph cannot run backward into it any more: the
attempt raises an error.
"""

import sys
import threading

import torch
from torch.nn import Module, Parameter
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from . import _C

# Inside the outermost _apply of this thread .swap is True or False, and .slots says where TorchScript modules hold a Parameter:
# its id -> (Parameter, [(parameters of a module, name)]).
_conversion = threading.local()


def _first_tensor(module: Module, recurse: bool):
    """The parameter or buffer that Module._apply converts first: children before their parent."""
    for child in module.children() if recurse else ():
        found = _first_tensor(child, recurse)
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
    """Applies `fn` to `first` ahead of the conversion. Returns the result's device type and an `fn`
    that reuses the result, so that each tensor is converted once, in the usual order."""
    with torch.no_grad():
        result = [fn(first)]

    def converted(tensor):
        return result.pop() if tensor is first and result else fn(tensor)

    return result[0].device.type, converted


def _poisoned(grad_outputs):
    raise RuntimeError(
        "backward reached a parameter that was converted (e.g. model.to('opaque')) after the "
        "forward pass: convert before forward or after backward"
    )


def _replace(old: torch.Tensor, new: torch.Tensor) -> None:
    """Gives `old` the contents, device and dtype of `new`; it stays the same Python object."""
    if is_traceable_wrapper_subclass(old) or is_traceable_wrapper_subclass(new):
        torch.utils.swap_tensors(old, new)
        return
    if old.requires_grad and old.is_leaf and old._use_count() > 1:  # a graph holds it
        torch.autograd.graph.get_gradient_edge(old).node.register_prehook(_poisoned)
    hooks, accumulate_hooks = old._backward_hooks, old._post_accumulate_grad_hooks
    torch._C._swap_tensor_impl(old, new)
    if hooks is not None:
        old._backward_hooks = hooks
    if accumulate_hooks is not None:
        old._post_accumulate_grad_hooks = accumulate_hooks


def _convert_parameter(parameter: Parameter, fn) -> None:
    with torch.no_grad():
        result = fn(parameter)
        if result is parameter:
            return
        gradient, parameter.grad = parameter.grad, None
        _replace(parameter, Parameter(result, parameter.requires_grad))
        if gradient is None:
            return
        result = fn(gradient)
        if result is not gradient:
            _replace(gradient, result.requires_grad_(gradient.requires_grad))
        parameter.grad = gradient


def _convert(module: Module, fn, recurse: bool) -> Module:
    """Module._apply, replacing contents instead of Parameters."""
    for child in module.children() if recurse else ():
        child._apply(fn)
    for parameter in list(module._parameters.values()):
        if parameter is not None:
            _convert_parameter(parameter, fn)
            for group, name in _conversion.slots.get(id(parameter), (None, ()))[1]:
                group[name] = parameter
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = fn(buffer)
    return module


def _script_slots(module: Module, recurse: bool) -> dict:
    """Found before anything is converted: afterwards a second slot of a tied Parameter would hold what nobody else has."""
    slots = {}
    for child in module.modules() if recurse else (module,):
        if isinstance(child, torch.jit.ScriptModule):
            for name, parameter in child._parameters.items():
                if parameter is not None:
                    slots.setdefault(id(parameter), (parameter, []))[1].append(
                        (child._parameters, name)
                    )
    return slots


def _wrap_apply() -> None:
    plain_apply = Module._apply

    def _apply(self, fn, recurse=True):
        swap = getattr(_conversion, "swap", None)
        if swap is not None:  # a child, or a subclass that calls super()
            return _convert(self, fn, recurse) if swap else plain_apply(self, fn, recurse)
        first = _first_tensor(self, recurse)
        if first is None:
            return plain_apply(self, fn, recurse)
        swap = _holds_opaque(self)
        if not swap:
            target, fn = _ask_once(fn, first)
            swap = target == "opaque"
        _conversion.swap = swap
        _conversion.slots = _script_slots(self, recurse) if swap else {}
        try:
            return _convert(self, fn, recurse) if swap else plain_apply(self, fn, recurse)
        finally:
            _conversion.swap = _conversion.slots = None

    _apply.__doc__ = plain_apply.__doc__
    Module._apply = _apply


def _leave_data_parallel_alone() -> None:
    """nn.DataParallel moves a model to whatever accelerator there is; with one device that helps
    nobody, and changes programs that never asked for it."""
    # By its module's name: the package attribute is the function of that name.
    data_parallel = sys.modules["torch.nn.parallel.data_parallel"]
    available_device = data_parallel._get_available_device_type

    def other_device():
        kind = available_device()
        return None if kind == "opaque" else kind

    data_parallel._get_available_device_type = other_device


def register() -> None:
    """Wraps Module._apply; leaves nn.DataParallel as it was without the package."""
    _wrap_apply()
    _leave_data_parallel_alone()
