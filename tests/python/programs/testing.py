"""What the tests of random programs share: how many run, and what is printed of one that fails."""

import os

from .shrink import shrink

# Programs that still differ, and why. One that no longer does is a failure too: then its line goes.
_ONE = "PyTorch takes one element, seen with other strides, for a partial overlap"
EXPECTED = {  # kind: {seed: why it differs}
    "aliasing": {
        400: _ONE,
        784: "which of 0 and -0 is the largest number is the CPU's choice",
        2800: "PyTorch's -z has other signs of zero where z is a slice",
        2993: "the stride of a dimension of one element",
        4891: "a wrong index in inference mode, where an earlier error is none: told where a value is read",
        6004: _ONE,
    },
    "nets": {
        557: "training diverges until products of float64 overflow, which a fused multiply-add does not see"
    },
    "dtypes": {1343: "conj_physical(out=) of unsigned numbers, which the CPU has no kernel for"},
}
FULL = bool(os.environ.get("OPAQUE_TEST_FULL"))


def check_block(kind, block: int, quick: int, full: int) -> None:
    """Runs seeds of `block`, `quick` of them or `full`; fails with the smallest program that fails as the first bad one does."""
    count = full if FULL else quick
    check = kind.check if FULL else kind.check_some
    for seed in range(block * count, (block + 1) * count):
        program = kind.write(seed)
        found = check(program)
        reason = EXPECTED.get(program.kind, {}).get(seed)
        assert not reason or found, (
            f"{program.kind} {seed} is right now, but was expected to differ: {reason}"
        )
        if found and not reason:
            small = shrink(program, lambda p: alike(check(p), found), limit=200)
            raise AssertionError(small.script(f"{small.kind} {seed}: {check(small) or found}"))


def alike(one: str, other: str) -> bool:
    """True if two failures are of one sort: the same way of running, and both raised or neither."""
    same_way = one.split(":")[0] == other.split(":")[0]
    return bool(one) and same_way and ("raised" in one) == ("raised" in other)


def run_elsewhere(run_python, kind: str, block: int, quick: int, full: int, **environment) -> None:
    """A block in a process with other settings."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    text = f"""
import sys, warnings
sys.path.insert(0, {here!r})
from programs import {kind} as kind, testing
testing.check_block(kind, {block}, {quick}, {full})
"""
    run_python(text, **environment)
