"""compare(): the same function fused, unfused, eager, new to the device, on the CPU and compiled by TorchInductor, timed alike, with the
values compared."""

import csv
import io
import json
import math
import warnings
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from functools import partial

import torch
from torch.utils import _pytree

from . import _C
from .first_difference import FirstDifference, first_difference
from .naming import Names
from .numerics import distances, same_bits
from .progress import progress
from .slips import meant
from .snapshot import PythonState
from .summary import bytes_text, pattern, seconds_text, table
from .turns import Spread, take_turns
from .twin import Twin
from .ways import (
    CPU,
    FORGETFUL,
    Forgetful,
    OnCpu,
    OnDevice,
    live_tensors,
    on_the_cpu,
    values_of,
)

VERSION = 1
PEERS = ("eager", "unfused", *FORGETFUL, *CPU)
_SECONDS = 20.0  # after these there are no more turns than an interval needs
_OUTPUTS = 8  # rows shown


@dataclass
class Output:
    """One output of one way. `difference`: the largest absolute one from the fused run; `relative`: that, by the largest number
    of the fused run; `ulps`: the largest one in units in the last place. `error`, `error_relative`, `error_ulps`: the same,
    from the function in f64 on the CPU. None where there is nothing to compare with."""

    name: str
    dtype: str
    shape: list
    same_bits: bool | None = None
    difference: float | None = None
    relative: float | None = None
    ulps: float | None = None
    error: float | None = None
    error_relative: float | None = None
    error_ulps: float | None = None


@dataclass
class Row:
    """One way of running. `seconds` of a call: median over the turns, `low` and `high` its interval of 95 %; `ratio`, `ratio_low`,
    `ratio_high`: by the fused time of the same turn. `warm_up_seconds` of the first calls, `compile_seconds` in them; of a "first call" and
    a "new shape" those of one call, in which it is part of its time. `kernels`, `bytes` of a warm call and `bytes_peak`, the memory it takes
    besides what was live, are None on the CPU. `outputs`: see Output."""

    mode: str
    seconds: float = 0.0
    low: float = 0.0
    high: float = 0.0
    ratio: float = 1.0
    ratio_low: float = 1.0
    ratio_high: float = 1.0
    compile_seconds: float = 0.0
    warm_up_seconds: float = 0.0
    kernels: int | None = None
    bytes: int | None = None
    bytes_peak: int | None = None
    outputs: list = field(default_factory=list)
    first_difference: FirstDifference | None = None

    @property
    def same_bits(self) -> bool | None:
        """Of all outputs; None where they are not comparable."""
        known = [o.same_bits for o in self.outputs if o.same_bits is not None]
        return all(known) if known or not self.outputs else None

    @property
    def max_difference(self) -> float | None:
        """The largest of all outputs."""
        known = [o.difference for o in self.outputs if o.difference is not None]
        nan = next((x for x in known if x != x), None)
        return nan if nan is not None else max(known, default=None if self.outputs else 0.0)


_HEADER = (
    "mode",
    "time",
    "95%",
    "of fused",
    "compile",
    "kernels",
    "bytes",
    "peak",
    "max diff",
    "same bits",
)
_NUMBERS = tuple(n for n in Row.__dataclass_fields__ if n not in ("outputs", "first_difference"))


def _or_dash(x, text) -> str:
    return "-" if x is None else text(x)


