"""Captured functions: what a function records, as one plan that later calls run without recording.

    @torch_opaque.capture
    def step(x, y):
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

The first call with arguments of some kind records and runs; later ones check that all is as it was, and run the plan. Read anew at each
call: tensors in the arguments, and every tensor of the device that the function reaches otherwise. What is not as it was (a shape, a dtype,
`training`, a mode ...) is recorded anew; what a plan cannot do (a value that Python looks at) is an error at its line.
"""

import functools
import types
from collections import Counter
from contextlib import contextmanager

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from . import _C
from .settings import EAGER

KINDS = 64  # of arguments, of which plans are kept

_GRADIENTS = tuple(
    getattr(torch.Tensor.grad, name) for name in ("__get__", "__set__", "__delete__")
)
_SIMPLE = (int, float, bool, str, type(None))


class _Gradients(TorchFunctionMode):
    """Tells the capturing of a parameter before its gradient is read or set."""

    def __init__(self, capturing):
        super().__init__()
        self.capturing = capturing

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in _GRADIENTS and _C.has_cell(args[0]):
            self.capturing.reach(args[0])
        return func(*args, **(kwargs or {}))


def _is_host(value) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


class _Host(TorchDispatchMode):
    """Sees what happens to tensors of the CPU."""

    def __init__(self, capturing):
        super().__init__()
        self.capturing = capturing
        self.fresh = []  # what the function made of nothing but Python's numbers; held, so that ids stay

    def _is_fresh(self, tensor) -> bool:
        return any(tensor is one for one in self.fresh)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = [
            one
            for one in tree_leaves((args, kwargs))
            if _is_host(one) and not hasattr(one, "_wrapped_number")
        ]
        fresh = func is torch.ops.aten.lift_fresh.default or all(map(self._is_fresh, given))
        if not fresh:
            self.capturing.refuse(f"{func} reads a tensor of the CPU")
        result = func(*args, **kwargs)
        if fresh:
            self.fresh += [one for one in tree_leaves(result) if _is_host(one)]
        return result


class _Watch:
    """Modules that are called and optimizers that step: what of them Python code goes by."""

    def __init__(self):
        self.modules, self.optimizers = {}, {}

    def __enter__(self):
        self._hooks = (
            register_module_forward_pre_hook(self._module),
            register_optimizer_step_pre_hook(self._optimizer),
        )
        return self

    def __exit__(self, *_):
        for hook in self._hooks:
            hook.remove()

    def _module(self, module, _args):
        if id(module) not in self.modules:
            simple = {k: v for k, v in vars(module).items() if isinstance(v, _SIMPLE)}
            self.modules[id(module)] = module, simple

    def _optimizer(self, optimizer, _args, _kwargs):
        self.optimizers[id(optimizer)] = optimizer

    def dicts(self) -> list:
        """(dict, keys or None for all, its name)"""
        found = []
        for module, simple in self.modules.values():
            name = type(module).__name__
            items = vars(module)
            same = tuple(k for k, v in simple.items() if items.get(k, found) is v)
            found.append((items, same, name))
            for part in ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks"):
                found.append((items[part], None, f"{name}.{part}"))
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                keys = tuple(k for k in group if k != "params")
                found.append((group, keys, f"a group of {type(optimizer).__name__}"))
        return found


@contextmanager
def _capturing():
    capturing = _C.Capturing()
    try:
        with _Gradients(capturing), _Host(capturing):
            yield capturing
    finally:
        _C.finish_backward()
        capturing.end()


def _add_backward(draft) -> str:
    """Captures what backward() of the results does, if they have a gradient. Why it needs Python, "" if it does not."""
    outputs = draft.outputs
    if not outputs:
        return ""
    incoming = [torch.ones(o.shape, dtype=o.dtype, device=o.device) for o in outputs]
    inputs = draft.inputs
    try:
        with _capturing() as capturing:
            gradients = torch.autograd.grad(
                outputs, inputs, incoming, retain_graph=True, allow_unused=True
            )
    except RuntimeError as error:
        if "backward through the graph a second time" in str(error):
            return ""  # the function went through it itself
        return f"its gradient cannot be captured: {error}"
    return "" if draft.add_backward(capturing, incoming, gradients) else capturing.refused


class Captured(_C.CapturedFunction):
    """A captured function: see capture()."""

    def __init__(self, fn, check: int = 0):
        functools.update_wrapper(self, fn)
        self._fn = fn
        self._every = check
        self._reasons = Counter()  # why it was recorded anew
        self._refused = Counter()  # why calls need Python

    def __get__(self, instance, owner=None):
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<captured {getattr(self._fn, '__qualname__', self._fn)}>"

    def _plain(self, *args, **kwargs):
        return self._fn(*args, **kwargs)

    def _record(self, *args, **kwargs):
        if _C.get_modes() & EAGER:
            return self._fn(*args, **kwargs)
        why = _C.capture_difference(self, args, kwargs)
        watch = _Watch()
        with _capturing() as capturing, watch:
            result = self._fn(*args, **kwargs)
        draft = _C.capture_draft(capturing, args, kwargs, result)
        refused = capturing.refused if draft is None else _add_backward(draft)
        if draft is None or refused:
            self._refused[refused] += 1
            return result
        result = draft.first_result()
        if draft.leaks():
            self._refused["a tensor that it makes outlives the call, and is no result"] += 1
            return result
        draft.keep(self, watch.dicts())
        if why is not None:
            self._reasons[why] += 1
        _C.capture_limit(self, KINDS)
        return result


def capture(fn=None, *, check: int = 0):
    """Makes `fn` a function whose calls run one plan, from C, as long as nothing changes that the plan depends on. A decorator, too.

    check      each so many calls one is recorded as well, and the graphs compared: what Python did that the plan does not know is an error
    """
    if fn is None:
        return functools.partial(capture, check=check)
    if not callable(fn):
        raise TypeError(f"capture() takes a function, not {type(fn).__name__}")
    return Captured(fn, check)
