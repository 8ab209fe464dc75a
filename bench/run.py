"""Times rows on the device against peers. `./dev bench` runs all rows, one thread, against eager PyTorch on the CPU.

    ./dev bench chain_1M 'mm_*'                      some rows; --rows does the same
    ./dev bench --vs eager,inductor,inductor-max,jax
    ./dev bench --cpu avx2,avx512 --threads 1,2
    ./dev bench --write                              puts what was measured into bench/RESULTS.md

A row has a process of its own for each processor and number of threads, in which the engines take turns. `ratio` is the median of
the peer divided by the median of opaque: above 1 opaque is faster. Ratios hold where absolute times drift.

The exit status is 1 if a result of opaque is wrong, a row is slower against eager than its floor, or a plan took longer than its
ceiling. Rows called plan_... are programs that run in other shapes each time, in kernels that there are; shown is how long that took.
"""

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading

import machine
import report
import rows  # noqa: F401
from engines import PEERS, WAYS
from registry import select

FOLDER = os.path.dirname(os.path.abspath(__file__))
RESULTS = os.path.join(FOLDER, "RESULTS.md")
ROW_LIMIT = 1800  # seconds, for a process that hangs where no limit of its own is seen


def listed(choices):
    """A type for argparse: some of `choices`, with commas."""

    def parse(text):
        names = text.split(",")
        for name in names:
            if name not in choices:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(choices)}")
        return names

    return parse


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        prog="./dev bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("patterns", nargs="*", metavar="ROW", help="a name or a pattern")
    parser.add_argument("--rows", nargs="+", default=[], metavar="PATTERN", help="the same")
    parser.add_argument("--vs", type=listed(PEERS), default=["eager"], help=", ".join(PEERS))
    parser.add_argument(
        "--threads", type=lambda text: [int(n) for n in text.split(",")], default=[1]
    )
    parser.add_argument("--cpu", type=listed(machine.CPUS), help="avx2, avx512; default: the best")
    parser.add_argument("--seconds", type=float, default=1.0, help="of timing, for each engine")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds of a first call")
    parser.add_argument(
        "--way", choices=list(WAYS), default="recorded", help="how it runs here: %(choices)s"
    )
    parser.add_argument("--write", action="store_true", help="bench/RESULTS.md")
    options = parser.parse_args(arguments)
    if options.write and options.way != "recorded":
        parser.error("RESULTS.md has what is recorded: --write goes with no --way")
    return options


def available(peers):
    """Those of `peers` that are installed; says which are not."""
    lacking = {
        "jax": not importlib.util.find_spec("jax") and "jax is not installed",
        "inductor": not shutil.which(os.environ.get("CXX", "g++")) and "there is no C++ compiler",
    }
    lacking["inductor-max"] = lacking["inductor"]
    for peer in peers:
        if lacking.get(peer):
            print(f"bench: {lacking[peer]}; {peer} is skipped", file=sys.stderr)
    return [peer for peer in peers if not lacking.get(peer)]


def processors(asked):
    """The names to run as, of those asked for or the best."""
    if asked is None:
        asked = ["avx512" if machine.has_avx512() else "avx2"]
        asked = ["avx2"] if os.environ.get("OPAQUE_CPU") == "avx2" else asked
    if "avx512" in asked and not machine.has_avx512():
        raise SystemExit("bench: this processor has no AVX-512")
    return asked


def thread_counts(asked):
    most = len(os.sched_getaffinity(0))
    for count in asked:
        if not 1 <= count <= most:
            print(f"bench: {count} threads on {most} processors are skipped", file=sys.stderr)
    return [count for count in asked if 1 <= count <= most]


class Plain:
    """Progress where nobody watches: none."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def print(self, text):
        print(text, flush=True)

    def show(self, text):
        pass

    def advance(self):
        pass


class Live(Plain):
    """A line below the table that says what is being done."""

    def __init__(self, total):
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeElapsedColumn as Elapsed

        columns = (BarColumn(20), MofNCompleteColumn(), Elapsed(), TextColumn("{task.description}"))
        self.progress = Progress(*columns, transient=True)
        self.task = self.progress.add_task("", total=total)

    def __enter__(self):
        self.progress.start()
        return self

    def __exit__(self, *_):
        self.progress.stop()

    def print(self, text):
        self.progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, text):
        self.progress.update(self.task, description=text)

    def advance(self):
        self.progress.advance(self.task)


def watcher(total):
    """Live on a terminal, if rich is there."""
    watched = sys.stdout.isatty() and importlib.util.find_spec("rich")
    return Live(total) if watched else Plain()


def run_row(name, cpu, threads, options, scratch, show):
    """The result of a process that measures the row."""
    command = [sys.executable, os.path.join(FOLDER, "measure.py"), name]
    command += ["--engines", ",".join(["opaque", *options.vs]), "--threads", str(threads)]
    command += ["--seconds", str(options.seconds), "--limit", str(options.limit)]
    command += ["--way", options.way]
    command += ["--peak", options.peaks[cpu]] if options.peaks[cpu] else []
    environment = machine.environment(cpu, threads)
    environment["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(scratch, cpu)
    result = None
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        alarm = threading.Timer(ROW_LIMIT, child.kill)
        alarm.start()
        for line in child.stdout:
            message = json.loads(line)
            result = message.get("result", result)
            show(f"{name} ({cpu}, {threads}) {message.get('doing', '')}")
        status = child.wait()
        alarm.cancel()
        errors.seek(0)
        last = (errors.read().strip().split("\n") or [""])[-1]
    if result is None:
        result = {"name": name, "crash": f"exit status {status}: {last[:150]}"}
    return {**result, "cpu": cpu, "threads": threads}


def write(results, peers):
    """Puts the results into RESULTS.md; rows of an earlier run stay if the processor and PyTorch are the same."""
    head, sections = [machine.cpu_name(), f"torch {importlib.metadata.version('torch')}"], {}
    jax = [f"jax {importlib.metadata.version('jax')}"] if "jax" in peers else []
    if os.path.exists(RESULTS):
        with open(RESULTS) as file:
            line, earlier = report.parse(file.read())
        fields = line.rstrip(".").split("; ")
        if fields[:2] == head:
            sections, jax = earlier, jax or fields[2:-1]
    line = "; ".join([*head, *jax, str(datetime.date.today())]) + "."
    text = report.render(line, report.merged(sections, results))
    with open(RESULTS + ".new", "w") as file:
        file.write(text)
    os.replace(RESULTS + ".new", RESULTS)


def main(arguments=None):
    options = parse_arguments(arguments)
    names = select(options.patterns + options.rows)
    options.cpu, options.vs = processors(options.cpu), available(options.vs)
    options.threads = thread_counts(options.threads)
    jobs = [(n, c, t) for c in options.cpu for t in options.threads for n in names]
    if not jobs:
        raise SystemExit("bench: nothing is left to measure")
    results, failed = [], 0
    with tempfile.TemporaryDirectory() as scratch, watcher(len(jobs)) as progress:
        options.peaks = {cpu: machine.compile_peak(cpu, scratch) for cpu in options.cpu}
        title = None
        for name, cpu, threads in jobs:
            if title != (title := report.section(cpu, threads)):
                progress.print(f"{title}\n{report.heading(options.vs)}")
            result = run_row(name, cpu, threads, options, scratch, progress.show)
            results.append(result)
            failed += report.problem(result) is not None
            progress.print(report.line(result, options.vs))
            progress.advance()
            if options.write:
                write(results, options.vs)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
