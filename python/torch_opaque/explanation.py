"""explain(): runs something once with every launch timed, and says what was fused, what was not,
why, and who keeps what."""

import os
import sys
from dataclasses import dataclass, field

import torch
from torch.utils._pytree import tree_leaves

from . import _C
from .graphs import Graph, read
from .naming import Names, variables_of
from .snapshot import is_opaque, objects_of


def seconds_text(seconds: float) -> str:
    """Three digits and a unit: "12.3 us", "4.56 ms", "1.20 s"."""
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.2f} us"


def bytes_text(count: int) -> str:
    """Decimal units, as in GB/s: "512 B", "1.50 MB"."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(count) >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count} B"


def table(header: tuple, rows: list) -> str:
    """Columns as wide as their widest cell, the first left-aligned."""
    cells = [tuple(map(str, row)) for row in [header, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = []
    for row in cells:
        line = "  ".join(
            cell.ljust(width) if i in (0, len(row) - 1) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append(line.rstrip())
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


@dataclass
class Explanation:
    """What one run was. `kernels`: a dict per launch, in order; `graph`: the fused Graph; `unfused`: its Edges;
    `keepers`: (what keeps it, type, bytes) per value stored."""

    kernels: list
    unfused: list
    graph: Graph
    bytes_unfused: int
    keepers: list = field(default_factory=list)

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written by the launches."""
        return sum(k["bytes_read"] + k["bytes_written"] for k in self.kernels)

    @property
    def bytes_saved(self) -> int:
        """What one kernel per op would have moved, less what was moved."""
        return max(0, self.bytes_unfused - self.bytes_moved)

    def text(self) -> str:
        """The report as explain() prints it."""
        parts = [self._kernel_table(), self._summary()]
        if self.unfused:
            parts.append("not fused:\n" + "\n".join(f"  {edge}" for edge in self.unfused))
        if self.keepers:
            rows = [(what, kind, bytes_text(size)) for what, kind, size in self.keepers]
            parts.append(table(("kept by", "value", "bytes"), rows))
        return "\n\n".join(parts)

    def _kernel_table(self) -> str:
        rows = []
        for k in self.kernels:
            moved = k["bytes_read"] + k["bytes_written"]
            cache = "compiled " + seconds_text(k["compile_seconds"]) if k["fresh"] else "cached"
            name = k["name"]
            if k["kind"] == "extern":
                name += " (extern: no native lowering)"
            if k["rows"] > 1:
                name += f" x {k['rows']}"
            rows.append(
                (
                    name,
                    k["shape"],
                    seconds_text(k["seconds"]),
                    bytes_text(moved),
                    _rate(k),
                    cache,
                    k["lines"],
                )
            )
        return table(("kernel", "shape", "time", "bytes", "rate", "cache", "source"), rows)

    def _summary(self) -> str:
        count = sum(k["kind"] != "extern" for k in self.kernels)
        spent = sum(k["seconds"] for k in self.kernels)
        compiled = sum(k["compile_seconds"] for k in self.kernels)
        extern = len(self.kernels) - count
        return (
            f"{count} kernels, {extern} extern calls, {seconds_text(spent)} running, "
            f"{seconds_text(compiled)} compiling; {bytes_text(self.bytes_moved)} moved, "
            f"{bytes_text(self.bytes_saved)} saved by fusion"
        )

    def __repr__(self) -> str:
        return f"<Explanation: {len(self.kernels)} launches, {bytes_text(self.bytes_saved)} saved>"


def _rate(launch: dict) -> str:
    """GFLOP/s where arithmetic is the work, else GB/s."""
    if launch["seconds"] <= 0:
        return ""
    moved = launch["bytes_read"] + launch["bytes_written"]
    if launch["flops"] > 8 * moved:
        return f"{launch['flops'] / launch['seconds'] / 1e9:.3g} GFLOP/s"
    return f"{moved / launch['seconds'] / 1e9:.3g} GB/s"


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


def _names(run) -> dict:
    """Names of a function's results. What it returned shares its value with our own copy of it."""
    if run is None:
        return {}
    names = {id(t): "" for t in run.returned + run.held} | {id(t): "written" for t in run.mutated}
    return names | {id(t): "returned" for t in tree_leaves(run.raw) if is_opaque(t)}


def explain(t_or_fn, *args, show: bool = True) -> Explanation:
    """Runs what is pending for the outputs, timed launch by launch, and prints a line per kernel
    (name from its ops, shape, time, bytes, GB/s or GFLOP/s, compiled or cached, source lines), then
    what did not fuse and why, bytes saved, and who keeps the values that were stored. A tensor is
    computed by this, a function runs on snapshots (see torch_opaque.inspect). `show=False`: returns
    the Explanation without printing it.
    """
    from .inspect import held_by, outputs_of

    inputs = Names(t_or_fn, args, {})
    with inputs.scopes(), outputs_of(t_or_fn, args) as (tensors, run):
        tensors = tensors + held_by(run)
        graph = read(_C.Inspection(tensors, inputs.tensors), "fused")
        bytes_unfused = _C.unfused_bytes(tensors)
        pending = [t for t in objects_of(torch.Tensor) if _is_ours(t) and _C.is_pending(t)]
        names = _names(run)
        allocated = _C.memory_allocated()
        _C.report_begin()
        try:
            _C.materialize(tensors, "inspect")
        finally:
            report = _C.report_end()
        result = Explanation(
            kernels=report["launches"],
            unfused=graph.unfused,
            graph=graph,
            bytes_unfused=bytes_unfused,
            keepers=_keepers(pending, names, allocated),
        )
    if show:
        print(result.text())
    return result


def _is_ours(tensor) -> bool:
    """An opaque tensor with values: not a FakeTensor or another subclass with its own dispatch."""
    return is_opaque(tensor) and type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
