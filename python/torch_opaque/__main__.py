"""python -m torch_opaque: runs a program on the device, and looks at what it does there. docs/command_line.md is its manual."""

import argparse
import contextlib
import json
import os
import sys
import time

import torch

import torch_opaque

from . import _C, placement, program, settings, turns, watch
from .graphs import STAGES, Graph
from .summary import seconds_text

USAGE, DIFFERENT = 2, 1  # exit statuses, besides the program's own

_EXAMPLES = """
examples:
  python -m torch_opaque run train.py --epochs 1           the program's own arguments follow it
  python -m torch_opaque explain train.py                  each kind of run, and the dearest one: kernels, times, what did not fuse
  python -m torch_opaque explain --html report.html train.py
  python -m torch_opaque graph --function model.forward --stage fused infer.py
  python -m torch_opaque compare --function train_step --fail-if-slower 1.0 train.py
  python -m torch_opaque diff before.py after.py
  python -m torch_opaque profile --trace trace.json train.py

exit status: the program's own (1 for an exception, which is printed as Python does). 2: usage, or nothing to show.
  compare: 1 if --fail-if-slower or --fail-if-different says so. diff: 0 equal, 1 different, 2 trouble.

The program need not know of the device: what it makes on the CPU, or puts there, lies on the device (--device none leaves it
alone). But for `run`, what it prints on stdout goes to stderr, and stdout is the report's.
"""


class Failure(Exception):
    """A word to the user, and exit status 2."""


def _say(*words) -> None:
    print("torch_opaque:", *words, file=sys.stderr)


# ---- running the program


def _prepare(options) -> None:
    if options.mode:
        os.environ["OPAQUE_MODE"] = options.mode  # also for processes that the program starts
        try:
            _C.set_default_modes(settings.default_modes())
        except ValueError as error:
            raise Failure(str(error)) from error
    if options.device == "opaque":
        placement.apply()


def _run_program(options) -> int:
    try:
        return program.run(options.script, options.arguments, options.module)
    except program.NoProgram as error:
        raise Failure(str(error)) from error


@contextlib.contextmanager
def _stdout_for_the_report():
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _totals(seconds: float) -> str:
    stats = torch_opaque.stats()
    if not stats["flushes"]:
        return f"{seconds_text(seconds)}, nothing ran on the device"
    runs = ", ".join(f"{count} {reason}" for reason, count in stats["flushes"].items())
    text = (
        f"{seconds_text(seconds)}: {seconds_text(stats['run_seconds'])} running {stats['kernels_run']} kernels, "
        f"{seconds_text(stats['compile_seconds'])} compiling {stats['kernels_compiled']} in {stats['plans_built']} plans; "
        f"{sum(stats['flushes'].values())} runs ({runs})"
    )
    if fallbacks := torch_opaque.fallback_counts():
        named = ", ".join(f"{op.removeprefix('aten::')} {count}" for op, count in fallbacks.items())
        text += f"\ntorch_opaque: through PyTorch's CPU kernels: {named}"
    return text


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _write_files(result, options) -> None:
    """--json, --html and --dot, where the result has them."""
    if options.json:
        _write(options.json, _method(result, "to_json")())
    if options.html:
        _method(result, "to_html")(options.html)
    if getattr(options, "dot", None):
        _write(options.dot, result.to_dot())


def _method(result, name: str):
    found = getattr(result, name, None)
    if found is None:
        raise Failure(f"{type(result).__name__.lower()} has no {name}() in this version")
    return found


# ---- commands


def _run(options) -> int:
    _prepare(options)
    begin = time.perf_counter()
    status = _run_program(options)
    seconds = time.perf_counter() - begin
    _say(_totals(seconds))
    if options.json:
        counted = {"stats": torch_opaque.stats(), "fallbacks": torch_opaque.fallback_counts()}
        head = {"schema": "opaque.run", "version": 1, "status": status, "seconds": seconds}
        _write(options.json, json.dumps(head | counted, indent=1))
    return status


def _look_at_call(options, look):
    """What the look at the function gave. The program stops there."""
    calls = watch.Calls(options.function, options.call or 2, look)
    with _stdout_for_the_report(), calls.watched():
        status = _run_program(options)
    if calls.error is not None:
        raise Failure(f"{options.function}(): {calls.error}") from calls.error
    if not calls.seen or calls.seen < (options.call or 1):
        wanted = f"the program called {options.function}() {calls.seen} times"
        raise Failure(wanted + (f" and ended with status {status}" if status else ""))
    return calls.result


