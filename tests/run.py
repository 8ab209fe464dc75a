"""Runs all tests for ./dev test, as many at a time as there are processors, and adds them up.

Each C test of build/ and build-asan/ and each file of tests/python/ is a process of its own, so that a crash costs that alone. The
longest begin first: how long each took is kept in build/test-seconds.json. Tests marked `alone`, which measure times, run when the others
have ended. With OPAQUE_TEST_FULL (--full) also what threads share
in build-tsan/ and some of tests/python/ with the extension of build-asan-torch/; and texts and files are mutated for
OPAQUE_FUZZ_SECONDS each, 60 if it is not set. With --quick only what the edit loop wants, see QUICK.

What failed is printed whole, then how long each part took, in seconds of processors and of the clock; --record writes that table
into docs/trust.md. Other arguments are pytest's. The last line is "N passed, N failed"; the exit status is 0 if none failed. A C
test counts as the cmocka tests it prints, or as one if it prints none; one that ends badly counts at least one failure.
"""

import argparse
import contextlib
import dataclasses
import glob
import heapq
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as xml

_PASSED = re.compile(r"\[  PASSED  \] (\d+) test\(s\)\.")
_FAILED = re.compile(r"\[  FAILED  \] (\d+) test\(s\)")

# What takes a minute or more, for the first run, of which nothing is known: these begin before the others.
_LONG = [
    "tiers",
    "opdb",
    "bench",
    "entry_points",
    "report",
    "command_line",
    "docs",
    "examples",
    "contributing",
    "random_nets",
    "package",
    "forms",
    "fusion_counts",
    "layouts",
    "module_db",
    "error_inputs",
    "gradients",
    "ops_table",
]
_LONG_C = ["fusion_loop_fuzz", "fusion_deep", "fusion_c", "fusion_target", "gemm", "opaque_pieces"]
# What races: the tests of opaque/ and runtime/ in which threads share something.
# die_after_fork: the child of a fork begins threads in the background of its own.
_TSAN_OPTIONS = {"TSAN_OPTIONS": "allocator_may_return_null=1 die_after_fork=0"}
_TSAN = "opaque_(thread|snapshot|plan_cache|run|failure|cell|background|pieces)|packed|memory|join|plan_code|gemm_kernels|kernel_batch"
# One of each kind: many ops, extern calls, errors, aliasing, threads.
_ASAN_FILES = [
    "ops_basic",
    "tensor",
    "extern",
    "errors",
    "dtypes",
    "numbers",
    "limits",
    "random_aliasing",
    "random_nets",
    "random_threads",
]
# --quick: C tests without the slow ones, with a part of the random cases, and of each kind of Python test a file that takes seconds.
_SLOW_C = "fusion_(c|target|random_avx2|deep)|gemm.*|codegen_(kernel_reduce|math|scalar.*)"
# Under sanitizers with --full alone: what another compiler makes of printed kernels, AVX2 beside what the machine has, how time grows,
# and values of kernels, whose code is not instrumented.
_SANITIZED_IN_FULL = "fusion_(c|target|growth)|codegen_kernel_(map|reduce)|.*_avx2"
QUICK = ["ops_basic", "tensor", "errors", "numbers", "put", "scan", "tools"]
# Threads that wait for work leave the processor to the other processes.
# No test depends on what another one compiled.
_SHARED = {"OMP_WAIT_POLICY": "PASSIVE", "WARM_PYTHON": sys.executable, "OPAQUE_CACHE": "off"}
_SECONDS = 1800.0  # of one process; what takes longer hangs
_FULL_SECONDS = 7200.0


@dataclasses.dataclass
class Task:
    """A process, and what came of it. `seconds` of the clock, `processor` of all its processes."""

    part: str
    name: str
    command: list
    environment: dict = dataclasses.field(default_factory=dict)  # None: without the variable
    folder: str = "."
    python: bool = False
    alone: bool = False
    passed: int = 0
    failed: int = 0
    seconds: float = 0.0
    processor: float = 0.0

    @property
    def key(self) -> str:
        return f"{self.part}: {self.name}"


# ---- what there is to run


def c_tests(folder: str) -> list:
    """What ctest knows in `folder`: (name, command, environment, folder to run it in)."""
    listing = subprocess.run(
        ["ctest", "--test-dir", folder, "--show-only=json-v1"],
        capture_output=True,
        text=True,
        check=True,
    )
    tests = []
    for entry in json.loads(listing.stdout)["tests"]:
        properties = {p["name"]: p["value"] for p in entry["properties"]}
        environment = dict(pair.split("=", 1) for pair in properties.get("ENVIRONMENT", []))
        where = properties.get("WORKING_DIRECTORY", folder)
        tests.append((entry["name"], entry["command"], environment, where))
    return tests


def c_tasks(part: str, folder: str, only: str = "", more: dict | None = None) -> list:
    """only: a regular expression that the tests' names match; more: of their environment."""
    more = {"UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1"} | (more or {})
    return [
        Task(part, name, command, environment | more, where)
        for name, command, environment, where in c_tests(folder)
        if re.search(only, name)
    ]


