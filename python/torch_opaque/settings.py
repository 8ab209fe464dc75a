"""The one table of environment variables. `OPAQUE_HELP=1` prints it when the package is imported.

Rows marked "core" are read by the C core or by build and test scripts and stand here for their
documentation; the others are applied here. A test compares the table with the names that appear in
the sources.
"""

import os
import sys
from dataclasses import dataclass

from .slips import meant

EAGER, UNFUSED, FORBID_SYNC, STRICT, PLANNED = 1, 2, 4, 8, 16


@dataclass(frozen=True)
class Setting:
    """One environment variable: its name, what it takes, what it is when unset, who reads it, what it does."""

    name: str
    values: str
    default: str
    reader: str
    text: str


SETTINGS = (
    Setting("OPAQUE_HELP", "0|1", "0", "package", "print this table on import"),
    Setting(
        "OPAQUE_LOG",
        "topic[:debug],...",
        "",
        "package",
        "lines to stderr; topics: flush, plan, compile, fusion, fallback, memory",
    ),
    Setting("OPAQUE_LOG_FILE", "path", "", "package", "the file to which the log goes instead"),
    Setting(
        "OPAQUE_FALLBACK_WARN",
        "0|1",
        "1",
        "core",
        "a line to stderr per op without a native kernel",
    ),
    Setting(
        "OPAQUE_LINES", "all|flush|off", "all", "package", "source lines kept with recorded ops"
    ),
    Setting(
        "OPAQUE_BF16_PRODUCTS",
        "auto|chain|pairs|pairs16",
        "auto",
        "package",
        "rule by which products of bf16 are summed; auto: pairs16 where the processor has AMX, pairs where it has AVX512_BF16",
    ),
    Setting(
        "OPAQUE_MODE",
        "eager,unfused,planned,strict",
        "",
        "package",
        "modes every thread starts with",
    ),
    Setting("OPAQUE_STRICT", "0|1", "0", "package", "an extern op is an error, as under strict()"),
    Setting(
        "OPAQUE_PROGRESS",
        "seconds",
        "3",
        "core",
        "a line to stderr after so long a time of planning and compiling, and again; 0: none",
    ),
    Setting("OPAQUE_CPU", "avx2|avx512", "host", "core", "instruction set of generated kernels"),
    Setting(
        "OPAQUE_EXECUTOR",
        "jit|reference|schedule",
        "jit",
        "core",
        "reference: kernels are evaluated, not compiled; schedule: these as they are scheduled; for tests",
    ),
    Setting(
        "OPAQUE_TIERS",
        "model|off|lazy|eager|random",
        "model",
        "core",
        "a new graph runs in pieces until a plan pays (model), is planned before it runs (off), never as a whole (lazy, eager)",
    ),
    Setting(
        "OPAQUE_BACKGROUND",
        "0-4",
        "processors - 1",
        "core",
        "threads that make the plans of graphs that run in pieces meanwhile; 0: they are made between two runs",
    ),
    Setting(
        "OPAQUE_CACHE",
        "on|off|folder",
        "on",
        "core",
        "compiled kernels are kept on disk for other processes; on: in $XDG_CACHE_HOME/torch_opaque or ~/.cache/torch_opaque",
    ),
    Setting("OPAQUE_PERF_MAP", "0|1", "0", "core", "/tmp/perf-PID.map: generated kernels for perf"),
    Setting("OPAQUE_GDB_JIT", "0|1", "0", "core", "generated kernels are registered with GDB"),
    Setting(
        "OPAQUE_REPRO",
        "DIR|off",
        "",
        "core",
        "DIR: each distinct plan is written there before it runs; off: nothing is, failures neither",
    ),
    Setting("OPAQUE_REPRO_INPUTS", "0|1", "0", "core", "such folders have the values of inputs"),
    Setting(
        "OPAQUE_TEST_FULL", "0|1", "0", "tests", "run the whole op_db sweep (./dev test --full)"
    ),
)