@dataclass
class Comparison:
    """Rows by mode, the fused one last; `notes`: what could not be compared, and why."""

    rows: list
    notes: list = field(default_factory=list)

    def _cells(self, row: Row) -> tuple:
        percent = 50 * (row.ratio_high - row.ratio_low)
        ratio = f"{row.ratio:.2f}x" + (f" +-{percent:.0f}%" if row.mode != "fused" else "")
        return (
            row.mode,
            seconds_text(row.seconds),
            f"{seconds_text(row.low)} - {seconds_text(row.high)}",
            ratio,
            seconds_text(row.compile_seconds),
            _or_dash(row.kernels, str),
            _or_dash(row.bytes, bytes_text),
            _or_dash(row.bytes_peak, bytes_text),
            _or_dash(row.max_difference, "{:.3g}".format),
            {True: "yes", False: "no", None: "-"}[row.same_bits],
        )

    def text(self) -> str:
        """The tables as compare() prints them."""
        parts = [table(_HEADER, list(map(self._cells, self.rows)))]
        parts.append(_output_table(self.rows))
        firsts = [
            f"{row.mode} differs from fused first at {row.first_difference.text()}"
            for row in self.rows
            if row.first_difference
        ]
        return "\n\n".join(filter(None, [*parts, "\n".join(firsts), "\n".join(self.notes)]))

    def to_dict(self) -> dict:
        """What to_json() writes."""
        rows = [
            asdict(r) | {"same_bits": r.same_bits, "max_difference": r.max_difference}
            for r in self.rows
        ]
        head = {"schema": "opaque.comparison", "version": VERSION}
        return _finite(head | {"rows": rows, "notes": self.notes})

    def to_json(self) -> str:
        """A document with the fields of Row, Output and FirstDifference, numbers that JSON does not have as the strings "nan", "inf" and
        "-inf". from_json() reads it."""
        return json.dumps(self.to_dict(), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Comparison":
        """Raises ValueError for what is no comparison of this version."""
        try:
            document = json.loads(text)
            if document.get("schema") != "opaque.comparison" or document.get("version") != VERSION:
                raise ValueError(f"expected a comparison of version {VERSION}")
            return cls([_row_of(row) for row in document["rows"]], document["notes"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a comparison: {error!r}") from error

    def to_csv(self) -> str:
        """A line for each way, without its outputs; times in seconds."""
        out = io.StringIO()
        names = (*_NUMBERS, "same_bits", "max_difference")
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([getattr(row, name) for name in names] for row in self.rows)
        return out.getvalue()

    def to_markdown(self) -> str:
        """The first table of text()."""
        lines = [
            _HEADER,
            ["---"] * len(_HEADER),
            *map(self._cells, self.rows),
        ]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    _repr_markdown_ = to_markdown  # in a notebook

    def __getitem__(self, mode: str) -> Row:
        found = next((r for r in self.rows if r.mode == mode), None)
        if found is None:
            raise KeyError(f"{mode!r}: there are {', '.join(r.mode for r in self.rows)}")
        return found

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return (
            f"<Comparison: {', '.join(f'{r.mode} {seconds_text(r.seconds)}' for r in self.rows)}>"
        )


def _finite(x):
    if isinstance(x, dict):
        return {key: _finite(value) for key, value in x.items()}
    if isinstance(x, list):
        return [_finite(value) for value in x]
    return str(x) if isinstance(x, float) and not math.isfinite(x) else x


def _made(kind, document: dict):
    """A Row, an Output or a FirstDifference of what _finite() made of it. Other keys are passed over."""
    values = {name: document[name] for name in kind.__dataclass_fields__}
    for name, annotated in kind.__annotations__.items():
        if "float" in str(annotated) and values[name] is not None:
            values[name] = float(values[name])
    return kind(**values)


def _row_of(document: dict) -> Row:
    row = _made(Row, document)
    row.outputs = [_made(Output, output) for output in row.outputs]
    row.first_difference = row.first_difference and _made(FirstDifference, row.first_difference)
    return row


def _number(x) -> str:
    return _or_dash(x, "{:.3g}".format)


_FIGURES = ("difference", "relative", "ulps", "error", "error_relative", "error_ulps")


def _size(o: Output) -> tuple:
    """Those with NaN first, then by what is relative to the largest number: ulps are many near 0."""
    return tuple(math.inf if x != x else x or 0.0 for x in (o.relative, o.error_relative))


def _output_table(rows: list) -> str:
    """The outputs that differ, and how far those of the fused run are from f64: a row for those of equal layers, the worst of them."""
    groups = defaultdict(list)
    for row in rows:
        for o in row.outputs:
            if row.mode == "fused" or o.same_bits is False:
                groups[row.mode, pattern(o.name), o.dtype].append(o)
    if not groups or not any(
        o.same_bits is False or o.error is not None for g in groups.values() for o in g
    ):
        return ""
    cells = []
    for (mode, name, dtype), group in groups.items():
        worst = max(group, key=_size)
        label = name + f" x {len(group)}" if len(group) > 1 else worst.name
        figures = map(_number, (getattr(worst, f) for f in _FIGURES))
        cells.append((_size(worst), (label, mode, dtype, *figures, "")))
    cells.sort(key=lambda c: c[0], reverse=True)
    titles = ("max diff", "relative", "ulps", "from f64", "relative", "ulps", "")
    header = ("output", "mode", "dtype", *titles)
    text = table(header, [c for _, c in cells[:_OUTPUTS]])
    rest = len(cells) - _OUTPUTS
    return text + (f"\n... {rest} more rows" if rest > 0 else "")


# ---- comparing


def _on_device(args, kwargs, names: Names):
    """Arguments on the CPU are copied to the device, with a word. Numbers stay: they mix with any device."""
    moved = []

    def move(x):
        if not isinstance(x, torch.Tensor) or x.device.type != "cpu" or x.dim() == 0:
            return x
        moved.append(next((name for name, t in names.tensors if t is x), "an argument"))
        return x.detach().to("opaque").requires_grad_(x.requires_grad)

    found = _pytree.tree_map(move, (args, kwargs))
    if moved:
        warnings.warn(
            f"compare(): {', '.join(moved)} on the CPU: copies on device opaque are used",
            stacklevel=3,
        )
        return found
    return args, kwargs


def _outputs(values: dict, fused: dict, exact: dict, comparable: bool) -> list:
    found = []
    for name, right in fused.items():
        value = values.get(name)
        output = Output(name, str(right.dtype).removeprefix("torch."), list(right.shape))
        if comparable and value is not None:
            output.same_bits = same_bits(value, right)
            output.difference, output.relative, output.ulps = distances(value, right)
        if value is not None and name in exact:
            output.error, output.error_relative, output.error_ulps = distances(value, exact[name])
        found.append(output)
    return found


class _Subject:
    """What is compared: the function, its names, all that it may change, and its copies on the CPU."""

    def __init__(self, fn, args, kwargs, vs, reference: bool):
        torch.opaque.synchronize()  # what is pending is no part of it
        self.names = Names(fn, args, kwargs)
        self.fn, self.args = partial(fn, **kwargs) if kwargs else fn, args
        self.name_of = {id(t): name for name, t in reversed(self.names.tensors)}
        self.tensors = live_tensors(self.names.tensors)
        self.contents, self.notes = _C.Contents(self.tensors), []
        self.reference = reference
        self.state = PythonState()
        self.twin = self._twin(double=False) if set(vs) & set(CPU) else None
        self.fresh = PythonState() if self.twin else None

    def _twin(self, double: bool) -> tuple:
        twin = Twin(double)
        return twin, twin(self.fn, "the function"), tuple(twin(x) for x in self.args)

    def way(self, mode: str, written=None):
        if mode not in CPU:
            kind = Forgetful if mode in FORGETFUL else OnDevice
            return kind(mode, self.fn, self.args, self.state, self.contents, written)
        twin, fn, args = self.twin
        return OnCpu(mode, fn, args, twin, self.state, self.fresh, written)

    def exact(self, written) -> dict:
        """The outputs in f64 on the CPU; none, with a note, where the function does not run there."""
        if not self.reference:
            return {}
        before = torch.get_default_dtype()
        try:
            twin, fn, args = self._twin(double=True)
            recorded = _C.stats()["ops_recorded"]
            torch.set_default_dtype(torch.float64)
            with on_the_cpu():
                values = values_of(fn(*args), written, twin.made)
            if _C.stats()["ops_recorded"] > recorded:
                raise TypeError("it still computes on the device")
            return values
        except Exception as error:  # of any function
            self.notes.append(
                f"no errors against f64: the function does not run on CPU copies: {error}"
            )
            return {}
        finally:
            torch.set_default_dtype(before)
            self.state.restore()

    def draws(self) -> bool:
        """Does a call use the device's random numbers, which are not the CPU's?"""
        before = _C.default_generator().get_state()
        with self.way("fused").turn():
            self.fn(*self.args)
            return not torch.equal(before, _C.default_generator().get_state())


def compare(
    fn,
    *args,
    vs=("eager", "unfused"),
    repeat: int = 10,
    reference: bool = True,
    show: bool = True,
    **kwargs,
) -> Comparison:
    """Times fn(*args, **kwargs) fused and in the ways of `vs`, and says how far the values agree. Prints the tables unless `show=False`.

    vs         "eager": each op at once | "unfused": one kernel per op
               | "first call": as in a process that begins: no plan, and no code in memory | "new shape": no plan, as for sizes that
               never came; kernels are there
               | "cpu": a copy of the function on CPU tensors
               | "inductor": that copy, compiled by TorchInductor | "inductor-max": with max-autotune, and weights as constants
               where no gradient is wanted
    repeat     turns of each way, `Row.seconds` is the median of their times
    reference  also compare with the copy in f64 on the CPU

    The ways take turns in one process, each turn a loop of calls with a torch.opaque.synchronize() behind each. Everything is put
    back behind each turn (see torch_opaque.snapshot), and random numbers are equal in every way on the device. Other arguments are
    the function's; tensors among them that are on the CPU are copied to the device, with a warning.

    Fused, unfused and eager are by plans, which are made for the comparison. New graphs of a program run in pieces first, as they do in
    "first call" and "new shape" (docs/compare.md). Forgetting is no part of their time, but what the process had planned is planned
    again behind them.

    Raises ValueError for an unknown way, TypeError if `fn` is no function, computes nothing on the device, or cannot be copied.
    """
    if not callable(fn) or isinstance(fn, torch.Tensor):
        raise TypeError(f"compare() takes a function, got {type(fn).__name__}")
    vs = (vs,) if isinstance(vs, str) else tuple(dict.fromkeys(vs))
    unknown = [mode for mode in vs if mode not in PEERS]
    if unknown:
        hint = meant(unknown[0], PEERS)
        raise ValueError(f"vs={unknown[0]!r}: expected some of {', '.join(PEERS)}{hint}")
    if repeat < 1:
        raise ValueError(f"repeat={repeat}: expected a positive number")
    args, kwargs = _on_device(args, kwargs, Names(fn, args, kwargs))
    subject = _Subject(fn, args, kwargs, vs, reference)
    with progress() as say, warnings.catch_warnings():
        # A scheduler does not know that the copy of its optimizer counts steps.
        warnings.filterwarnings("ignore", "Seems like `optimizer.step", UserWarning)
        result = _compared(subject, vs, repeat, say)
    if show:
        print(result.text())
    return result


def _compared(subject: _Subject, vs: tuple, repeat: int, say) -> Comparison:
    ways, rows, written = [], {}, None
    for mode in ("fused", *vs):
        say(f"{mode}: first calls")
        way = subject.way(mode, written)
        ways.append(way)
        warm = way.warm(subject.name_of, subject.tensors)
        if mode == "fused":
            written, fused = way.written, warm.values
            drawn = subject.draws()
            exact = {} if drawn else subject.exact(written)
        comparable = not (drawn and mode in CPU)
        rows[mode] = Row(
            mode,
            compile_seconds=warm.compile_seconds,
            warm_up_seconds=warm.seconds,
            kernels=warm.kernels,
            bytes=warm.bytes,
            bytes_peak=warm.bytes_peak,
            outputs=_outputs(warm.values, fused, exact, comparable),
        )
        if mode in ("unfused", "eager") and not rows[mode].same_bits:
            say(f"{mode}: looking for the first difference")
            rows[mode].first_difference = first_difference(
                subject.fn, subject.args, subject.state, subject.names, mode
            )
    if drawn:
        subject.notes.append(
            "random numbers of the device are not those of the CPU: values are compared on the device alone"
        )
    times = take_turns(ways, repeat, _SECONDS, say)
    for mode, row in rows.items():
        spread = Spread.of(times[mode])
        ratio = Spread.of([a / b for a, b in zip(times[mode], times["fused"], strict=True)])
        row.seconds, row.low, row.high = spread.median, spread.low, spread.high
        row.ratio, row.ratio_low, row.ratio_high = ratio.median, ratio.low, ratio.high
    return Comparison([*(rows[mode] for mode in vs), rows["fused"]], subject.notes)
