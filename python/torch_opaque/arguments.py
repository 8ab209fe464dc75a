"""The command line of python -m torch_opaque: what it takes, and its help."""

import argparse
import difflib
import os
import re

from . import __version__
from .comparison import PEERS
from .graphs import STAGES
from .slips import meant

_EXAMPLES = """
examples:
  python -m torch_opaque run train.py --epochs 1           the program's own arguments follow it
  python -m torch_opaque explain train.py                  each kind of run; of the dearest: kernels, times, what did not fuse
  python -m torch_opaque explain --html report.html train.py
  python -m torch_opaque explain --find-nan train.py       the first op that makes a NaN
  python -m torch_opaque graph --function model --stage recorded infer.py
  python -m torch_opaque compare --function train_step --fail-if-slower 1.0 train.py
  python -m torch_opaque diff before.py after.py
  python -m torch_opaque profile --trace trace.json train.py

The program need not know of the device: what it makes on the CPU, or puts there, lies on the device; --device none leaves it
alone. But for `run`, what the program prints goes to stderr, and stdout is the report's. COMMAND --help says more.

exit status: the program's own (1 for an exception, which is printed as Python does it). 2: wrong usage, or nothing to show.
  compare: 1 if --fail-if-slower or --fail-if-different says so. diff: 0 equal, 1 different, 2 trouble.
"""


class _Parser(argparse.ArgumentParser):
    """Says what a wrong option or command was meant to be."""

    def error(self, message: str):
        word = re.search(r"unrecognized arguments: (\S+)|invalid choice: '([^']*)'", message)
        if word:
            options = [name for action in self._actions for name in action.option_strings]
            choices = [name for action in self._actions for name in action.choices or ()]
            known = [*options, *choices, *_all_options(self)]
            message += meant((word[1] or word[2]).partition("=")[0], dict.fromkeys(known))
        super().error(message)


def _all_options(parser) -> list:
    """Of its commands."""
    found = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                found += [name for option in command._actions for name in option.option_strings]
    return found


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _program(parser, mode: bool = True) -> None:
    parser.add_argument(
        "--device",
        choices=("opaque", "none"),
        default="opaque",
        help="opaque: what the program has on the CPU lies on the device; none: the program is left alone (default: %(default)s)",
    )
    if mode:
        parser.add_argument(
            "--mode",
            metavar="MODES",
            help="how it runs: some of eager (each op at once), unfused (one kernel per op), planned (no run before its whole plan), strict (no fallbacks); comma-separated",
        )
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module's name")
    parser.add_argument("script", metavar="SCRIPT", help="the program")
    parser.add_argument(
        "arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="the program's own arguments"
    )


def _function(parser) -> None:
    parser.add_argument(
        "--function",
        metavar="NAME",
        help="look at a call of this function, on snapshots, and end the program there: train_step, Model.forward, "
        "package.module.function, or a module in a variable, model",
    )


def _call(parser) -> None:
    parser.add_argument(
        "--call",
        metavar="N",
        type=_positive,
        help="of --function: the N-th call (default: the second, or the only one)",
    )


def _run_or_function(parser) -> None:
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--run",
        metavar="N",
        type=_positive,
        help="the kind of run with this number in explain's table (default: explain the one that took the most time, "
        "graph the one that launched the most)",
    )
    _function(either)
    _call(parser)


def _files(parser, *kinds: str) -> None:
    what = {"json": "data", "html": "a page for the browser", "dot": "Graphviz's language"}
    for kind in kinds:
        parser.add_argument(f"--{kind}", metavar="FILE", help=f"write it as {what[kind]}")


def _add(commands, name: str, text: str, more: str = ""):
    parser = commands.add_parser(name, help=text, description=text, epilog=more)
    parser.set_defaults(command=name)
    return parser


def _add_run(commands) -> None:
    parser = _add(
        commands,
        "run",
        "Run a program on the device; a summary follows on stderr.",
        "Random numbers are those of the device's generator: initial weights are others than on the CPU. compare gives both the same.",
    )
    _files(parser, "json")
    _program(parser)


def _add_graph(commands) -> None:
    parser = _add(
        commands,
        "graph",
        "Print the graph of a program's dearest kind of run, or of a call of a function.",
        "With --json, --html or --dot the text is not printed.",
    )
    parser.add_argument("--stage", choices=STAGES, default="fused", help="(default: %(default)s)")
    _run_or_function(parser)
    _files(parser, "json", "html", "dot")
    _program(parser)


def _add_explain(commands) -> None:
    parser = _add(
        commands,
        "explain",
        "Run a program with every launch timed: what ran, what did not fuse, and why.",
        "Runs for one reason, at one line, after as many ops are of one kind. Kinds are listed, the dearest first; one is explained.",
    )
    _run_or_function(parser)
    parser.add_argument(
        "--part",
        metavar="N",
        type=_positive,
        help="of --function that ran in parts: the N-th (default: the one that took the most time)",
    )
    parser.add_argument(
        "--find-nan",
        action="store_true",
        help="instead: end the program at the first op that makes a NaN, and say which it is (exit status 1); slow",
    )
    parser.add_argument(
        "--infinities", action="store_true", help="of --find-nan: an infinity counts, too"
    )
    _files(parser, "json", "html")
    _program(parser)


