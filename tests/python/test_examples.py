"""Every example runs and agrees with the CPU; each checks itself and says so by its exit status."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "arguments",
    [
        ["minilm.py"],
        ["digits.py", "--model", "mlp"],
        ["digits.py", "--model", "convnet"],
        ["gpt2.py"],
        ["gpt2.py", "--cache"],
        ["three_lines.py"],
    ],
    ids=" ".join,
)
def test_example(root, arguments):
    script = os.path.join(root, "examples", arguments[0])
    result = subprocess.run(
        [sys.executable, script, *arguments[1:]], capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_plain_c(root):
    result = subprocess.run(
        [os.path.join(root, "build", "examples", "plain")], capture_output=True, text=True
    )
    assert result.returncode == 0 and "reference evaluator: yes" in result.stdout, result.stderr


def test_distributed(root):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    result = subprocess.run(
        [*command, os.path.join(root, "examples", "ddp.py"), "--steps", "30"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("ranks agree") == 2
