"""explain(): runs something once with every launch timed, and says what was fused, what was not,
why, and who keeps what."""

import json
import os
import sys
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from functools import cache

import torch
from torch.utils._pytree import tree_leaves

from . import _C, settings, summary
from .graphs import Graph, read
from .naming import Names, variables_of
from .snapshot import is_opaque, objects_of

_PARTS = 6  # rows shown


@dataclass
class Explanation:
    """What one run was. `kernels`: a dict per launch, in order; `grouping`: False under unfused(); `graph`: the fused Graph; `unfused`: its Edges, in the order printed;
    `keepers`: (what keeps it, type, bytes) per value stored; `machine`: {"threads", "flops_per_second", "bandwidth": [(bytes, bytes per
    second), ...]}, the roofline, measured once; `runs`: of each run {"why": what tells it
    from the nearest plan, None if its plan was there, "kernels", "compiled", "outputs": values stored for the program}; `bytes_new`:
    memory that it took from the system. The first run of a plan is `cold`: it touches its code and memory first, which is part of its times. Of a
    function they are those of a later run then (`warm`), and `runs` and what was compiled are the first's.

    A function that reads values on the way runs in parts, for each of which there is an Explanation in `parts`, in order; explain()
    returns the dearest. `reason`, `line`: what asked for this one, "" at the end of the function; `times`: how many such there were."""

    kernels: list
    unfused: list
    graph: Graph
    bytes_unfused: int
    grouping: bool = True
    keepers: list = field(default_factory=list)
    runs: list = field(default_factory=list)
    machine: dict = field(default_factory=dict)
    bytes_new: int = 0
    warm: bool = False
    reason: str = ""
    line: str = ""
    times: int = 1
    parts: list = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Of its launches, without compiling."""
        return sum(k["seconds"] for k in self.kernels)

    @property
    def cold(self) -> str:
        """What its times have that those of the next run do not, in words; "" if they are those of a warm run."""
        new = ["code"] if any(run["why"] is not None for run in self.runs) else []
        if self.bytes_new > (0 if new else self.bytes_moved // 16):
            new.append(f"{summary.bytes_text(self.bytes_new)} of new memory")
        if self.warm or not new:
            return ""
        return f"these are times of a cold run, which touches {' and '.join(new)} first"

    @property
    def why(self) -> list:
        """For each run, whether its plan was there, or what tells it from the nearest plan."""
        return [summary.run_text(run) for run in self.runs]

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written by the launches."""
        return sum(k["bytes_read"] + k["bytes_written"] for k in self.kernels)

    @property
    def bytes_saved(self) -> int:
        """What one kernel per op would have moved, less what was moved."""
        return max(0, self.bytes_unfused - self.bytes_moved)

    def text(self) -> str:
        """The report as explain() prints it: at most some sixty lines."""
        if not self.kernels:
            return "nothing was left to run: all of it was computed before"
        parts = [
            summary.kernel_table(self.kernels),
            "\n".join(filter(None, [self._summary(), self.cold, *self.why])),
        ]
        if self.parts:
            parts.append(self._part_table())
        if len(self.kernels) > 8:
            parts.append(summary.totals(self.kernels, "kind", summary.KERNELS))
            parts.append(summary.totals(self.kernels, "module", summary.MODULES))
        if not self.grouping:
            parts.append("grouping is off (unfused): each op is a kernel")
        elif self.unfused:
            parts.append("not fused:\n" + summary.edge_lines(self.unfused))
        if self.keepers:
            parts.append(summary.keeper_table(self.keepers))
        return "\n\n".join(filter(None, parts))

    def to_html(self, path, *, title=None, comparison=None, difference=None) -> None:
        """Writes a report for a browser: one file, which needs no network (docs/report.md). `comparison`, `difference`: of compare()
        and diff(), as they are or as their to_json() gives them."""
        from . import report

        report.write(path, self.graph, self, comparison, difference, title)

    def _repr_html_(self) -> str:
        from . import report

        return report.cell(self.graph, self)

    def __str__(self) -> str:
        return self.text()

    def to_json(self) -> str:
        """A document with the fields of this object. `graph` is the document of the fused graph (docs/ir.md), which has the edges."""
        names = [f.name for f in fields(self) if f.name not in ("graph", "unfused", "parts")]
        head = {"schema": "opaque.explanation", "version": 1}
        body = {name: getattr(self, name) for name in names}
        body["parts"] = [
            {"reason": p.reason, "line": p.line, "times": p.times, "seconds": p.seconds}
            for p in self.parts
        ]
        return json.dumps(head | body | {"graph": json.loads(self.graph.to_json())}, indent=1)

    def _summary(self) -> str:
        count = sum(k["kind"] != "extern" for k in self.kernels)
        compiled = sum(k["compile_seconds"] for k in self.kernels)
        extern = len(self.kernels) - count
        return (
            f"{count} kernels, {extern} extern calls, {summary.seconds_text(self.seconds)} running, "
            f"{summary.seconds_text(compiled)} compiling; {summary.bytes_text(self.bytes_moved)} moved, "
            f"{summary.bytes_text(self.bytes_saved)} saved by fusion"
        )

    @property
    def part(self) -> str:
        """Which part of the function this is, in words; "" if it did not run in parts."""
        if not self.parts:
            return ""
        if len(self.parts) == 1:
            return f"all of it ran when a value was read: {self.reason} at {self.line}"
        number = next(i for i, part in enumerate(self.parts, 1) if part is self)
        because = f"{self.reason} at {self.line}" if self.reason else "the end of the function"
        return (
            "the function read values on the way, and ran in parts: "
            f"this is part {number} of {len(self.parts)}, because of {because} (.parts has each)"
        )

    def _part_table(self) -> str:
        """The parts of the function."""
        if len(self.parts) == 1:
            return self.part
        number = next(i for i, part in enumerate(self.parts, 1) if part is self)
        whole = sum(part.times * part.seconds for part in self.parts)
        rows = [
            (
                f"{i}{' (this)' if part is self else ''}",
                part.times,
                summary.seconds_text(part.seconds),
                f"{100 * part.times * part.seconds / whole:.0f}%" if whole else "",
                len(part.kernels),
                part.reason or "end of the function",
                part.line,
            )
            for i, part in enumerate(self.parts, 1)
        ]
        first = max(0, min(number - _PARTS // 2, len(rows) - _PARTS))
        header = ("part", "times", "each", "share", "launches", "because of", "source")
        text = summary.table(header, rows[first : first + _PARTS])
        if len(rows) > _PARTS:
            text += f"\n... {len(rows) - _PARTS} more"
        return f"{self.part}\n{text}"

    def __repr__(self) -> str:
        return f"<Explanation: {len(self.kernels)} launches, {summary.bytes_text(self.bytes_saved)} saved>"


# ---- who keeps what


def _variable_name(tensor) -> str:
    """Name of a local or global variable of the calling program that is this tensor, or ""."""
    package = os.path.dirname(__file__)
    frame = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(package):
            for scope in (variables_of(frame), frame.f_globals):
                for name, value in list(scope.items()):
                    if value is tensor:
                        return name
        frame = frame.f_back
    return ""


def _keepers(pending: list, names: dict, allocated: int) -> list:
    """Names what holds each of the tensors, which were pending before the run, and counts what no
    Python object holds. `names`: id of a tensor to its name, "" for one not worth a row."""
    gradients = {
        id(t.grad)
        for t in objects_of(torch.Tensor)
        if is_opaque(t) and t.is_leaf and t.grad is not None
    }
    rows, seen, total = [], set(), 0
    for tensor in pending:
        cell = _C.cell_id(tensor)
        if cell in seen or _C.is_pending(tensor):
            continue
        seen.add(cell)
        size = tensor.numel() * tensor.element_size()
        if id(tensor) in names:
            what = names[id(tensor)]
        elif id(tensor) in gradients:
            what = ".grad"
        elif isinstance(tensor, torch.nn.Parameter):
            what = "parameter"
        else:
            name = _variable_name(tensor)
            what = f"variable {name}" if name else "python object"
        if not what:
            continue
        total += size
        rows.append((what, f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}", size))
    rest = _C.memory_allocated() - allocated - total
    if rest > 4096:
        rows.append(("saved for backward, or held by other code", "", rest))
    return rows


def _names(run, inputs: Names) -> dict:
    """Names of a function's results. What it returned shares its value with our own copy of it."""
    if run is None:
        return {}
    names = {id(t): "" for t in run.returned + run.held}
    cells = {_C.cell_id(t): name for name, t in reversed(inputs.tensors) if is_opaque(t)}
    for cell, t in zip(run.cells, run.mutated, strict=True):
        names[id(t)] = cells.get(cell, "written")
    return names | {id(t): "returned" for t in tree_leaves(run.raw) if is_opaque(t)}


def explain(t_or_fn, *args, show: bool = True, **kwargs) -> Explanation:
    """Runs what is pending for the outputs, timed launch by launch, and prints on one screen: a line for equal kernels, the
    dearest first (name from their ops, shape, time, share, bytes, GB/s or GFLOP/s, compiled or cached, module, source lines),
    totals by kind and module, what did not fuse, why and what it costs, bytes saved, and who keeps the values that were stored.
    A tensor is computed by this, a function runs on snapshots (see torch_opaque.inspect), and again (up to twice) if that was a cold run:
    the times are those of the last, what was planned and compiled is the first's. Of one that reads values on the way (.item(),
    .cpu(), print) the part that takes longest is shown, with a table of all. Arguments but `show` are the
    function's. `show=False`: returns the Explanation without printing it.
    """
    result = _look(t_or_fn, args, kwargs)
    if not is_opaque(t_or_fn) and callable(t_or_fn):
        result = _warmed(result, lambda: _look(t_or_fn, args, kwargs))
    if show:
        print(result.text())
    return result


def _look(t_or_fn, args: tuple, kwargs: dict) -> Explanation:
    """One run."""
    from .inspect import held_by, outputs_of
    from .watch import Runs

    inputs = Names(t_or_fn, args, kwargs)
    with inputs.scopes(), ExitStack() as stack:
        with Runs(inputs).watched() as runs:
            tensors, run = stack.enter_context(outputs_of(t_or_fn, args, kwargs))
        tensors = tensors + held_by(run)
        graph = read(_C.Inspection(tensors, inputs.tensors), "fused")
        bytes_unfused = _C.unfused_bytes(tensors)
        pending = [t for t in objects_of(torch.Tensor) if _is_ours(t) and _C.is_pending(t)]
        names = _names(run, inputs)
        allocated, reserved = _C.memory_allocated(), _C.memory_reserved()
        _C.report_begin()
        try:
            _C.materialize(tensors, "inspect")
        finally:
            report = _C.report_end()
        result = Explanation(
            kernels=_with_modules(report["launches"], graph, roofline(torch.get_num_threads())),
            unfused=summary.ranked(graph.unfused),
            graph=graph,
            grouping=not _C.get_modes() & settings.UNFUSED,
            bytes_unfused=bytes_unfused,
            keepers=_keepers(pending, names, allocated),
            runs=report["runs"],
            machine=roofline(torch.get_num_threads()),
            bytes_new=max(0, _C.memory_reserved() - reserved),
        )
    return _dearest([run.explanation() for run in runs.kinds if run.launches], result)


def _warmed(first: Explanation, look) -> Explanation:
    """A later run, with what the first had to plan and compile for it: the second, or the third if the second still took new memory, as
    for packed operands. The first, if the function does not do the same again, because its arguments were pending, it draws shapes or it raised."""
    befores, last = first.parts or [first], first
    for _ in range(2):
        if not any(part.cold for part in last.parts or [last]):
            break
        try:
            last = look()
        except Exception:  # what it reads is used up, as an iterator
            return first
        afters = last.parts or [last]
        if _launched(afters) != _launched(befores):
            return first
        for before, after in zip(befores, afters, strict=True):
            after.runs, after.warm = before.runs, after.bytes_new <= after.bytes_moved // 16
            for cold, warm in zip(before.kernels, after.kernels, strict=True):
                warm |= {key: cold[key] for key in ("fresh", "compile_seconds")}
    return last


def _launched(parts: list) -> list:
    return [[(k["name"], k["shape"]) for k in part.kernels] for part in parts]


def _dearest(before: list, end: Explanation) -> Explanation:
    """Of the parts of a function, each of which gets to know the others."""
    if not before:
        return end
    parts = [*before, end] if end.kernels else before
    for part in parts:
        part.parts = parts
    return max(parts, key=lambda part: part.times * part.seconds)


@cache
def roofline(threads: int) -> dict:
    """The peaks of this machine for kernels on that many threads, which are those there are now."""
    return _C.roofline()


def _with_modules(launches: list, graph, machine: dict) -> list:
    """A launch is the kernels of the graph that have its number; `lines` are those of this graph, not of the first that had the plan."""
    kernels = defaultdict(list)
    for kernel in graph.kernels:
        kernels[kernel.launch].append(kernel)
    for i, launch in enumerate(launches):
        launch["module"] = summary.fold([k.module for k in kernels[i]]) if kernels[i] else ""
        launch["lines"] = " ".join(dict.fromkeys(line for k in kernels[i] for line in k.lines))
        launch["libraries"] = list(dict.fromkeys(x for k in kernels[i] for x in k.libraries))
        extern = launch["kind"] == "extern"
        launch["roof_seconds"] = None if extern else summary.roof_seconds(launch, machine)
    return launches


def _is_ours(tensor) -> bool:
    """An opaque tensor with values: not a FakeTensor or another subclass with its own dispatch."""
    return is_opaque(tensor) and type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
