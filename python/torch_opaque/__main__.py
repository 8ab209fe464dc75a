"""python -m torch_opaque: runs a program on the device, and looks at what it does there. docs/command_line.md is its manual."""

import contextlib
import json
import os
import signal
import sys
import time
import traceback

import torch

import torch_opaque

from . import _C, arguments, cache, first_nan, placement, program, settings, watch, whole_program
from .graphs import Graph
from .summary import seconds_text

DIFFERENT, TROUBLE = 1, 2  # exit statuses, besides the program's own


class Failure(Exception):
    """A word to the user, and exit status 2."""


def _say(*words) -> None:
    print("torch_opaque:", *words, file=sys.stderr)


# ---- running the program


def _prepare(options) -> None:
    if getattr(options, "mode", None):
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
    """What --json, --html and --dot ask for."""
    if options.json:
        _write(options.json, result.to_json())
    if options.html:
        result.to_html(options.html)
    if getattr(options, "dot", None):
        _write(options.dot, result.to_dot())


def _look_at_call(options, look):
    """What the look at a call of the function gave. The program ends there."""
    calls = watch.Calls(options.function, options.call or 2, look)
    with contextlib.redirect_stdout(sys.stderr), calls.watched():
        status = _run_program(options)
    if calls.error is not None:
        traceback.print_exception(calls.error)
        raise Failure(f"no look at {options.function}()")
    if calls.seen < (options.call or 1):
        ended = f" and ended with status {status}" if status else ""
        near = f"; it called {' and '.join(calls.near)}" if calls.near and not calls.seen else ""
        raise Failure(f"the program called {options.function}() {calls.seen} times{near}{ended}")
    return calls.result


def _look_at_runs(options) -> tuple:
    """(status, Runs, the Run chosen)"""
    if _C.get_modes() & settings.EAGER:
        raise Failure("--mode eager: each op is a run of its own, and has no graph")
    runs = watch.Runs()
    with contextlib.redirect_stdout(sys.stderr), runs.watched():
        status = _run_program(options)
    kinds = {run.number: run for run in runs.kinds if run.launches}
    if not kinds:
        ended = f"; the program ended with status {status}" if status else ""
        raise Failure(f"nothing ran on the device{ended}")
    if (
        options.run is None and options.command == "graph"
    ):  # of two programs that do the same the same one: see diff
        return status, runs, max(kinds.values(), key=lambda run: run.launched)
    if options.run is None:
        return status, runs, max(kinds.values(), key=lambda run: run.seconds)
    if options.run not in kinds:
        raise Failure(f"no run {options.run}; there are\n{runs.table()}")
    return status, runs, kinds[options.run]


# ---- commands: each returns its exit status


def _run(options) -> int:
    _prepare(options)
    begin = time.perf_counter()
    status = _run_program(options)
    seconds = time.perf_counter() - begin
    _say(_totals(seconds))
    if options.json:
        head = {"schema": "opaque.run", "version": 1, "status": status, "seconds": seconds}
        counted = {"stats": torch_opaque.stats(), "fallbacks": torch_opaque.fallback_counts()}
        _write(options.json, json.dumps(head | counted, indent=1))
    return status


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
        print(f"{runs.table()}\n\nthe graph of run {run.number}:", file=sys.stderr)
    _write_files(graph, options)
    if not (options.json or options.html or options.dot):
        print(graph)
    return status


def _part(explanation, number: int | None):
    parts = explanation.parts or [explanation]
    if number is None:
        return explanation
    if number > len(parts):
        raise Failure(f"no part {number}; there are {len(parts)}")
    return parts[number - 1]


def _find_nan(options) -> int:
    status = 0
    if options.function:

        def look(function, *args, **kwargs):
            more = {"infinities": options.infinities, "show": False}
            return torch_opaque.find_nan(function, *args, **more, **kwargs)

        found = _look_at_call(options, look)
    else:
        with (
            contextlib.redirect_stdout(sys.stderr),
            first_nan.searching(options.infinities) as search,
        ):
            status = _run_program(options)
        found = search.found
    print(found or first_nan.nothing(options.infinities))
    if options.json and found:
        _write(options.json, found.to_json())
    return DIFFERENT if found else status


