"""Context managers over the calling thread's modes. They nest, and leave the thread as they found it.

Example::

    with torch_opaque.unfused():
        y = model(x).cpu()
"""

from contextlib import contextmanager

from . import _C
from .settings import EAGER, FORBID_SYNC, PLANNED, STRICT, UNFUSED


@contextmanager
def _mode(bit: int):
    before = _C.get_modes()
    _C.set_modes(before | bit)
    try:
        yield
    finally:
        _C.set_modes(before)


def eager():
    """Each op runs as soon as it is recorded, on its own: errors appear at their line. Acts when recording."""
    return _mode(EAGER)


def unfused():
    """Runs are the same simplified graph with grouping off: one kernel per op. Acts when running;
    bits are those of the fused run."""
    return _mode(UNFUSED)


def planned():
    """Every graph has its whole plan before it runs, also one that is new, for which a plan may not pay (OPAQUE_TIERS): what
    is measured and counted is then the fused graph. Acts when running; bits are those of any other run."""
    return _mode(PLANNED)


def forbid_sync():
    """A hidden run (`.item()`, `.cpu()`, `print`, a bound) raises RuntimeError naming the line.
    synchronize() and the run after optimizer.step() stay allowed: they are not hidden."""
    return _mode(FORBID_SYNC)


def strict():
    """An op without a native lowering, or one that must run at once outside the plan, raises
    NotImplementedError. Acts when recording."""
    return _mode(STRICT)
