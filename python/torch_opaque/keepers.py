"""Who keeps the values that a run stored: what explain() shows as `kept by`."""

import gc
import os
import sys

import torch
from torch.utils._pytree import tree_leaves

from . import _C
from .naming import variables_of
from .snapshot import is_opaque, objects_of

_LEAST = 4096  # bytes: less is nobody's


def is_ours(tensor) -> bool:
    """An opaque tensor with values: not a FakeTensor or another subclass with its own dispatch."""
    return is_opaque(tensor) and type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def _live() -> list:
    return [t for t in objects_of(torch.Tensor) if is_ours(t)]


class Keepers:
    """Made before a function runs, or what is pending is computed."""

    def __init__(self):
        self._before = {
            id(t): t for t in _live() if not _C.is_pending(t)
        }  # held, so that nothing gets their place
        self._computed = {_C.cell_id(t) for t in self._before.values()}
        self._allocated = _C.memory_allocated()

    def tensors(self) -> list:
        """Those that hold what the run makes: pending still, or computed on the way. To be asked before the run."""
        return [
            t
            for t in _live()
            if _C.is_pending(t)
            or (id(t) not in self._before and _C.cell_id(t) not in self._computed)
        ]

    def rows(self, tensors: list, names: dict, modules: dict) -> list:
        """(what keeps it, type, bytes) of each value, after the run. `names`: id of a tensor to its name, "" for one not worth a row; `modules`: as
        naming.Names has them. What no Python object holds is counted."""
        gradients = {
            id(t.grad)
            for t in objects_of(torch.Tensor)
            if is_opaque(t) and t.is_leaf and t.grad is not None
        }
        found, seen, total = [], set(), 0
        # What has a name goes before what shares its memory and has none.
        for tensor in sorted(tensors, key=lambda t: not names.get(id(t), "")):
            cell = _C.cell_id(tensor)
            returned = (
                names.get(id(tensor)) == "returned"
            )  # a view of what was computed may be pending itself
            if cell in seen or (_C.is_pending(tensor) and not returned):
                continue
            if id(tensor) in names:
                what = names[id(tensor)]
            elif id(tensor) in gradients:
                what = ".grad"
            elif isinstance(tensor, torch.nn.Parameter):
                what = "parameter"
            else:
                what = _variable(tensor) or _attribute(tensor, tensors, modules) or "python object"
            if not what:
                continue
            seen.add(cell)
            size = tensor.untyped_storage().nbytes()
            total += size
            kind = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
            part = " of a larger one" if size > tensor.numel() * tensor.element_size() else ""
            found.append((what, kind + part, size))
        rest = _C.memory_allocated() - self._allocated - total
        if rest > _LEAST:
            found.append(("saved for backward, or held by other code", "", rest))
        return found


def names_of(run, inputs) -> dict:
    """Names of a function's results. What it returned shares its value with our own copy of it."""
    if run is None:
        return {}
    names = {id(t): "" for t in run.returned + run.held}
    cells = {_C.cell_id(t): name for name, t in reversed(inputs.tensors) if is_opaque(t)}
    for cell, t in zip(run.cells, run.mutated, strict=True):
        names[id(t)] = cells.get(cell, "written")
    return names | {id(t): "returned" for t in _returned(run.raw)}


def _returned(raw) -> list:
    """Tensors in what a function returned, and in the objects that it returned."""
    found = []
    for leaf in tree_leaves(raw):
        if is_opaque(leaf):
            found.append(leaf)
        elif not isinstance(leaf, (type, torch.nn.Module)) and hasattr(leaf, "__dict__"):
            found += [t for t in tree_leaves(dict(vars(leaf))) if is_opaque(t)]
    return found


def _variable(tensor) -> str:
    """The local or global variable of the calling program that is this tensor, or ""."""
    package = os.path.dirname(__file__)
    frame = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(package):
            for scope in (variables_of(frame), frame.f_globals):
                for name, value in list(scope.items()):
                    if value is tensor:
                        return f"variable {name}"
        frame = frame.f_back
    return ""


def _attribute(tensor, ours: list, modules: dict) -> str:
    """The attribute or container that holds it, or ""."""
    for holder in gc.get_referrers(tensor):
        if holder is ours or isinstance(holder, type(sys._getframe())):
            continue
        if isinstance(holder, dict):
            key = next((k for k, v in list(holder.items()) if v is tensor), None)
            owner = next(
                (o for o in gc.get_referrers(holder) if getattr(o, "__dict__", None) is holder),
                None,
            )
            if owner is not None and isinstance(key, str):
                return f"attribute {_owner(owner, modules)}.{key}"
            if isinstance(key, str) and _variable_of(holder):
                return f"{_variable_of(holder)}[{key!r}]"
        elif isinstance(holder, list) and _variable_of(holder):
            return f"{_variable_of(holder)}[{next(i for i, v in enumerate(holder) if v is tensor)}]"
        elif not isinstance(holder, (tuple, list)) and hasattr(holder, "__dict__"):
            key = next((k for k, v in list(vars(holder).items()) if v is tensor), None)
            if key:
                return f"attribute {_owner(holder, modules)}.{key}"
    return ""


def _owner(owner, modules: dict) -> str:
    return modules.get(id(owner), ("", None))[0] or type(owner).__name__


def _variable_of(holder) -> str:
    return _variable(holder).removeprefix("variable ")