_WARM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "warm")
_PYTHON = [sys.executable, "-IS", os.path.join(_WARM, "python")]


def python_tasks(part: str, root: str, files: list, arguments: list, environment: dict) -> list:
    command = [*_PYTHON, "-m", "pytest", "-q"]
    return [
        Task(
            part,
            os.path.basename(file)[5:-3],
            [*command, file, *arguments],
            environment,
            root,
            True,
        )
        for file in files
    ]


def asan_environment(root: str) -> dict:
    """The sanitized package first on the path, with the sanitizer's library loaded before Python.

    Leaks are not looked for: Python and PyTorch keep much until the end. PyTorch frees with delete what it made with
    aligned new of another size, so the kinds of allocations are not compared. No suppression concerns our code.
    """
    names = [
        "libasan.so",
        "libubsan.so",
        "libstdc++.so",
    ]  # exceptions are intercepted only if libstdc++ is there early
    paths = [
        subprocess.run(
            ["g++", f"-print-file-name={n}"], capture_output=True, text=True
        ).stdout.strip()
        for n in names
    ]
    return {
        "PYTHONPATH": os.path.join(root, "build-asan-torch", "python"),
        "LD_PRELOAD": " ".join(paths),
        "ASAN_OPTIONS": "detect_leaks=0:alloc_dealloc_mismatch=0:new_delete_type_mismatch=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    }


def tasks_of(options, arguments: list) -> list:
    root = options.root
    files = sorted(glob.glob(os.path.join(root, "tests/python/**/test_*.py"), recursive=True))
    named = {os.path.basename(file)[5:-3]: file for file in files}
    if options.quick:
        files = [named[name] for name in QUICK if name in named]
    elif not options.full:
        arguments = ["--skip-unchanged", "--sample", *arguments]
    part = {} if options.full else {"OPAQUE_TEST_SAMPLE": "6"}  # of what has many random cases
    if options.quick:
        tasks = c_tasks("C", os.path.join(root, "build"), rf"^(?!({_SLOW_C})$)", part)
    else:
        half = {} if options.full else {"OPAQUE_TEST_SAMPLE": "2"}
        tasks = c_tasks("C", os.path.join(root, "build"), more=half)
        only = "" if options.full else rf"^(?!({_SANITIZED_IN_FULL})$)"
        # Random cases in thousands are for fast code.
        few = {"OPAQUE_TEST_FULL": None} if options.full else part
        tasks += c_tasks("C, ASan and UBSan", os.path.join(root, "build-asan"), only, few)
    timing = []
    for file in files:
        with open(file) as text:
            timing += [file] if "mark.alone" in text.read() else []
    tasks += python_tasks("Python", root, files, ["-m", "not alone", *arguments], {})
    if timing:
        command = [*_PYTHON, "-m", "pytest", "-q", "-m", "alone", *timing, *arguments]
        tasks.append(Task("Python", "alone", command, folder=root, python=True, alone=True))
    if options.full:
        tasks += c_tasks("C, TSan", os.path.join(root, "build-tsan"), _TSAN, _TSAN_OPTIONS)
        files = [named[name] for name in _ASAN_FILES if name in named]
        environment = asan_environment(root)
        tasks += python_tasks("Python, ASan and UBSan", root, files, arguments, environment)
    return tasks


# ---- running


@contextlib.contextmanager
def warm():
    """The environment of tests/warm/python: a process that has imported torch, which programs of the tests are forked from."""
    if "WARM_SOCKET" in os.environ:  # a test of this runs it
        yield {}
        return
    with tempfile.TemporaryDirectory() as folder:
        address = os.path.join(folder, "socket")
        shim = runpy.run_path(os.path.join(_WARM, "python"))
        server = subprocess.Popen(
            [sys.executable, os.path.join(_WARM, "server.py"), address],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=os.environ | _SHARED,
        )
        server.stdout.readline()
        try:
            yield {
                "WARM_SOCKET": address,
                "WARM_STARTED": json.dumps(shim["starting"](os.environ | _SHARED)),
            }
        finally:
            server.kill()
            server.wait()


def counts_of_c(output: str, status: int) -> tuple:
    passed = sum(map(int, _PASSED.findall(output)))
    failed = sum(map(int, _FAILED.findall(output)))
    return (passed or int(status == 0), failed) if status == 0 else (passed, failed or 1)


def counts_of_python(report: str, status: int) -> tuple:
    """Errors are failures; what is skipped counts for neither."""
    if status == 5:  # nothing selected
        return 0, 0
    if not os.path.exists(report):
        return 0, 1
    suites = list(xml.parse(report).iter("testsuite"))
    keys = ("tests", "failures", "errors", "skipped")
    total, failures, errors, skipped = (sum(int(s.get(k, 0)) for s in suites) for k in keys)
    bad = failures + errors
    return total - bad - skipped, bad or int(status != 0)


def end(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)


def run(task: Task, limit: float, shared: dict, running: set) -> str:
    """Its output. What it started ends with it."""
    with tempfile.TemporaryDirectory() as scratch:
        report, log, usage = (
            os.path.join(scratch, name) for name in ("report.xml", "log", "usage")
        )
        command = [*task.command, f"--junitxml={report}"] if task.python else task.command
        environment = {**os.environ, **shared, **task.environment, "WARM_USAGE": usage}
        begin = time.monotonic()
        with open(log, "wb") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=task.folder,
                env={k: v for k, v in environment.items() if v is not None},
                start_new_session=True,
            )
            running.add(process.pid)
            timer = threading.Timer(limit, end, (process.pid,))
            timer.start()
            _, status, used = os.wait4(process.pid, 0)
            timer.cancel()
            running.discard(process.pid)
            end(process.pid)
            process.returncode = status = os.waitstatus_to_exitcode(status)
        task.seconds = time.monotonic() - begin
        task.processor = used.ru_utime + used.ru_stime
        if os.path.exists(usage):
            with open(usage) as file:
                task.processor += sum(map(float, file))
        with open(log, errors="replace") as file:
            output = file.read()
        count = counts_of_python(report, status) if task.python else counts_of_c(output, status)
        task.passed, task.failed = count
    return output + (f"\nexit status {status}\n" if status else "")


