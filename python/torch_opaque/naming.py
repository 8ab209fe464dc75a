"""What a program calls its tensors: the names that graphs show behind their inputs."""

import inspect
import sys
from contextlib import suppress
from itertools import chain

import torch
from torch.utils import _pytree

_HERE = __name__.rpartition(".")[0]


def names_of(fn, args: tuple, kwargs: dict) -> list:
    """(name, tensor) for the tensors a call of fn can see, best names first: parameters and buffers of modules as the modules
    have them, arguments by the function's signature, variables, gradients and optimizer state by their parameter. A name of
    a module is led by its variable only where there are several modules."""
    seen = chain(_arguments(fn, args, kwargs), _closure(fn)) if callable(fn) else ()
    variables = [*seen, *_caller()]
    modules = {}
    for name, value in variables:
        if isinstance(value, torch.nn.Module):
            modules.setdefault(id(value), (name, value))
    inner = {id(m) for _, module in modules.values() for m in module.modules() if m is not module}
    outer = [(name, module) for name, module in modules.values() if id(module) not in inner]
    found = []
    for name, module in outer:
        lead = f"{name}." if name and len(outer) > 1 else ""
        found += [
            (lead + n, t) for n, t in chain(module.named_parameters(), module.named_buffers())
        ]
    found += [(name + _pytree.keystr(path), leaf) for name, path, leaf in _leaves(variables)]
    found += _state(variables, found)
    return [(n, t) for n, t in found if isinstance(t, torch.Tensor)]


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
