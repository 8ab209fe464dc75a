"""What a program calls its tensors and modules: the names that graphs show."""

import inspect
import sys
from contextlib import contextmanager, suppress
from functools import cache
from itertools import chain
from types import FunctionType, ModuleType

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils import _pytree

from . import _C

_HERE = __name__.rpartition(".")[0]


class Names:
    """What a call of fn can see: `tensors`, a list of (name, tensor), best names first: parameters and buffers of modules as the
    modules have them, arguments by the function's signature, variables, gradients and optimizer state by their parameter;
    `modules`: id of each module to (path, module). A path is led by the variable only where there are several modules."""

    def __init__(self, fn, args: tuple, kwargs: dict, outside: list | None = None):
        """`outside`: (name, value) of what is to be seen besides the function; None: variables of the caller."""
        seen = chain(_arguments(fn, args, kwargs), _closure(fn)) if callable(fn) else ()
        variables = [*seen, *(_caller() if outside is None else outside)]
        holders = [getattr(fn, "__self__", None), *(value for _, value in variables)]
        variables += [pair for holder in holders for pair in list(_attributes(holder))]
        found = {}
        for name, value in variables:
            if isinstance(value, torch.nn.Module):
                found.setdefault(id(value), (name, value))
        inner = {id(m) for _, module in found.values() for m in module.modules() if m is not module}
        outer = [(name, module) for name, module in found.values() if id(module) not in inner]
        self.modules, named = {}, []
        for name, module in outer:
            lead = name if len(outer) > 1 else ""
            for path, part in module.named_modules():
                self.modules.setdefault(id(part), (".".join(filter(None, (lead, path))), part))
            parts = chain(module.named_parameters(), module.named_buffers())
            named += [(".".join(filter(None, (lead, n))), t) for n, t in parts]
        named += [(name + _pytree.keystr(path), leaf) for name, path, leaf in _leaves(variables)]
        named += _state(variables, named)
        self.tensors = [(n, t) for n, t in named if isinstance(t, torch.Tensor)]

    def path_of(self, module, outermost: bool) -> str:
        """What a module is called, "" if it has no name. `outermost`: no other module's forward() calls it."""
        return self.modules.get(id(module), ("", None))[0]

    def scopes(self):
        """While on, ops know the module in whose forward() they are recorded."""
        return scopes(self.path_of)


@contextmanager
def scopes(path_of):
    """While on, ops know the path of the module in whose forward() they are recorded. `path_of(module, outermost)` is "" if it has none;
    outermost: no other module's forward() calls it."""
    stack = []

    def enter(module, _):
        path = path_of(module, not stack)
        stack.append(_scope(path) if path else stack[-1] if stack else 0)
        _C.set_scope(stack[-1])

    def leave(*_):
        if stack:  # else it was entered before
            stack.pop()
        _C.set_scope(stack[-1] if stack else 0)

    hooks = (
        register_module_forward_pre_hook(enter),
        register_module_forward_hook(leave, always_call=True),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        _C.set_scope(0)


@cache
def _scope(path: str) -> int:
    return _C.add_scope(path)


def _arguments(fn, args: tuple, kwargs: dict):
    owner = getattr(fn, "__self__", None)
    for module in (fn, owner):
        if isinstance(module, torch.nn.Module):
            yield "", module
    called = fn.forward if isinstance(fn, torch.nn.Module) else fn
    try:
        bound = inspect.signature(called).bind(*args, **kwargs)
    except (
        TypeError,
        ValueError,
    ):  # a builtin; or arguments that do not fit, which the call itself will tell
        return
    yield from bound.arguments.items()


def _attributes(value):
    """(name, value) of those of an object that may hold modules and is none: a trainer, an agent."""
    kind = type(value).__module__.partition(".")[0]
    if isinstance(value, (type, ModuleType, FunctionType)) or kind in ("torch", "builtins", _HERE):
        return []
    return [] if isinstance(value, torch.nn.Module) else getattr(value, "__dict__", {}).items()


def _closure(fn):
    code = getattr(fn, "__code__", None)
    if code is None:
        return
    cells = getattr(fn, "__closure__", None) or ()
    for name, cell in zip(code.co_freevars, cells, strict=True):
        with suppress(ValueError):  # not assigned yet
            yield name, cell.cell_contents
    for name in code.co_names:
        if name in fn.__globals__:
            yield name, fn.__globals__[name]


def _caller():
    """Variables of the innermost frame outside this package."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in (_HERE, "contextlib"):
            return list(variables_of(frame).items())
        frame = frame.f_back
    return []


def variables_of(frame) -> dict:
    """A copy of its local variables. Before Python 3.13 a function's frame keeps the dict that it shows, and with it what is deleted later."""
    shown = frame.f_locals
    variables = dict(shown)
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        shown.clear()
    return variables


def _leaves(variables: list):
    """(variable, path in it, tensor), for variables that are tensors or containers of some."""
    for name, value in variables:
        if isinstance(value, torch.Tensor):
            yield name, (), value
        elif isinstance(value, (list, tuple, dict)) and len(value) < 10000:
            for path, leaf in _pytree.tree_flatten_with_path(value)[0]:
                if isinstance(leaf, torch.Tensor):
                    yield name, path, leaf


def _state(variables: list, found: list):
    """Gradients of what has a name, and what optimizers keep of it."""
    name_of = {}
    for name, tensor in found:
        name_of.setdefault(id(tensor), name)
        if tensor.is_leaf and tensor.grad is not None:
            yield f"{name}.grad", tensor.grad
    for _, value in variables:
        if isinstance(value, torch.optim.Optimizer):
            for i, (parameter, state) in enumerate(value.state.items()):
                lead = name_of.get(id(parameter), f"parameter {i}")
                yield from ((f"{lead}.{key}", x) for key, x in state.items())
