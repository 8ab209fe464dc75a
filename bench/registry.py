"""What a row is, and the table of all rows, which the modules of rows/ fill.

A row is a function that makes what is timed. Its kind says what it makes:

    call    (function, arguments): function(*arguments) is timed after a warm-up. The function may be a module: each engine then has
            a copy, of which the weights are constants.
    steps   (start, arguments): start(compiled, *arguments) makes a step, a function without arguments that changes state of its own
            and returns a tensor. `compiled` is what the engine does to a function or module: nothing, or torch.compile.
    once    the same, without gradients, and the first call is timed: an engine sees new shapes in it.
    first   what another row makes: its first call in a process of its own is timed, of eager and opaque.
    plan    a function of 0, 1, ..., which runs in other shapes each time: timed is how long a plan for known kernels takes.

Arguments are CPU tensors. Each engine gets copies.
"""

import dataclasses
import fnmatch
from collections.abc import Callable

KINDS = ("call", "steps", "once", "first", "plan")
ROWS = {}


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    make: Callable
    kind: str = "call"
    # The least median of eager / median of opaque, and for plans the most seconds: else ./dev bench fails.
    floor: float | None = None
    ceiling: float | None = None
    # What any program for the row does at least: memory read and written, f32 additions and multiplications.
    bytes: float | None = None
    flops: float | None = None
    working_set: float | None = None  # bytes that are read again and again; None: `bytes`
    # Of the largest value: how far a right result may be from the reference, beyond four times what eager is. None: by the dtype.
    tolerance: float | None = None
    # What is right, of the arguments: of integers, which eager does not compute on doubles. None: what eager gives.
    exact: Callable | None = None
    # Compared by the mean difference: a last bit decides some elements.
    chaotic: bool = False
    # The same in JAX: function(jax, arrays...), the weights' dictionary before them if the row's is a module; for steps a start likewise.
    jax: Callable | None = None
    of: str | None = None  # the other row
    dynamic: bool = False  # Inductor is told that shapes change


def row(name=None, **options):
    """Registers the decorated function as a row, by default under its own name."""

    def register(make):
        key = name or make.__name__
        assert key not in ROWS, key
        assert options.get("kind", "call") in KINDS
        ROWS[key] = Row(key, make, **options)
        return make

    return register


def select(patterns):
    """The names of the rows that match one of the patterns (`mm_*`), in the order of the table; all if there are none."""
    patterns = patterns or ["*"]
    for pattern in patterns:
        if not fnmatch.filter(ROWS, pattern):
            raise SystemExit(f"bench: no row matches {pattern!r}; rows are: {' '.join(ROWS)}")
    return [name for name in ROWS if any(fnmatch.fnmatchcase(name, p) for p in patterns)]
