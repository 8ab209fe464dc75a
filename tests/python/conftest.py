"""What the Python tests share. They run in the environment of ./dev, where `import torch` loads the package.

A test marked `unchanged_folders("docs", ...)` builds something of what is in these folders alone, which is slow: ./dev test runs it when
something in them, or the test's own file, is other than when it last passed (build/passed/ has that); --full and pytest always run it.
Of the cases of a test marked `sampled(n)` ./dev test runs one in n; --full and pytest run all.
"""

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter

import pytest
import torch
import torch_opaque

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# An interpreter that starts in 0.1 s under ./dev test, for programs to which it does not matter how torch was imported.
os.environ.setdefault("WARM_PYTHON", sys.executable)
PYTHON = [sys.executable, "-IS", os.path.join(ROOT, "tests", "warm", "python")]


def pytest_addoption(parser):
    parser.addoption(
        "--skip-unchanged", action="store_true", help="skip what passed on the same folders"
    )
    parser.addoption(
        "--sample", action="store_true", help="of the cases of a test marked sampled(n) one in n"
    )


@functools.cache
def _content(path: str) -> bytes:
    """A hash of what is in a file or folder, without what was built."""
    found = hashlib.sha256()
    if os.path.isfile(path):
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).digest()
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(f for f in folders if f not in ("__pycache__", "node_modules"))
        for name in sorted(n for n in names if not n.endswith((".pyc", ".so"))):
            found.update(os.path.relpath(os.path.join(folder, name), path).encode() + b"\0")
            found.update(_content(os.path.join(folder, name)))
    return found.digest()


def _passed(item) -> tuple:
    """(the file that says on what the test passed, what it would say now); None for a test without the mark."""
    marker = item.get_closest_marker("unchanged_folders")
    if marker is None:
        return None
    of = [str(item.path), *(os.path.join(ROOT, name) for name in marker.args)]
    text = hashlib.sha256(b"".join(map(_content, of))).hexdigest()
    name = hashlib.sha256(item.nodeid.encode()).hexdigest()[:24]
    return os.path.join(ROOT, "build", "passed", name), text


def pytest_configure(config):
    config.addinivalue_line("markers", "alone: measures times; ./dev test runs nothing beside it")
    config.addinivalue_line(
        "markers",
        "unchanged_folders(names...): needs to run only when something in these folders changed",
    )
    config.addinivalue_line("markers", "sampled(n): has many cases of a kind")


def _sample(config, items):
    """Leaves of each test marked sampled(n) the first case and each n-th behind it."""
    met, kept, left = Counter(), [], []
    for item in items:
        marker = item.get_closest_marker("sampled")
        name = item.nodeid.partition("[")[0]
        (left if marker and met[name] % marker.args[0] else kept).append(item)
        met[name] += 1
    config.hook.pytest_deselected(items=left)
    items[:] = kept


def pytest_collection_modifyitems(config, items):
    if config.getoption("--sample"):
        _sample(config, items)
    for item in items if config.getoption("--skip-unchanged") else ():
        if known := _passed(item):
            path, text = known
            if os.path.exists(path) and open(path).read() == text:  # noqa: SIM115
                names = ", ".join(item.get_closest_marker("unchanged_folders").args)
                item.add_marker(pytest.mark.skip(reason=f"passed on the same {names}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "call" and report.passed and (known := _passed(item)):
        path, text = known
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
    return report


@pytest.fixture(autouse=True)
def _fresh():
    """Counters start at zero, modes and random numbers where they always start."""
    torch.manual_seed(0)
    torch_opaque.reset_stats()
    yield
    assert torch.backends.opaque.fusion, "a test left its mode behind"


@pytest.fixture
def planned():
    """What the test counts or reads is of plans for all of a graph."""
    with torch_opaque.planned():
        yield


@pytest.fixture(scope="session")
def root() -> str:
    """The source tree."""
    return ROOT


def without_settings() -> dict:
    """The environment without settings of ours, but for where kernels are kept."""
    return {
        k: v for k, v in os.environ.items() if k == "OPAQUE_CACHE" or not k.startswith("OPAQUE_")
    }


def _runner(interpreter: list):
    def run(text: str, check: bool = True, **environment) -> subprocess.CompletedProcess:
        result = subprocess.run(
            [*interpreter, "-c", text],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )
        if check:
            assert result.returncode == 0, result.stderr
        return result

    return run


@pytest.fixture
def run_python():
    """Runs a program text in a fresh interpreter; returns its stdout, fails with its stderr."""
    return _runner([sys.executable])


@pytest.fixture
def run_warm():
    """The same, where it does not matter how torch was imported."""
    return _runner(PYTHON)


@pytest.fixture
def opq_opt(root):
    """Runs build/opq-opt; returns its stdout."""

    def run(*arguments: str) -> str:
        result = subprocess.run(
            [os.path.join(root, "build", "opq-opt"), *map(str, arguments)],
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run


@pytest.fixture(scope="module")
def browser():
    """Chromium, without a window."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not installed")
    from playwright.sync_api import sync_playwright

    arguments = [
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
    ]
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=arguments)
        yield started
        started.close()


@pytest.fixture
def in_threads():
    """in_threads(work, arguments) calls work with each argument in a thread of its own. What one raises is raised."""

    def call(work, arguments):
        raised = []

        def run(one):
            try:
                work(one)
            except Exception as error:
                raised.append(error)

        threads = [threading.Thread(target=run, args=(one,)) for one in arguments]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if raised:
            raise raised[0]

    return call
