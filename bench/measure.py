"""Measures one row in this process: the engines take turns, so that ratios hold where the clock drifts. bench/run.py starts it.

What is found goes to stdout as lines of JSON: {"doing": ...} while it works, {"result": ...} at the end.
"""

import argparse
import contextlib
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

LEAST_SAMPLES = 5
WARM = 3  # calls after the first one
LEAST_SECONDS = 100e-6  # of a sample: shorter calls are repeated


def measure_plan(row):
    """The least of three plans, after runs whose kernels may be new."""
    import torch
    import torch_opaque

    run, seconds = row.make(), []
    for i in range(6):
        before = torch_opaque.stats()
        with torch_opaque.planned():
            kept = run(i)
            torch.opaque.synchronize()
        del kept
        after = torch_opaque.stats()
        if after["kernels_compiled"] == before["kernels_compiled"]:
            seconds.append(after["compile_seconds"] - before["compile_seconds"])
    return {"name": row.name, "plan": min(seconds[-3:], default=None)}


def spread(seconds):
    return {"min": min(seconds), "median": statistics.median(seconds), "samples": len(seconds)}


def first_call(row, name, clock):
    """Seconds of the first call of an engine, in this process, where nothing ran before."""
    import torch
    from engines import ENGINES

    torch.manual_seed(0)
    function, arguments = row.make()
    engine = ENGINES[name](row, function, arguments)
    with torch.set_grad_enabled(row.kind == "steps"):
        start = clock()
        engine.wait(engine.run())
        return clock() - start


def measure_first(row, threads, say):
    """First calls in new processes, in turns. A warm cache is one that a process left that is not counted."""
    warm, times = row.name.startswith("first_warm"), {"opaque": [], "eager": []}
    command = [sys.executable, __file__, row.of, "--threads", str(threads), "--alone"]
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(LEAST_SAMPLES + warm):
            for name, found in times.items():
                say(f"{name}: process {turn}")
                cache = os.path.join(folder, "warm" if warm else str(turn))
                environment = {**os.environ, "OPAQUE_CACHE": cache}
                text = subprocess.check_output([*command, name], env=environment, text=True)
                if turn >= warm:
                    found.append(json.loads(text.strip().split("\n")[-1])["result"])
    cells = {name: {"first": found[0], **spread(found)} for name, found in times.items()}
    return {"name": row.name, "engines": cells, "notes": [], "least": None}


@contextlib.contextmanager
def limited(seconds):
    """TimeoutError after so many seconds, at the next line of Python."""

    def expired(*_):
        raise TimeoutError(f"over {seconds:g} s")

    before = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def started(make_engine, limit, clock):
    """(engine, seconds of its first call, tensors): what compiles does so now."""
    with limited(limit):
        engine = make_engine()
        with engine.settings():
            start = clock()
            result = engine.run()
            engine.wait(result)
            first = clock() - start
        return engine, first, engine.tensors(result)


def difference(results, expected, chaotic):
    """The largest (chaotic: mean) absolute difference, and the largest magnitude expected. Equal NaNs and infinities do not differ,
    what has another shape does by infinity."""
    import torch

    worst = scale = 0.0
    if [t.shape for t in results] != [t.shape for t in expected]:
        return math.inf, scale
    for result, right in zip(results, expected, strict=True):
        result, right = result.double(), right.double()
        same = (result == right) | (result.isnan() & right.isnan())
        apart = torch.where(same, 0.0, (result - right).abs()).nan_to_num(
            nan=math.inf, posinf=math.inf
        )
        if apart.numel():
            worst = max(worst, (apart.mean() if chaotic else apart.max()).item())
            finite = torch.where(right.isfinite(), right.abs(), 0.0)
            scale = max(scale, finite.max().item())
    return worst, scale


def tolerance_of(row, tensors):
    import torch

    if row.tolerance is not None:
        return row.tolerance
    kinds = [t.dtype for t in tensors if t.is_floating_point()]
    if not kinds:
        return 0.0
    return max((2 if kind.itemsize == 2 else 16) * torch.finfo(kind).eps for kind in kinds)


def check(row, outputs):
    """Compares with "exact", which the row says or eager on doubles is, or else with eager: {engine: (difference, whether it is wrong)}.
    Where the row says what is right, eager's own error allows nobody one."""
    eager = outputs["eager"]
    exact = outputs.pop("exact", eager)
    own, scale = difference(eager, exact, row.chaotic)
    allowed = (0 if row.exact else 4 * own) + tolerance_of(row, eager) * scale
    found = {name: difference(result, exact, row.chaotic)[0] for name, result in outputs.items()}
    return {name: (apart, not apart <= allowed) for name, apart in found.items()}


