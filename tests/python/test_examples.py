"""Every example runs and agrees with the CPU; each checks itself and says so by its exit status."""

import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import PYTHON


@pytest.mark.parametrize(
    "arguments",
    [["gpt2.py"], ["gpt2.py", "--cache"], ["three_lines.py"]],
    ids=" ".join,
)
def test_example(root, arguments):
    script = os.path.join(root, "examples", arguments[0])
    result = subprocess.run(
        [*PYTHON, script, *arguments[1:]], capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("name", ["minilm.py", "digits.py"])
def test_demo_runs(root, name):
    """These two are parts of it, and their exit status is one of its own."""
    with open(os.path.join(root, "examples", "demo.py")) as file:
        text = file.read()
    assert f"{name[:-3]}.main([])" in text


@pytest.mark.timeout(1200)
def test_demo(root):
    """As README begins with it: results, what was recorded, what became of it, times."""
    result = subprocess.run(
        [os.path.join(root, "dev"), "demo"], capture_output=True, text=True, timeout=1200
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr
    out = result.stdout
    for title in ("embeddings", "recorded", "fused", "kernels", "the encoder on", "training"):
        assert any(line.startswith("====") and title in line for line in out.splitlines()), title
    assert "graph @g {" in out and "kernel matmul @" in out and "of roof" in out
    assert "same bits" in out and "PyTorch on the CPU, eager:" in out
    assert out.count(": ok") == 4 and "WRONG" not in out  # embeddings, the encoder, two networks


def test_plain_c(root):
    result = subprocess.run(
        [os.path.join(root, "build", "examples", "plain")], capture_output=True, text=True
    )
    assert result.returncode == 0 and "reference evaluator: yes" in result.stdout, result.stderr


def test_distributed(root):
    command = [
        *PYTHON,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    result = subprocess.run(
        [*command, os.path.join(root, "examples", "ddp.py"), "--steps", "30"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "WARM_EXECUTABLE": PYTHON[-1]},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("ranks agree") == 2


def test_exported(root, tmp_path):
    """C, C++, and Python with NumPy and ctypes alone; C and C++ under the address sanitizer, which finds leaks too."""
    folder = os.path.join(root, "examples", "export")
    subprocess.run([sys.executable, os.path.join(folder, "export.py"), tmp_path], check=True)
    library = str(tmp_path / "tagger.so")
    wanted = (tmp_path / "expected.txt").read_text()
    for source, compiler in (("run.c", "cc"), ("run.cpp", "c++")):
        program = str(tmp_path / source.replace(".", "_"))
        command = [
            compiler,
            "-fsanitize=address,undefined",
            "-Wall",
            "-Wextra",
            "-Werror",
            f"-I{tmp_path}",
            "-o",
            program,
        ]
        subprocess.run(
            [*command, os.path.join(folder, source), library, f"-Wl,-rpath,{tmp_path}"], check=True
        )
        shown = subprocess.run([program], capture_output=True, text=True)
        assert (shown.stdout, shown.returncode) == (wanted, 0), shown.stderr
    script = os.path.join(folder, "run_numpy.py")
    shown = subprocess.run(
        [sys.executable, "-S", script, library],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(np.__file__))},
    )
    assert shown.stdout == wanted, shown.stderr
