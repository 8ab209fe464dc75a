"""Runs all tests for ./dev test and adds them up: ctest in build/ and build-asan/, pytest in tests/python/.

With OPAQUE_TEST_FULL (--full) also what threads share in build-tsan/ and some of tests/python/ with the extension of
build-asan-torch/; and texts and files are mutated for OPAQUE_FUZZ_SECONDS each, 60 if it is not set.

The last line is "N passed, N failed"; the exit status is 0 if none failed. A ctest entry counts as
the cmocka tests it prints, or as one test if it prints none; an entry that ends badly counts at
least one failure.
"""

import argparse
import glob
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

_PASSED = re.compile(r"\[  PASSED  \] (\d+) test\(s\)\.")
_FAILED = re.compile(r"\[  FAILED  \] (\d+) test\(s\)")


def count_ctest(report: str) -> tuple:
    """(passed, failed) of a ctest JUnit file."""
    passed = failed = 0
    for case in xml.parse(report).iter("testcase"):
        output = "".join(part.text or "" for part in case.iter("system-out"))
        good = sum(map(int, _PASSED.findall(output)))
        bad = sum(map(int, _FAILED.findall(output)))
        if case.get("status") == "run":
            good = good or 1
        else:
            bad = bad or 1
        passed, failed = passed + good, failed + bad
    return passed, failed


# What races: the tests of opaque/ and runtime/ in which threads share something.
_TSAN = "opaque_(thread|snapshot|plan_cache|run|failure|cell)|packed|memory"
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


def run_ctest(folder: str, name: str, only: str = "") -> tuple:
    """(passed, failed) of the tests built in `folder`; only: a regular expression that their names match."""
    print(f"\n=== {name}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        report = os.path.join(scratch, "ctest.xml")
        command = ["ctest", "--test-dir", folder, "--output-on-failure", "--output-junit", report]
        command += ["--timeout", "600", "-j", str(len(os.sched_getaffinity(0)))]
        command += ["-R", only] if only else []
        command += [
            "--test-output-size-passed",
            "10000000",
            "--test-output-size-failed",
            "10000000",
        ]
        environment = dict(os.environ, UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1")
        status = subprocess.run(command, env=environment).returncode
        if not os.path.exists(report):
            return 0, 1
        passed, failed = count_ctest(report)
    return passed, failed or int(status != 0)


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


def run_pytest(file: str, arguments: list, environment: dict | None = None) -> tuple:
    """(passed, failed) of one file in a process of its own, so that a crash costs that file alone. Errors are failures."""
    with tempfile.TemporaryDirectory() as scratch:
        report = os.path.join(scratch, "pytest.xml")
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", file, *arguments]
        status = subprocess.run(command, env={**os.environ, **(environment or {})}).returncode
        if status == 5:  # nothing selected
            return 0, 0
        if not os.path.exists(report):
            return 0, 1
        suites = list(xml.parse(report).iter("testsuite"))
    counts = (
        sum(int(s.get(key, 0)) for s in suites)
        for key in ("tests", "failures", "errors", "skipped")
    )
    total, failures, errors, skipped = counts
    bad = failures + errors
    return total - bad - skipped, bad or int(status != 0)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", required=True)
    options, pytest_arguments = parser.parse_known_args()
    full = "OPAQUE_TEST_FULL" in os.environ
    if full:
        os.environ.setdefault("OPAQUE_FUZZ_SECONDS", "60")
    counts = [
        run_ctest(os.path.join(options.root, "build"), "C tests"),
        run_ctest(os.path.join(options.root, "build-asan"), "C tests under ASan and UBSan"),
    ]
    if full:
        folder = os.path.join(options.root, "build-tsan")
        counts.append(run_ctest(folder, "Threads under TSan", _TSAN))
    print("\n=== Python tests", flush=True)
    os.chdir(options.root)
    files = sorted(glob.glob("tests/python/**/test_*.py", recursive=True))
    counts += [run_pytest(file, pytest_arguments) for file in files]
    if full:
        print("\n=== Python tests under ASan and UBSan", flush=True)
        environment = asan_environment(os.path.abspath(options.root))
        files = [f"tests/python/test_{name}.py" for name in _ASAN_FILES]
        counts += [run_pytest(file, pytest_arguments, environment) for file in files]
    passed, failed = (sum(column) for column in zip(*counts, strict=True))
    print(f"{passed} passed, {failed} failed", flush=True)
    return int(failed != 0)


if __name__ == "__main__":
    sys.exit(main())
