"""compare(): the same function fused, unfused and eager, timed alike, with the values compared."""

import statistics
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch

from . import _C, modes
from .snapshot import PythonState, recorded, timed
from .summary import bytes_text, seconds_text, table

_TURN_SECONDS = 0.02
_MODES = {"fused": nullcontext, "unfused": modes.unfused, "eager": modes.eager}


@dataclass
class Row:
    """One way of running. Seconds are the median of warm runs; compile_seconds are those of the
    first run; kernels and bytes of one warm run. Differences are against the fused run: the largest
    absolute one, NaN where one side alone is NaN."""

    mode: str
    seconds: float
    compile_seconds: float
    kernels: int
    bytes: int
    max_difference: float
    same_bits: bool


@dataclass
class Comparison:
    """Rows by mode, the fused one last."""

    rows: list

    def text(self) -> str:
        """The table as compare() prints it."""
        fused = self.rows[-1].seconds
        rows = [
            (
                r.mode,
                seconds_text(r.seconds),
                f"{r.seconds / fused:.2f}x" if fused else "",
                seconds_text(r.compile_seconds),
                r.kernels,
                bytes_text(r.bytes),
                f"{r.max_difference:.3g}",
                "yes" if r.same_bits else "no",
            )
            for r in self.rows
        ]
        return table(
            ("mode", "time", "of fused", "compile", "kernels", "bytes", "max diff", "same bits"),
            rows,
        )

    def __getitem__(self, mode: str) -> Row:
        return next(r for r in self.rows if r.mode == mode)

    def __repr__(self) -> str:
        return (
            f"<Comparison: {', '.join(f'{r.mode} {seconds_text(r.seconds)}' for r in self.rows)}>"
        )


def _call(fn, args, state) -> list:
    """One call on snapshots, all outputs computed: the outputs."""
    with recorded(fn, args, state) as run:
        _C.materialize(run.outputs, "inspect")
        return run.outputs


def _warm(mode: str, fn, args, state) -> tuple:
    """Two calls, which compile and count: (Row without times and differences, outputs on the CPU)."""
    with _MODES[mode]():
        before = _C.stats()
        values = [t.cpu() for t in _call(fn, args, state)]
        first = _C.stats()
        _call(fn, args, state)
        warm = _C.stats()
    moved = sum(warm[k] - first[k] for k in ("bytes_read", "bytes_written"))
    row = Row(
        mode=mode,
        seconds=0.0,
        compile_seconds=first["compile_seconds"] - before["compile_seconds"],
        kernels=warm["kernels_run"] - first["kernels_run"],
        bytes=moved,
        max_difference=0.0,
        same_bits=True,
    )
    return row, values


def _time(rows: list, fn, args, state, repeat: int) -> None:
    """Fills in the seconds. The modes take turns, so that a machine that is busy for a while is it for all."""
    times = {row.mode: [] for row in rows}
    for _ in range(repeat):
        for row in rows:
            with _MODES[row.mode]():
                times[row.mode] += timed(fn, args, state, _TURN_SECONDS)
    for row in rows:
        row.seconds = statistics.median(times[row.mode])


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True if two dense CPU tensors agree in dtype, shape and every bit."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    # A lone element may keep a stride that view() refuses: copied into fresh rows.
    a, b = (torch.empty(x.numel(), dtype=x.dtype).copy_(x.reshape(-1)) for x in (a, b))
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def max_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest absolute difference of two CPU tensors of one shape; equal infinities and two NaN differ by 0."""
    if a.shape != b.shape:
        return float("inf")
    wide = torch.complex128 if a.is_complex() else torch.float64
    a, b = a.to(wide), b.to(wide)
    equal = (a == b) | ((a != a) & (b != b))
    gap = torch.where(equal, torch.zeros((), dtype=torch.float64), (a - b).abs())
    return gap.max().item() if gap.numel() else 0.0


def compare(
    fn, *args, vs=("eager", "unfused"), repeat: int = 5, show: bool = True, **kwargs
) -> Comparison:
    """Times fn(*args, **kwargs) fused and in the modes of `vs` ("eager": each op at once; "unfused": one
    kernel per op), and says how far the values agree. Compilation is taken by a warm-up; then the
    modes take turns, `repeat` times, each a loop of calls with a synchronize() behind each. The function runs on snapshots, with equal random numbers in
    every mode. Prints the table unless `show=False`.

    Raises ValueError for an unknown mode, TypeError if `fn` is no function.
    """
    if not callable(fn) or isinstance(fn, torch.Tensor):
        raise TypeError(f"compare() takes a function, got {type(fn).__name__}")
    unknown = [mode for mode in vs if mode not in _MODES]
    if unknown:
        raise ValueError(f"vs={unknown[0]!r}: expected some of {', '.join(_MODES)}")
    fn, state = partial(fn, **kwargs), PythonState()
    fused, reference = _warm("fused", fn, args, state)
    rows = []
    for mode in vs:
        row, values = _warm(mode, fn, args, state)
        pairs = list(zip(reference, values, strict=True))
        row.same_bits = all(same_bits(a, b) for a, b in pairs)
        row.max_difference = max((max_difference(a, b) for a, b in pairs), default=0.0)
        rows.append(row)
    result = Comparison([*rows, fused])
    _time(result.rows, fn, args, state, repeat)
    if show:
        print(result.text())
    return result