def _look_at_runs(options) -> tuple:
    """(status, Runs, the Run chosen)"""
    runs = watch.Runs()
    with _stdout_for_the_report(), runs.watched():
        status = _run_program(options)
    kinds = [run for run in runs.kinds if run.launches]
    if not kinds:
        raise Failure("nothing ran on the device" + (f", status {status}" if status else ""))
    if options.run is None:
        return status, runs, max(kinds, key=lambda run: run.seconds)
    for run in kinds:
        if run.number == options.run:
            return status, runs, run
    raise Failure(f"no run {options.run}; there are\n{runs.table()}")


def _graph(options) -> int:
    _prepare(options)
    status = 0
    if options.function:

        def look(function, *args, **kwargs):
            return torch_opaque.graph(function, *args, stage=options.stage, **kwargs)

        graph = _look_at_call(options, look)
    else:
        status, runs, run = _look_at_runs(options)
        graph = run.graph(options.stage)
        if run.times < sum(kind.times for kind in runs.kinds):
            print(runs.table(), f"\nthe graph of run {run.number}:", file=sys.stderr)
    _write_files(graph, options)
    if not (options.json or options.html or options.dot):
        print(graph)
    return status


def _explain(options) -> int:
    _prepare(options)
    status, begin = 0, time.perf_counter()
    if options.function:

        def look(function, *args, **kwargs):
            return torch_opaque.explain(function, *args, show=False, **kwargs)

        explanation = _look_at_call(options, look)
    else:
        status, runs, run = _look_at_runs(options)
        _say(_totals(time.perf_counter() - begin))
        explanation = run.explanation()
        print(runs.table())
        print(f"\nrun {run.number}, {run.reason} at {run.line}, the last of {run.times}:\n")
    print(explanation.text())
    _write_files(explanation, options)
    return status


def _compare(options) -> int:
    peers = tuple(filter(None, options.vs.split(",")))
    if options.function:
        _prepare(options)

        def look(function, *args, **kwargs):
            return torch_opaque.compare(
                function, *args, vs=peers, repeat=options.repeat or 5, show=False, **kwargs
            )

        comparison = _look_at_call(options, look)
    else:
        comparison = turns.compare(options, peers)
    print(comparison.text())
    _write_files(comparison, options)
    return _judge(comparison.rows, options)


def _judge(rows: list, options) -> int:
    """Exit status. The fused row is the last one."""
    fused, status = rows[-1], 0
    for row in rows[:-1]:
        ratio = row.seconds / fused.seconds if fused.seconds else 0.0
        if options.fail_if_slower is not None and ratio < options.fail_if_slower:
            _say(
                f"slower: {row.mode} takes {ratio:.2f} of the fused time, less than {options.fail_if_slower}"
            )
            status = DIFFERENT
        same = row.same_bits or getattr(row, "max_difference", float("inf")) <= options.tolerance
        if options.fail_if_different and not same:
            _say(f"different: {row.mode}")
            status = DIFFERENT
    return status


def _diff(options) -> int:
    if getattr(torch_opaque, "diff", None) is None:
        raise Failure("torch_opaque.diff() is not in this version")
    difference = torch_opaque.diff(*(_graph_of(one, options) for one in (options.a, options.b)))
    print(difference)
    _write_files(difference, options)
    return DIFFERENT if difference else 0


def _graph_of(what: str, options) -> Graph:
    """Of a file that `graph --json` wrote, or of a script with its arguments, which runs in a process of its own."""
    try:
        if what.endswith(".json"):
            with open(what, encoding="utf-8") as file:
                return Graph.from_json(file.read())
        return Graph.from_json(turns.graph_of_script(what, options))
    except (OSError, ValueError) as error:
        raise Failure(f"{what}: {error}") from error


def _profile(options) -> int:
    _prepare(options)
    with (
        _stdout_for_the_report(),
        torch.profiler.profile(record_shapes=True, with_stack=options.stacks) as profiler,
    ):
        status = _run_program(options)
        torch.opaque.synchronize()
    print(
        profiler.key_averages(group_by_input_shape=options.shapes).table(
            sort_by="self_cpu_time_total", row_limit=options.rows
        )
    )
    if options.trace:
        profiler.export_chrome_trace(options.trace)
    return status


# ---- the command line


def _program_arguments(parser) -> None:
    parser.add_argument(
        "--device",
        choices=("opaque", "none"),
        default="opaque",
        help="opaque: what the program has on the CPU is on the device; none: the program is left alone (default: %(default)s)",
    )
    parser.add_argument("--mode", metavar="MODES", help="eager, unfused, strict; comma-separated")
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module's name")
    parser.add_argument("script", metavar="SCRIPT", help="the program")
    parser.add_argument(
        "arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="the program's own arguments"
    )