def _add_compare(commands) -> None:
    parser = _add(
        commands,
        "compare",
        "Time a function fused and in other ways, or a whole program, in processes of its own.",
        "Exit status 1 if --fail-if-slower or --fail-if-different says so.",
    )
    parser.add_argument(
        "--vs",
        metavar="WAYS",
        default="eager,unfused",
        help="eager, unfused, cpu, and of a function first call, new shape, inductor and inductor-max (default: %(default)s)",
    )
    parser.add_argument(
        "--repeat", metavar="N", type=_positive, help="turns of each way (default of programs: 3)"
    )
    parser.add_argument(
        "--fail-if-slower",
        metavar="RATIO",
        type=float,
        help="fail if a way takes less than RATIO times the fused one",
    )
    parser.add_argument(
        "--fail-if-different",
        action="store_true",
        help="fail if results differ from the fused ones; of a program, what it prints",
    )
    parser.add_argument(
        "--tolerance",
        metavar="X",
        type=float,
        default=0.0,
        help="of a function: what differs by at most X does not differ (default: the same bits)",
    )
    _function(parser)
    _call(parser)
    _files(parser, "json", "html")
    _program(parser, mode=False)


def _add_diff(commands) -> None:
    parser = _add(
        commands,
        "diff",
        "Compare two graphs: what `graph --json` wrote, or the fused graphs of programs.",
        "Exit status: 0 equal, 1 different, 2 trouble.",
    )
    parser.add_argument("a", metavar="A", help="FILE.json, or a script with its arguments, quoted")
    parser.add_argument("b", metavar="B")
    _function(parser)
    _call(parser)
    _files(parser, "json", "html")


def _add_profile(commands) -> None:
    parser = _add(commands, "profile", "Run a program under torch.profiler; print its table.")
    parser.add_argument(
        "--trace", metavar="FILE", help="write a Chrome trace, as Perfetto reads it"
    )
    parser.add_argument(
        "--rows",
        metavar="N",
        type=_positive,
        default=30,
        help="of the table (default: %(default)s)",
    )
    parser.add_argument("--shapes", action="store_true", help="a row for each shape of arguments")
    parser.add_argument("--stacks", action="store_true", help="Python's calls in the trace")
    _program(parser)


def _add_cache(commands) -> None:
    parser = _add(commands, "cache", "Compiled kernels on disk, which processes share.")
    parser.add_argument(
        "action",
        choices=("list", "clear", "warm"),
        help="list: where they are and how many; clear: remove this user's; warm: compile what common programs need",
    )
    parser.add_argument(
        "--into",
        metavar="DIR",
        help="warm: a folder for everybody to read, as the build makes it; what came with the package is not made again",
    )


def parser() -> argparse.ArgumentParser:
    """Options have `command`, the name of one, and what it takes."""
    made = _Parser(
        prog="python -m torch_opaque",
        description="Runs PyTorch programs on device opaque, and shows what becomes of them there.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--version", action="version", version=__version__)
    commands = made.add_subparsers(metavar="COMMAND", required=True)
    for add in (
        _add_run,
        _add_graph,
        _add_explain,
        _add_compare,
        _add_diff,
        _add_profile,
        _add_cache,
    ):
        add(commands)
    return made


# ---- what is wrong with them, before the program runs


def wrong(options) -> str:
    """The first thing that would fail in the end, or ""."""
    if getattr(options, "call", None) and not options.function:
        return "--call is of a function: name it with --function"
    if getattr(options, "part", None) and not options.function:
        return "--part is of a function: name it with --function"
    if getattr(options, "infinities", False) and not options.find_nan:
        return "--infinities is of --find-nan"
    if getattr(options, "find_nan", False) and options.html:
        return "--find-nan has no page"
    if options.command == "compare" and options.function:
        for way in filter(None, options.vs.split(",")):
            if way not in PEERS:
                return f"--vs {way}: expected some of {', '.join(PEERS)}{meant(way, PEERS)}"
    for kind in ("json", "html", "dot", "trace"):
        if path := getattr(options, kind, None):
            folder = os.path.dirname(os.path.abspath(path))
            if not os.path.isdir(folder):
                return f"--{kind} {path}: there is no folder {folder}"
            if os.path.isdir(path) or not os.access(
                path if os.path.exists(path) else folder, os.W_OK
            ):
                return f"--{kind} {path}: it cannot be written"
    return ""


def _source(options) -> str:
    """The text of the script, "" if that is not known."""
    if "script" not in options or options.module:
        return ""
    try:
        with open(options.script, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):  # which is told when it is run
        return ""


def hints(options) -> list:
    """What looks like a slip, but need not be one."""
    source = _source(options)
    if not source:
        return []
    found = []
    name = (getattr(options, "function", None) or "").rpartition(".")[2]
    if name and not re.search(rf"\b{re.escape(name)}\b", source):
        near = difflib.get_close_matches(
            name, re.findall(r"^\s*(?:async )?def (\w+)", source, re.M)
        )
        meant = f"; did you mean {' or '.join(near)}?" if near else ""
        found.append(f"{options.script} does not name {name}, but what it imports may{meant}")
    own = set(vars(options)) - {"device", "mode", "command", "script", "arguments"}
    for word in options.arguments:
        option = word.partition("=")[0]
        read = re.search(rf"""['"-]{re.escape(option[2:])}\b""", source)  # by the program
        if option[:2] == "--" and option[2:].replace("-", "_") in own and not read:
            found.append(
                f"{option} stands after {options.script} and is an argument of it; those of {options.command} stand before"
            )
    return found
