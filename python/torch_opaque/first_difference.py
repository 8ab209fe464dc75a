"""Where a fused run and another one differ first: the op whose operands agree and whose result does not.

An op is asked by storing its result as well, in a run that is otherwise the fused one. Storing a value changes how what follows is
fused, so one is asked at a time: a bisection over the ancestors of an output that differs, then a walk to operands that do."""

import hashlib
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from . import _C, modes
from .graphs import read
from .numerics import max_difference
from .snapshot import recorded


@dataclass
class FirstDifference:
    """An op of the recorded graph: `node` is its text there; `kernel`, `kernel_ops`: what computes it in the fused run;
    `difference`: the largest absolute one."""

    node: str
    line: str
    module: str
    kernel: str
    kernel_ops: list
    difference: float

    def text(self) -> str:
        """In one line."""
        ops = [*self.kernel_ops[:8], *(["..."] if len(self.kernel_ops) > 8 else [])]
        kernel = self.kernel and f", by kernel {self.kernel} ({', '.join(ops)})"
        return f"{self.node}{kernel}: {self.difference:.3g}, and its operands agree"


class _Search:
    """`mode`: the other run, "unfused" or "eager"."""

    def __init__(self, fn, args, state, names, mode: str):
        self.call, self.names, self.mode = (fn, args, state), names, mode
        self.digests, self.asked = {}, {}
        self.reference()

    def tensors(self, run) -> list:
        from .inspect import held_by  # which imports compare()

        return run.outputs + held_by(run)

    def reference(self, wanted: int = -1):
        """Computes each op by itself and notes its bits. Returns the value of node `wanted`."""
        found = None
        with self.names.scopes(), recorded(*self.call) as run:
            tensors = self.tensors(run)
            self.graph = read(_C.Inspection(tensors, self.names.tensors), "recorded")
            values = _C.recorded_values(tensors)
            with modes.unfused() if self.mode == "unfused" else nullcontext():
                for i, value in enumerate(values):
                    if value is None:
                        continue
                    _C.materialize([value], "inspect")
                    self.digests[i] = _digest(value)
                    found = value.cpu() if i == wanted else found
                    values[i] = value = None
        return found

    def fused(self, number: int):
        """The value of a node in the fused run, and the kernel that computes it."""
        with self.names.scopes(), recorded(*self.call) as run:
            tensors = self.tensors(run)
            value = _C.recorded_values(tensors)[number]
            asked = [*tensors, value]
            graph = read(_C.Inspection(asked, []), "fused")
            _C.materialize(asked, "inspect")
            return value.cpu(), graph.outputs[len(tensors)].kernel

    def differs(self, node) -> bool:
        if node.id not in self.digests:  # an input or a number
            return False
        if node.id not in self.asked:
            self.asked[node.id] = _digest(self.fused(node.id)[0]) != self.digests[node.id]
        return self.asked[node.id]

    def differing_output(self):
        with self.names.scopes(), recorded(*self.call) as run:
            tensors = self.tensors(run)
            _C.materialize(tensors, "inspect")
            pairs = zip(tensors, self.graph.outputs, strict=False)
            found = [
                node
                for tensor, node in pairs
                if node.id in self.digests and _digest(tensor) != self.digests[node.id]
            ]
        return min(found, key=lambda node: node.id, default=None)

    def first(self):
        node = self.differing_output()
        if node is None or not self.differs(node):
            return None
        ancestors = [*_ancestors(node), node]
        low, high = -1, len(ancestors) - 1
        while high - low > 1:
            middle = (low + high) // 2
            if self.differs(ancestors[middle]):
                high = middle
            else:
                low = middle
        node = ancestors[high]
        while earlier := next(filter(self.differs, node.operands), None):
            node = earlier
        return node


def _digest(tensor: torch.Tensor) -> bytes:
    value = tensor.cpu()
    flat = torch.empty(value.numel(), dtype=value.dtype).copy_(value.reshape(-1))
    return hashlib.blake2b(flat.view(torch.uint8).numpy()).digest()


def _ancestors(node) -> list:
    """All that it is computed from, operands first."""
    found, waiting = {}, list(node.operands)
    while waiting:
        each = waiting.pop()
        if each.id not in found:
            found[each.id] = each
            waiting += each.operands
    return [found[i] for i in sorted(found)]


def first_difference(fn, args, state, names, mode: str) -> FirstDifference | None:
    """The first op whose bits differ between the fused run of fn(*args) and that in `mode`, or None: what was recorded before the
    function looked at values is not asked."""
    search = _Search(fn, args, state, names, mode)
    node = search.first()
    if node is None:
        return None
    value, kernel = search.fused(node.id)
    return FirstDifference(
        node=node.text,
        line=node.line,
        module=node.module,
        kernel=kernel.name if kernel else "",
        kernel_ops=[n.op for n in kernel.nodes] if kernel else [],
        difference=max_difference(value, search.reference(node.id)),
    )