_MODES = {"eager": EAGER, "unfused": UNFUSED, "planned": PLANNED, "strict": STRICT}
_WORDS = {
    "OPAQUE_LINES": ("all", "flush", "off"),
    "OPAQUE_BF16_PRODUCTS": ("auto", "chain", "pairs", "pairs16"),
}
LOG_TOPICS = ("flush", "plan", "compile", "fusion", "fallback", "memory")
LOG_LEVELS = ("off", "info", "debug")


def help_text() -> str:
    """The table as text, a line per variable with its current value where it is set."""
    lines = ["torch_opaque reads these environment variables:"]
    for row in SETTINGS:
        now = f"  (now {os.environ[row.name]!r})" if row.name in os.environ else ""
        default = f" [{row.default}]" if row.default else ""
        lines.append(f"  {row.name:<20} {row.values + default:<28} {row.text}{now}")
    return "\n".join(lines)


def _flag(name: str) -> bool:
    return os.environ.get(name, "0") not in ("", "0")


def default_modes() -> int:
    """Mode bits from OPAQUE_MODE and OPAQUE_STRICT. Raises ValueError for a word that is no mode."""
    modes = STRICT if _flag("OPAQUE_STRICT") else 0
    for word in filter(None, os.environ.get("OPAQUE_MODE", "").split(",")):
        if word.strip() not in _MODES:
            raise ValueError(
                f"OPAQUE_MODE={word}: expected some of {', '.join(_MODES)}{meant(word.strip(), _MODES)}"
            )
        modes |= _MODES[word.strip()]
    return modes


def log_levels(text: str) -> dict:
    """Topic to level of "flush,compile:debug"; a topic alone is "info". Raises ValueError for another topic or level."""
    levels = {}
    for word in filter(None, (word.strip() for word in text.split(","))):
        topic, _, level = word.partition(":")
        if topic not in LOG_TOPICS:
            raise ValueError(
                f"{topic} is no topic of the log: expected some of {', '.join(LOG_TOPICS)}{meant(topic, LOG_TOPICS)}"
            )
        if level not in ("", *LOG_LEVELS):
            raise ValueError(f"{word}: expected level {' or '.join(LOG_LEVELS)}")
        levels[topic] = level or "info"
    return levels


def _check_log() -> None:
    text, path = os.environ.get("OPAQUE_LOG", ""), os.environ.get("OPAQUE_LOG_FILE")
    try:
        log_levels(text)
    except ValueError as error:
        raise ValueError(f"OPAQUE_LOG={text}: {error}") from None
    if path:
        try:
            with open(path, "a"):
                pass
        except OSError as error:
            raise ValueError(f"OPAQUE_LOG_FILE={path}: {error.strerror}") from None


def check() -> None:
    """Raises ValueError for a value that means nothing. Asked before anything is registered, so that a package
    that did not load leaves no half of a device."""
    default_modes()
    _check_log()
    for name, words in _WORDS.items():
        if os.environ.get(name, "") not in ("", *words):
            hint = meant(os.environ[name], words)
            raise ValueError(f"{name}={os.environ[name]}: expected {' or '.join(words)}{hint}")


def unknown() -> list:
    """A word for each variable that is set, is none of ours, and looks like one of them."""
    names = {row.name for row in SETTINGS}
    set_here = [name for name in os.environ if name.startswith("OPAQUE_") and name not in names]
    hints = [(name, meant(name, names, cutoff=0.85)) for name in sorted(set_here)]
    return [f"{name} is no variable of torch_opaque{hint}" for name, hint in hints if hint]


def apply(core) -> None:
    """Applies the package's rows through `core` (the C extension), and prints the table if asked for."""
    if _flag("OPAQUE_HELP"):
        print(help_text(), file=sys.stderr)
    for word in unknown():
        print(f"[opaque] {word}", file=sys.stderr)
    if modes := default_modes():
        core.set_default_modes(modes)
    if lines := os.environ.get("OPAQUE_LINES"):
        core.set_lines(lines)
    if rule := os.environ.get("OPAQUE_BF16_PRODUCTS"):
        core.set_bf16_products(rule)
    if path := os.environ.get("OPAQUE_LOG_FILE"):
        core.set_log_file(path)
    if log := os.environ.get("OPAQUE_LOG"):
        core.set_log(log_levels(log))