def sample(engine, count, clock):
    """Seconds of a call, the mean of `count`. wait() holds its result."""
    run, wait = engine.run, engine.wait
    start = clock()
    for _ in range(count):
        wait(run())
    return (clock() - start) / count


def take_turns(engines, seconds, clock, say):
    """{name: [seconds of a call]}, in an order drawn anew for each round, so that none always follows the same other one."""
    times, counts = {name: [] for name in engines}, {}
    for name, engine in engines.items():
        engine.warm(WARM)
        counts[name] = max(1, math.ceil(LEAST_SECONDS / sample(engine, 1, clock)))
    say("timing")
    order, draw = list(engines), random.Random(0)
    end = time.perf_counter() + seconds * len(engines)
    while time.perf_counter() < end or len(times[order[0]]) < LEAST_SAMPLES:
        draw.shuffle(order)
        for name in order:
            times[name].append(sample(engines[name], counts[name], clock))
    return times


def measure(row, names, seconds, limit, say=lambda text: None, roofline=None):
    """The result of a row of any kind but plan, a dictionary for JSON; see report.py for what is in it."""
    import machine
    import torch
    from engines import ENGINES, Double, Eager, Missing

    torch.manual_seed(0)
    clock = machine.clock(torch.get_num_threads())
    before = roofline.seconds(row) if roofline else None
    function, arguments = row.make()
    made = {"exact": Double, "eager": Eager, **{name: ENGINES[name] for name in names}}
    if row.exact or row.kind == "once" or not any(t.is_floating_point() for t in arguments):
        del made["exact"]
    engines, cells, notes, outputs = {}, {}, [], {}
    with torch.set_grad_enabled(row.kind == "steps"):
        for name, kind in made.items():
            say(f"{name}: first call")
            try:
                engine, first, outputs[name] = started(
                    lambda kind=kind: kind(row, function, arguments), limit, clock
                )
            except Missing as reason:
                notes.append([name, "skipped", str(reason)])
            except Exception as error:  # of a compiler, which is anybody's
                text = str(error).strip().split("\n")[0][:120]
                notes.append([name, "failed", f"{type(error).__name__}: {text}"])
            else:
                engines[name], cells[name] = engine, {"first": first}
        if row.exact:
            outputs["exact"] = [row.exact(*arguments)]
        for name, (found, wrong) in check(row, outputs).items():
            cells[name].update(difference=found, wrong=wrong)
        outputs.clear()
        engines, cells = ({n: t[n] for n in names if n in t} for t in (engines, cells))
        if row.kind == "once":
            times = {name: [cell["first"]] for name, cell in cells.items()}
        else:
            times = take_turns(engines, seconds, clock, say)
    for name, values in times.items():
        cells[name].update(spread(values))
    least = min(before, roofline.seconds(row)) if before else None
    return {"name": row.name, "engines": cells, "notes": notes, "least": least}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("row")
    parser.add_argument("--engines", default="opaque,eager")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--limit", type=float, default=120.0)
    parser.add_argument("--way", default="recorded")
    parser.add_argument("--alone", metavar="ENGINE", help="only its first call")
    parser.add_argument("--peak", help="the library of peak.c")
    options = parser.parse_args()
    # JAX and Inductor count processors, not settings.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no result

    def say(text):
        print(json.dumps({"doing": text}), file=lines)

    say("starts")
    import machine
    import rows  # noqa: F401
    import torch
    from engines import ENGINES, WAYS
    from registry import ROWS

    ENGINES["opaque"] = WAYS[options.way]
    torch.set_num_threads(options.threads)
    row = ROWS[options.row]
    if options.alone:
        result = first_call(row, options.alone, machine.clock(options.threads))
    elif row.kind == "first":
        result = measure_first(row, options.threads, say)
    elif row.kind == "plan":
        result = measure_plan(row)
    else:
        limits = machine.Roofline(options.peak, options.threads) if options.peak else None
        names = options.engines.split(",")
        result = measure(row, names, options.seconds, options.limit, say, limits)
    print(json.dumps({"result": result}), file=lines)
    lines.flush()
    os._exit(0)  # what a compiler's threads do at the end of a process is not measured


if __name__ == "__main__":
    sys.exit(main())