def _explain(options) -> int:
    _prepare(options)
    if options.find_nan:
        return _find_nan(options)
    status, begin = 0, time.perf_counter()
    if options.function:

        def look(function, *args, **kwargs):
            return torch_opaque.explain(function, *args, show=False, **kwargs)

        explanation = _part(_look_at_call(options, look), options.part)
    else:
        status, runs, run = _look_at_runs(options)
        _say(_totals(time.perf_counter() - begin))
        explanation = run.explanation()
        print("\n\n".join(filter(None, (runs.table(), runs.reasons()))))
        times = f", {run.times} times" if run.times > 1 else ""
        print(f"\nrun {run.number}, {run.reason} at {run.line}{times}:\n")
    print(explanation.text())
    _write_files(explanation, options)
    return status


def _compare(options) -> int:
    peers = tuple(filter(None, options.vs.split(",")))
    if not options.function:
        if options.html:
            raise Failure("--html shows a function: name it with --function")
        comparison = whole_program.compare(options, peers)
    else:
        _prepare(options)
        more = {"repeat": options.repeat} if options.repeat else {}

        def look(function, *args, **kwargs):
            compared = torch_opaque.compare(function, *args, vs=peers, show=False, **more, **kwargs)
            if options.html:
                explanation = torch_opaque.explain(function, *args, show=False, **kwargs)
                explanation.to_html(options.html, comparison=compared)
            return compared

        comparison = _look_at_call(options, look)
    print(comparison.text())
    if options.json:
        _write(options.json, comparison.to_json())
    return _judge(comparison.rows, options)


def _judge(rows: list, options) -> int:
    """The fused row is the last one."""
    fused, status, floor = rows[-1], 0, options.fail_if_slower
    for row in rows[:-1]:
        ratio = row.seconds / fused.seconds if fused.seconds else 0.0
        if floor is not None and not ratio >= floor:
            _say(f"slower: {row.mode} takes {ratio:.2f} of the fused time, less than {floor:g}")
            status = DIFFERENT
        difference = getattr(row, "max_difference", None)
        near = difference is not None and difference <= options.tolerance
        if options.fail_if_different and not (row.same_bits or near):
            what = "" if difference is None else f", by {difference:.3g}"
            _say(f"different: {row.mode}{what}")
            status = DIFFERENT
    return status


def _diff(options) -> int:
    difference = torch_opaque.diff(*(_graph_of(what, options) for what in (options.a, options.b)))
    print(difference)
    _write_files(difference, options)
    return DIFFERENT if difference else 0


def _graph_of(what: str, options) -> Graph:
    """Of a file that `graph --json` wrote, or of a script with its arguments."""
    try:
        if not what.endswith(".json"):
            return Graph.from_json(whole_program.graph_of(what, options))
        with open(what, encoding="utf-8") as file:
            return Graph.from_json(file.read())
    except (OSError, ValueError) as error:
        raise Failure(f"{what}: {error}") from error


def _profile(options) -> int:
    _prepare(options)
    with (
        contextlib.redirect_stdout(sys.stderr),
        torch.profiler.profile(record_shapes=True, with_stack=options.stacks) as profiler,
    ):
        status = _run_program(options)
    rows = profiler.key_averages(group_by_input_shape=options.shapes)
    print(rows.table(sort_by="self_cpu_time_total", row_limit=options.rows))
    if options.trace:
        profiler.export_chrome_trace(options.trace)
    return status


def _cache(options) -> int:
    if options.into and options.action != "warm":
        raise Failure(f"--into: cache {options.action} has no folder of its own")
    if options.action == "clear":
        print(f"{cache.clear()} kernels removed")
    if options.action == "warm":
        count = cache.warm(options.into)
        print(
            f"{count} kernels in {options.into or cache.folder()}, beside {len(cache.files(cache.SHIPPED))} that came with the package"
        )
    if options.action == "list":
        print(cache.text())
    return 0


_COMMANDS = {
    "run": _run,
    "graph": _graph,
    "explain": _explain,
    "compare": _compare,
    "diff": _diff,
    "profile": _profile,
    "cache": _cache,
}


def main(words: list | None = None) -> int:
    """Returns the exit status."""
    parser = arguments.parser()
    words = sys.argv[1:] if words is None else words
    if not words:
        parser.print_help(sys.stderr)
        return TROUBLE
    options = parser.parse_args(words)
    try:
        if error := arguments.wrong(options):
            raise Failure(error)
        for hint in arguments.hints(options):
            _say(hint)
        status = _COMMANDS[options.command](options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # as by head: what is left goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (Failure, whole_program.Trouble, OSError) as failure:
        _say(failure)
        return TROUBLE


if __name__ == "__main__":
    sys.exit(main())