def _call_arguments(parser) -> None:
    parser.add_argument(
        "--function",
        metavar="NAME",
        help="look at a call of this function, on snapshots, and end the program there: train_step, Model.forward, "
        "package.module.function, or a module in a variable: model",
    )
    parser.add_argument(
        "--call",
        metavar="N",
        type=_positive,
        help="the N-th call (default: the 2nd, or the only one)",
    )


def _file_arguments(parser, *kinds: str) -> None:
    what = {
        "json": "the whole of it, as data",
        "html": "a page for the browser",
        "dot": "in Graphviz's language",
    }
    for kind in kinds:
        parser.add_argument(f"--{kind}", metavar="FILE", help=f"write {what[kind]}")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _add(commands, name: str, function, text: str, epilog: str = ""):
    parser = commands.add_parser(name, help=text, description=text, epilog=epilog)
    parser.set_defaults(command=function)
    return parser


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m torch_opaque",
        description="Runs PyTorch programs on device opaque, and shows what becomes of them there.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=torch_opaque.__version__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    run = _add(commands, "run", _run, "Run a program on the device; a summary follows on stderr.")
    _file_arguments(run, "json")

    graph = _add(
        commands, "graph", _graph, "Print the graph of the dearest kind of run, or of a function."
    )
    graph.add_argument("--stage", choices=STAGES, default="fused", help="(default: %(default)s)")
    explain = _add(
        commands,
        "explain",
        _explain,
        "Run a program with every launch timed; print what it ran, what did not fuse, and why.",
    )
    for one in (graph, explain):
        one.add_argument(
            "--run",
            metavar="N",
            type=_positive,
            help="the run of this number in explain's table (default: the dearest)",
        )
    _file_arguments(graph, "json", "html", "dot")
    _file_arguments(explain, "json", "html")

    compare = _add(
        commands,
        "compare",
        _compare,
        "Time a function, or a whole program in processes of its own, fused and in other ways.",
        "Exit status 1 if --fail-if-slower or --fail-if-different says so.",
    )
    compare.add_argument(
        "--vs",
        metavar="WAYS",
        default="eager,unfused",
        help="eager, unfused, cpu, and for functions inductor, inductor-max (default: %(default)s)",
    )
    compare.add_argument(
        "--repeat", metavar="N", type=_positive, help="turns (default: 5, of whole programs 3)"
    )
    compare.add_argument(
        "--fail-if-slower",
        metavar="RATIO",
        type=float,
        help="fail if a peer's time is less than RATIO of the fused one",
    )
    compare.add_argument(
        "--fail-if-different",
        action="store_true",
        help="fail if results differ: of a program, what it prints",
    )
    compare.add_argument(
        "--tolerance",
        metavar="X",
        type=float,
        default=0.0,
        help="results of a function that differ by at most X do not differ (default: the same bits)",
    )
    _file_arguments(compare, "json")
    compare.set_defaults(html=None)

    for one in (graph, explain, compare):
        _call_arguments(one)

    profile = _add(
        commands, "profile", _profile, "Run a program under torch.profiler; print its table."
    )
    profile.add_argument("--trace", metavar="FILE", help="write a Chrome trace, for Perfetto")
    profile.add_argument(
        "--rows",
        metavar="N",
        type=_positive,
        default=30,
        help="rows of the table (default: %(default)s)",
    )
    profile.add_argument("--shapes", action="store_true", help="a row for each kind of arguments")
    profile.add_argument("--stacks", action="store_true", help="Python's calls in the trace")
    for one in (run, graph, explain, compare, profile):
        _program_arguments(one)

    diff = _add(
        commands,
        "diff",
        _diff,
        "Compare two graphs: files that `graph --json` wrote, or programs.",
        "Exit status: 0 equal, 1 different, 2 trouble.",
    )
    diff.add_argument("a", metavar="A", help="FILE.json, or a script with its arguments in quotes")
    diff.add_argument("b", metavar="B")
    diff.add_argument(
        "--device", choices=("opaque", "none"), default="opaque", help=argparse.SUPPRESS
    )
    _call_arguments(diff)
    _file_arguments(diff, "json", "html")
    return parser


def main(arguments: list | None = None) -> int:
    """Returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return options.command(options)
    except (Failure, turns.Trouble) as failure:
        _say(failure)
        return USAGE


if __name__ == "__main__":
    sys.exit(main())
