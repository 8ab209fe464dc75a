"""What the Python tests share. They run in the environment of ./dev, where `import torch` loads the package."""

import os
import subprocess
import sys

import pytest
import torch
import torch_opaque

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@pytest.fixture(autouse=True)
def _fresh():
    """Counters start at zero, modes and random numbers where they always start."""
    torch.manual_seed(0)
    torch_opaque.reset_stats()
    yield
    assert torch.backends.opaque.fusion, "a test left its mode behind"


@pytest.fixture
def root() -> str:
    """The source tree."""
    return ROOT


@pytest.fixture
def run_python():
    """Runs a program text in a fresh interpreter; returns its stdout, fails with its stderr."""

    def run(text: str, check: bool = True, **environment) -> subprocess.CompletedProcess:
        result = subprocess.run(
            [sys.executable, "-c", text],
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
