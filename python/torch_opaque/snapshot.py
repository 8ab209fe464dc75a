"""Runs a function so that parameters, other opaque tensors, gradients, optimizers and generators
are afterwards as they were before.

Contents of opaque tensors are immutable values below, so the C side keeps a journal of first writes
and puts the old values back: nothing is copied. What lives in Python objects is found through the
garbage collector: `.grad` of opaque leaves, the state of optimizers (with their step counters,
which are CPU tensors), learning rate schedulers, parameters, buffers and training flags of modules,
generators (Python's and NumPy's as well). Other CPU tensors and plain Python attributes that the
function changes stay changed.
"""

import gc
import random
import sys
from contextlib import contextmanager
from itertools import compress

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils import _pytree

from . import _C


def is_opaque(x) -> bool:
    """True for a tensor on the device with values of its own: no nested or batched one, which holds others."""
    return isinstance(x, torch.Tensor) and x.device.type == "opaque" and _C.has_cell(x)


def _with_subclasses(kind: type, found: set) -> set:
    if kind not in found:
        found.add(kind)
        for below in type.__subclasses__(kind):
            _with_subclasses(below, found)
    return found


def objects_of(*kinds) -> list:
    """Live Python objects of these types. Looks at the type alone: asking an object may run its code."""
    wanted = set()
    for kind in kinds:
        _with_subclasses(kind, wanted)
    objects = gc.get_objects()
    return list(compress(objects, map(wanted.__contains__, map(type, objects))))


class PythonState:
    """State held by Python objects, taken when made; restore() may be called any number of times."""

    def __init__(self):
        found = objects_of(torch.Tensor, Optimizer, LRScheduler, torch.Generator, torch.nn.Module)
        modules = [vars(x) for x in found if isinstance(x, torch.nn.Module)]
        self.training = [(m, m["training"]) for m in modules if "training" in m]
        tables = (m[key] for m in modules for key in ("_parameters", "_buffers") if m.get(key))
        self.tables = [(table, dict(table)) for table in tables]
        self.random = random.getstate()
        numpy = sys.modules.get("numpy")
        self.numpy = (numpy.random, numpy.random.get_state()) if numpy else None
        self.gradients = [
            (t, t.grad) for t in found if is_opaque(t) and t.is_leaf and t.requires_grad
        ]
        self.optimizers = [self._optimizer(x) for x in found if isinstance(x, Optimizer)]
        self.schedulers = [(x, dict(vars(x))) for x in found if isinstance(x, LRScheduler)]
        generators = {id(g): g for g in found if isinstance(g, torch.Generator)}
        for default in (torch.default_generator, *torch.opaque.default_generators):
            generators.setdefault(id(default), default)
        self.generators = [(g, g.get_state()) for g in generators.values()]

    @staticmethod
    def _optimizer(optimizer):
        entries = [(p, state, dict(state)) for p, state in optimizer.state.items()]
        tensors = [
            (x, x.clone())
            for _, _, state in entries
            for x in state.values()
            if isinstance(x, torch.Tensor) and not is_opaque(x)
        ]
        return (
            optimizer,
            entries,
            tensors,
            [(group, dict(group)) for group in optimizer.param_groups],
        )

    @torch.no_grad()
    def restore(self) -> None:
        """Puts everything back, in the same objects."""
        for tensor, gradient in self.gradients:
            tensor.grad = gradient
        for optimizer, entries, tensors, groups in self.optimizers:
            optimizer.state.clear()
            for parameter, state, items in entries:
                state.clear()
                state.update(items)
                optimizer.state[parameter] = state
            for tensor, value in tensors:
                tensor.copy_(value)
            for group, items in groups:
                group.clear()
                group.update(items)
        for scheduler, items in self.schedulers:
            vars(scheduler).update(items)
        for module, flag in self.training:
            module["training"] = flag
        for table, items in self.tables:
            table.clear()
            table.update(items)
        random.setstate(self.random)
        if self.numpy:
            self.numpy[0].set_state(self.numpy[1])
        for generator, state in self.generators:
            generator.set_state(state)


class Run:
    """What one call gave. `returned`: the opaque tensors among the flattened return values, as
    tensors of their own; `mutated`: new contents of each tensor written, in order of first write, and `cells`, its _C.cell_id();
    `held`: values that a run would compute besides, because something holds them, as autograd does;
    `raw`: the return values themselves."""

    def __init__(self):
        self.raw = None
        self.returned = []
        self.mutated = []
        self.cells = []
        self.held = []

    @property
    def outputs(self) -> list:
        return self.returned + self.mutated


@contextmanager
def recorded(fn, args, state=None):
    """Calls fn(*args) and yields the Run while everything is already restored. `state`: a PythonState to use again."""
    state = state or PythonState()
    run = Run()
    _C.journal_begin()
    try:
        run.raw = fn(*args)
        leaves = _pytree.tree_leaves(run.raw)
        with torch.no_grad():
            # A returned tensor may be one that is about to be restored.
            run.returned = [
                t.detach().clone(memory_format=torch.contiguous_format)
                for t in leaves
                if is_opaque(t)
            ]
        run.held = _C.journal_held()
    finally:
        run.cells = _C.journal_cells()
        run.mutated = _C.journal_end(True)
        state.restore()
    yield run
