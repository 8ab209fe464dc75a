"""find_nan(): the first op of a program that makes a NaN, or an infinity, of operands that have none."""

import json
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field

import torch

from . import _C, summary, watch
from .graphs import read
from .naming import Names
from .program import Stopped

_OPS = 8  # of a kernel, shown
_MADE = {"nan": "NaN", "inf": "infinity"}


@dataclass
class FoundNan:
    """Where the first one is made. `what`: "nan" or "inf"; `node`: the op as the recorded graph has it, or the input that came with it (`is_input`); `op`: what
    the program called; `line`, `module`: where; `backward`: did autograd record it, then `line` is that of `forward`, the op that it is the gradient of;
    `kernel`, `kernel_ops`: what computes it in the fused run; `count` of `size` elements are such; `inputs`: statistics of each operand."""

    what: str
    node: str
    op: str
    line: str
    module: str
    is_input: bool = False
    backward: bool = False
    forward: str = ""
    kernel: str = ""
    kernel_ops: list = field(default_factory=list)
    count: int = 0
    size: int = 0
    inputs: list = field(default_factory=list)

    def text(self) -> str:
        """The report as find_nan() prints it."""
        where = f" at {self.line}" if self.line else ""
        where += f" in {self.module}" if self.module else ""
        made = f"{self.count} of {self.size} elements"
        if self.is_input:
            return f"{_MADE[self.what]} comes in with an input, {made}:\n  {self.node}"
        lines = [
            f"the first {_MADE[self.what]} is made by {self.op}{where}, {made}:",
            f"  {self.node}",
        ]
        if self.backward:
            lines.append(f"  a gradient of  {self.forward or 'what is not in this graph'}")
        if self.kernel:
            ops = [*self.kernel_ops[:_OPS], *(["..."] if len(self.kernel_ops) > _OPS else [])]
            lines.append(f"  in kernel {self.kernel} ({', '.join(ops)})")
        header = ("operand", "type", "least", "greatest", "mean", "zeros", "NaN", "infinite")
        rows = [tuple(row[key] for key in header) for row in self.inputs]
        return "\n".join([*lines, "", summary.table(header, rows)] if rows else lines)

    def to_json(self) -> str:
        """A document with the fields of this object."""
        return json.dumps({"schema": "opaque.nan", "version": 1} | asdict(self), indent=1)

    def __str__(self) -> str:
        return self.text()