def run_all(
    tasks: list, jobs: int, limit: float, known: dict, environment: dict | None = None
) -> None:
    """Prints a line as each ends, and what a failed one printed. `known`: seconds of processors, by key."""

    def expected(task: Task) -> float:
        return known.get(task.key, 60.0 if task.name in (*_LONG, *_LONG_C) else 0.0)

    if timing := [task for task in tasks if task.alone and jobs > 1]:
        run_all([task for task in tasks if not task.alone], jobs, limit, known, environment)
        return run_all(timing, 1, limit, known, environment)
    todo = [(-expected(task), i, task) for i, task in enumerate(tasks)]
    heapq.heapify(todo)
    lock, running = threading.Lock(), set()
    shared = (environment or {}) | _SHARED | ({"OPAQUE_TEST_JOBS": "1"} if jobs > 1 else {})

    def work() -> None:
        while True:
            with lock:
                if not todo:
                    return
                task = heapq.heappop(todo)[2]
            output = run(task, limit, shared, running)
            with lock:
                if task.failed:
                    print(f"\n{output}", end="")
                failed = f", {task.failed} failed" if task.failed else ""
                times = f"{task.seconds:.1f} s, {task.processor:.1f} s of processors"
                print(f"{task.key}: {task.passed} passed{failed}; {times}", flush=True)

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:  # they have sessions of their own, which a terminal does not reach
        todo.clear()
        for process in list(running):
            end(process)
        raise


# ---- how long it took


def table(tasks: list, built: float, seconds: float, jobs: int) -> str:
    rows = [("part", "processes", "passed", "failed", "processor s")]
    for part in dict.fromkeys(task.part for task in tasks):
        of = [task for task in tasks if task.part == part]
        counts = [len(of), sum(t.passed for t in of), sum(t.failed for t in of)]
        rows.append((part, *map(str, counts), f"{sum(t.processor for t in of):.0f}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    longest = heapq.nlargest(5, tasks, key=lambda task: task.seconds)
    names = ", ".join(f"{task.key} {task.seconds:.0f} s" for task in longest)
    lines += [f"longest: {names}"]
    lines += [f"{built:.0f} s building, then {seconds:.0f} s, {jobs} processes at a time"]
    return "\n".join(lines)


def record(root: str, mode: str, text: str) -> None:
    """Writes the table of this mode into docs/trust.md."""
    path = os.path.join(root, "docs", "trust.md")
    with open(path) as file:
        page = file.read()
    block = re.compile(rf"(^`{re.escape(mode)}`:\n\n```text\n).*?(^```$)", re.M | re.S)
    page, count = block.subn(lambda found: f"{found[1]}{text}\n{found[2]}", page)
    if count != 1:
        sys.exit(f"docs/trust.md has no block for {mode}")
    with open(path, "w") as file:
        file.write(page)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=os.path.abspath, required=True)
    parser.add_argument("--built", type=float, default=0.0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options, arguments = parser.parse_known_args()
    options.full = "OPAQUE_TEST_FULL" in os.environ
    if options.full:
        os.environ.setdefault("OPAQUE_FUZZ_SECONDS", "60")
    kept = os.path.join(options.root, "build", "test-seconds.json")
    known = {}
    if os.path.exists(kept):
        with open(kept) as file:
            known = json.load(file)
    tasks = tasks_of(options, arguments)
    begin = time.monotonic()
    with warm() as environment:
        run_all(
            tasks, options.jobs, _FULL_SECONDS if options.full else _SECONDS, known, environment
        )
    text = table(tasks, options.built, time.monotonic() - begin, options.jobs)
    print(f"\n{text}")
    if not arguments:
        with open(kept, "w") as file:
            json.dump(known | {task.key: task.processor for task in tasks}, file)
    if options.record:
        mode = "--full" if options.full else "--quick" if options.quick else ""
        record(options.root, f"./dev test {mode}".strip(), text)
    failed = sum(task.failed for task in tasks)
    print(f"{sum(task.passed for task in tasks)} passed, {failed} failed", flush=True)
    return int(failed != 0)


if __name__ == "__main__":
    sys.exit(main())
