"""explain(): runs something once with every launch timed, and says what was fused, what was not,
why, and who keeps what."""

import json
import time
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from functools import cache

import torch

from . import _C, settings, summary
from .graphs import Graph, read
from .keepers import Keepers, names_of
from .naming import Names
from .samples import Samples, signature, worst
from .snapshot import PythonState, is_opaque

_PARTS = 6  # rows shown
_RUNS, _SECONDS = 5, 5.0  # of a function, besides the first


@dataclass
class Explanation:
    """What one run was. `kernels`: a dict per launch, in order; `grouping`: False under unfused(); `graph`: the fused Graph; `unfused`: its Edges, in the order printed;
    `keepers`: (what keeps it, type, bytes) per value stored; `machine`: {"threads", "flops_per_second", "bandwidth": [(bytes, bytes per
    second), ...], "products": {"pairs", "pairs16", "i8": as many times as flops}}, the roofline, measured once; `runs`: of each run {"why": what tells it
    from the nearest plan, None if its plan was there, "kernels", "compiled", "outputs": values stored for the program, "unwatched": what
    runs of its graph did before somebody looked: {"kind": "plan", "pieces", ... (see `unwatched`), "ops", "runs_in_pieces", "each_seconds":
    how much dearer such a run is than one by a plan, "price_seconds": what planning takes}}; `bytes_new`:
    memory that it took from the system. Times are medians of the runs that were `watched`: "seconds" of a kernel, "low" and "high", the
    quartiles, and "worst"; `interrupted`: runs in which a kernel took half as long again as its threads were at work, as where another
    program had the processor; of it that work counts.
    The first run of a plan is `cold`: it touches its code and memory first, which is part of its times. Of a function that runs again,
    times are those of the later runs (`warm`); `runs` and what was compiled are the first's.

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
    watched: int = 1
    interrupted: int = 0
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
        planned = any(run["why"] is not None for run in self.runs)
        new = ["code"] if planned and not self.warm else []
        if self.bytes_new > (0 if new else self.bytes_moved // 16):
            new.append(f"{summary.bytes_text(self.bytes_new)} of new memory")
        if not new:
            return ""
        return f"these are times of a cold run, which touches {' and '.join(new)} first"

    def timed(self, samples: Samples) -> "Explanation":
        """With the medians of these runs. Returns itself."""
        self.interrupted = samples.apply(self.kernels)
        self.watched, self.warm = len(samples.runs), samples.warm
        return self

    @property
    def timing(self) -> str:
        """How its times were measured, in words; "" if they are those of one run."""
        if self.watched < 2:
            return ""
        text = f"times are medians of {self.watched} runs, +- is half of what lies between the quartiles"
        if self.interrupted and self.kernels:
            most = worst(self.kernels)
            times = summary.seconds_text(most["worst"]), summary.seconds_text(most["seconds"])
            text += (
                f"; {self.interrupted} of them {'was' if self.interrupted == 1 else 'were'} interrupted, as by another program "
                f"({most['name']} took {times[0]} once, not {times[1]})"
            )
        return text

    @property
    def why(self) -> list:
        """For each run, whether its plan was there, or what tells it from the nearest plan."""
        return [summary.run_text(run) for run in self.runs]

    @property
    def unwatched(self) -> list:
        """For each run, what runs of its graph do when nobody looks: by a plan or in pieces, and why. What is shown is always a plan."""
        return [summary.unwatched_text(run) for run in self.runs]

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
            "\n".join(filter(None, [self._summary(), self.timing, self.cold, *self._plans()])),
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
        parts += [
            f"kernel {f['kernel']} could not be made, its ops are a kernel each: {f['reason']}"
            for f in self.graph.fallbacks
        ]
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

    def _plans(self) -> list:
        return [line for both in zip(self.why, self.unwatched, strict=True) for line in both]

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


def explain(t_or_fn, *args, show: bool = True, **kwargs) -> Explanation:
    """Runs what is pending for the outputs, timed launch by launch, and prints on one screen: a line for equal kernels, the
    dearest first (name from their ops, shape, time, share, bytes, GB/s or GFLOP/s, compiled or cached, module, source lines),
    totals by kind and module, what did not fuse, why, what it costs and what can be done, bytes saved, and who keeps the values that were stored.
    What is shown is a run by a plan, which is made for it if there is none; a line says what runs of the graph did when nobody looked: by a
    plan or in pieces, and why.
    A tensor is computed by this, a function runs on snapshots (see torch_opaque.inspect), and five times more, so that its
    times are medians (fewer, if that takes more than 5 s); what was planned and compiled is the first run's. Of one that reads values on the way (.item(),
    .cpu(), print) the part that takes longest is shown, with a table of all. Arguments but `show` are the
    function's. `show=False`: returns the Explanation without printing it.
    """
    look = _Look(t_or_fn, args, kwargs)
    parts = look.first()
    if not is_opaque(t_or_fn) and callable(t_or_fn):
        look.repeat(parts)
    result = max(parts, key=lambda part: part.times * part.seconds)
    if show:
        print(result.text())
    return result


class _Look:
    """Runs of what is explained. `runs`: what a function runs on the way; `end`: Samples of what is run in the end."""

    def __init__(self, t_or_fn, args: tuple, kwargs: dict):
        from .watch import Runs

        self.looked_at = t_or_fn, args, kwargs
        self.inputs = Names(t_or_fn, args, kwargs)
        self.runs, self.end, self.launches, self.bytes_new = Runs(self.inputs), Samples(), [], 0

    @contextmanager
    def _recorded(self, state=None):
        """(tensors to compute, the snapshot.Run or None). `state`: see snapshot.recorded()."""
        from .inspect import held_by, outputs_of

        with self.inputs.scopes(), ExitStack() as stack:
            with self.runs.watched():
                tensors, run = stack.enter_context(outputs_of(*self.looked_at, state))
            yield tensors + held_by(run), run

    def _run(self, tensors: list) -> dict:
        """Computes them. Returns the report."""
        reserved = _C.memory_reserved()
        _C.report_begin()
        try:
            _C.materialize(tensors, "inspect")
        finally:
            report = _C.report_end()
        self.bytes_new = max(0, _C.memory_reserved() - reserved)
        self.launches = report["launches"]
        self.end.add(self.launches, _planned(report["runs"]))
        return report

    def first(self) -> list:
        """An Explanation for each part, each of which knows the others."""
        kept = Keepers()
        with self._recorded() as (tensors, run):
            graph = read(_C.Inspection(tensors, self.inputs.tensors), "fused")
            bytes_unfused = _C.unfused_bytes(tensors)
            candidates, names = kept.tensors(), names_of(run, self.inputs)
            machine = roofline(torch.get_num_threads())
            report = self._run(tensors)
            end = Explanation(
                kernels=_with_modules(report["launches"], graph, machine),
                unfused=summary.ranked(graph.unfused),
                graph=graph,
                grouping=not _C.get_modes() & settings.UNFUSED,
                bytes_unfused=bytes_unfused,
                keepers=kept.rows(candidates, names, self.inputs.modules),
                runs=report["runs"],
                machine=machine,
                bytes_new=self.bytes_new,
            )
        parts = [run.explanation() for run in self._ran]
        for part in parts:
            part.keepers = end.keepers
        if end.kernels or not parts:
            parts.append(end)
        for part in parts if len(parts) > 1 or parts[0] is not end else ():
            part.parts = parts
        return parts

    def repeat(self, parts: list) -> None:
        """Gives the parts the times of later runs, if the function does the same again: not if its arguments were pending, it draws shapes,
        or it raises because what it reads is used up, as an iterator is."""
        before, ran, first = self._done(), self._ran, signature(self.launches)
        begin, cold, count = time.perf_counter(), any(part.cold for part in parts), 0
        state = (
            PythonState() if callable(self.looked_at[0]) else None
        )  # each run leaves it as it was
        while count < _RUNS + cold and (count < 2 or time.perf_counter() - begin < _SECONDS):
            try:
                with self._recorded(state) as (tensors, _):
                    self._run(tensors)
            except Exception:
                return
            count += 1
            if self._done() != before or signature(self.launches) != first:
                return
        for part, run in zip(parts, ran, strict=False):
            part.timed(run.variants[signature(part.kernels)].samples)
        if self.launches:
            parts[-1].timed(self.end).bytes_new = self.bytes_new

    @property
    def _ran(self) -> list:
        return [run for run in self.runs.kinds if run.launches]

    def _done(self) -> list:
        """What the function was seen to run on the way."""
        return [set(run.variants) for run in self.runs.kinds]


def _planned(runs: list) -> bool:
    return any(run["why"] is not None for run in runs)


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
        products = summary.products_of(n for k in kernels[i] for n in k.nodes)
        launch["roof_seconds"] = None if extern else summary.roof_seconds(launch, machine, products)
    return launches