def _bad(tensor: torch.Tensor, infinities: bool) -> str:
    """What a CPU tensor has of these: "nan", "inf" or ""."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return ""
    if torch.isnan(tensor).any():
        return "nan"
    return "inf" if infinities and torch.isinf(tensor).any() else ""


def _count(tensor: torch.Tensor, what: str) -> int:
    return int((torch.isnan(tensor) if what == "nan" else torch.isinf(tensor)).sum())


def _statistics(name: str, tensor: torch.Tensor) -> dict:
    dtype = str(tensor.dtype).removeprefix("torch.")
    row = {"operand": name, "type": f"{dtype}{list(tensor.shape)}"}
    real = tensor.abs() if tensor.is_complex() else tensor
    real = real.double() if real.is_floating_point() else real.to(torch.int64)
    finite = real[torch.isfinite(real)]
    some = finite.numel() > 0
    row["least"] = f"{finite.min().item():.6g}" if some else "-"
    row["greatest"] = f"{finite.max().item():.6g}" if some else "-"
    row["mean"] = f"{finite.double().mean().item():.6g}" if some else "-"
    row["zeros"] = int((real == 0).sum())
    return row | {"NaN": _count(real, "nan"), "infinite": _count(real, "inf")}


class _Search:
    """Looks at all that is computed, op by op, in the order of the program. `found`: the first."""

    def __init__(self, infinities: bool, names: Names | None = None, stop: bool = False):
        self.infinities, self.names, self.stop = infinities, names, stop
        self.found, self._thread, self._busy = None, threading.get_ident(), False

    @contextmanager
    def watched(self):
        """What runs in this thread is looked at before."""
        with watch.before_runs(self._before):
            yield self

    def _before(self, tensors: list, reason: str, line: str) -> None:
        if self._busy or self.found or not tensors or threading.get_ident() != self._thread:
            return
        self.look(tensors)
        if self.found and self.stop:
            raise Stopped

    @torch.no_grad()
    def look(self, tensors: list) -> None:
        """At what these tensors wait for, which is computed by this."""
        self._busy = True
        try:
            self._look(tensors)
        finally:
            self._busy = False

    def _look(self, tensors: list) -> None:
        names = self.names or Names(None, (), {}, watch.visible())
        inspection = _C.Inspection(tensors, names.tensors)
        graph = read(inspection, "recorded")
        values, leaves = _C.recorded_values(tensors), _C.recorded_leaves(tensors)
        bad = {}
        for node, value in zip(graph.nodes, values, strict=True):
            if value is None or node.op == "extern":  # whose results are nodes
                continue
            _C.materialize([value], "inspect")
            if what := _bad(value.cpu(), self.infinities):
                bad[node.id] = what
                if node.op != "undefined" and not self._comes_in(node, bad, leaves):
                    self.found = self._maker(graph, node, what, values, leaves, inspection)
                if self.found:
                    return

    def _comes_in(self, node, bad: dict, leaves: list) -> bool:
        """Has an operand one already? Of an input that is told."""
        for operand in _operands(node):
            if operand.id in bad:
                return True
            if operand.op == "input" and (what := _bad(leaves[operand.id].cpu(), self.infinities)):
                value = leaves[operand.id].cpu()
                self.found = FoundNan(
                    what, operand.text, "input", operand.line, operand.module, is_input=True
                )
                self.found.count, self.found.size = _count(value, what), value.numel()
                return True
        return False

    def _maker(self, graph, node, what: str, values: list, leaves: list, inspection) -> FoundNan:
        kernel, value = _kernel(graph, node, inspection), values[node.id].cpu()
        rows = []
        for operand in _operands(node):
            tensor = leaves[operand.id] if operand.op == "input" else values[operand.id]
            if tensor is not None:
                rows.append(
                    _statistics(operand.name or f"%{operand.id} {operand.op}", tensor.cpu())
                )
            elif operand.op == "scalar":
                rows.append(
                    dict.fromkeys(("least", "greatest", "mean"), operand.attrs.get("value", ""))
                )
                rows[-1] |= {
                    "operand": "number",
                    "type": operand.dtype,
                    "zeros": "",
                    "NaN": "",
                    "infinite": "",
                }
        return FoundNan(
            what=what,
            node=node.text,
            op=node.recorded or node.op,
            line=node.place,
            module=node.module,
            backward=node.backward,
            forward=node.forward.text if node.forward else "",
            kernel=kernel.name if kernel else "",
            kernel_ops=[n.op for n in kernel.nodes] if kernel else [],
            count=_count(value, what),
            size=value.numel(),
            inputs=rows,
        )


def _operands(node) -> list:
    """Each once; of the result of a call of another library those of the call."""
    if node.op == "extern_result":
        node = node.operands[0]
    return list(dict.fromkeys(node.operands))


def _kernel(graph, node, inspection):
    """What computes it in the fused run: where the last op is that the same call of the program became."""
    call = graph._document["nodes"][node.id].get("call")
    fused = read(inspection, "fused")
    made = [
        n
        for n, row in zip(fused.nodes, fused._document["nodes"], strict=True)
        if n.kernel and call is not None and row.get("call") == call
    ]
    return made[-1].kernel if made else None


def find_nan(
    t_or_fn, *args, infinities: bool = False, show: bool = True, **kwargs
) -> FoundNan | None:
    """The first op that makes a NaN of operands that have none (with `infinities` an infinity, too): what it is, its line and module,
    whether it is a gradient and of what, its kernel, and what its operands are like; None if there is no such op. Prints it.

    A tensor is computed by this; a function runs on snapshots (see torch_opaque.inspect). Each op is computed by itself and looked at, in the
    order of the program, so that this is slow. Arguments but `infinities` and `show` are the function's.

    Example::

        torch_opaque.find_nan(train_step, x, y)
    """
    from .inspect import held_by, outputs_of

    names = Names(t_or_fn, args, kwargs)
    search = _Search(infinities, names)
    with names.scopes(), ExitStack() as stack:
        with search.watched():
            tensors, run = stack.enter_context(outputs_of(t_or_fn, args, kwargs))
        tensors = tensors + held_by(run)
        if tensors and not search.found:
            search.look(tensors)
    if show:
        print(search.found or nothing(infinities))
    return search.found


def nothing(infinities: bool) -> str:
    """What is said if there is none."""
    return f"no op makes a NaN{' or an infinity' if infinities else ''}"


@contextmanager
def searching(infinities: bool):
    """While on, what this thread runs is looked at, until the first is found, at which the program stops. Gives an object with `found`."""
    search = _Search(infinities, stop=True)
    with search.watched():
        runs = watch.Runs()
        with runs.scopes():
            yield search
