"""opq-opt on text: printing, verifying, passes, evaluation, errors with a place; no PyTorch and no BLAS in it."""

import json
import os
import subprocess

import numpy as np
import pytest

GRAPH = """graph @g {
  %0 = input f32[3,4]
  %1 = input f32[4]
  %2 = mul f32[3,4] %0, %1
  %3 = relu f32[3,4] %2
  output %3
}
"""


def run(root, *arguments, text=None):
    command = [os.path.join(root, "build", "opq-opt"), *map(str, arguments)]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=120)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "graph.ir").write_text(GRAPH)
    np.save(tmp_path / "input0.npy", np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4))
    np.save(tmp_path / "input1.npy", np.array([1, -2, 3, -4], dtype=np.float32))
    return tmp_path


def test_print_is_a_round_trip(root):
    assert run(root, "--print", "--verify", text=GRAPH).stdout == GRAPH


def test_passes_print_something_that_parses(root):
    simplified = run(root, "--passes=expand,simplify", text=GRAPH)
    assert simplified.returncode == 0 and "relu" not in simplified.stdout
    assert run(root, "--verify", "--print", text=simplified.stdout).stdout == simplified.stdout


@pytest.mark.parametrize(
    "how", [["--eval"], ["--eval-kernels"], ["--run"], ["--unfused", "--run"]], ids=" ".join
)
def test_run_and_eval(root, folder, how):
    result = run(root, *how, folder)
    assert result.returncode == 0, result.stderr
    x, w = np.load(folder / "input0.npy"), np.load(folder / "input1.npy")
    assert np.array_equal(np.load(folder / "out0.npy"), np.maximum(x * w, 0))


@pytest.mark.parametrize(
    "stage, word",
    [
        ("fused", "graph"),
        ("kernels", "kernel @"),
        ("schedule", "schedule @"),
        ("c", "\nvoid "),
        ("schedule_c", "\nvoid "),
        ("llvm", "define"),
        ("asm", "ret"),
    ],
)
def test_emit(root, stage, word):
    result = run(root, f"--emit={stage}", text=GRAPH)
    assert result.returncode == 0 and word in result.stdout, result.stderr


def test_code_for_another_processor(root, tmp_path):
    assert " v" in run(root, "--target=aarch64", "--emit=asm", text=GRAPH).stdout
    llvm = run(root, "--target=aarch64", "--emit=llvm", text=GRAPH).stdout
    assert "aarch64-unknown-linux-gnu" in llvm and "<4 x float>" in llvm
    result = run(root, "--target=aarch64", "--emit=obj", f"--out={tmp_path}", text=GRAPH)
    assert result.returncode == 0, result.stderr
    objects = list(tmp_path.iterdir())
    assert [path.name for path in objects] == ["kernel_0.o"]
    machine = objects[0].read_bytes()[18:20]
    assert int.from_bytes(machine, "little") == 183  # EM_AARCH64
    for target, lanes in (("avx2", 8), ("avx512", 16)):
        assert (
            f"<{lanes} x float>"
            in run(root, f"--target={target}", "--emit=llvm", text=GRAPH).stdout
        )
    result = run(root, "--target=z80", "--emit=asm", text=GRAPH)
    assert result.returncode == 1 and 'is "z80"; known are neon, avx2 and avx512' in result.stderr
    result = run(root, "--target=avx2", "--emit=obj", "--out=/nowhere", text=GRAPH)
    assert result.returncode == 1 and "/nowhere/kernel_0.o cannot be written" in result.stderr
    for wrong in (["--target=avx2"], ["--emit=obj"], ["--target=avx2", "--emit=obj"], ["--out=d"]):
        assert run(root, *wrong, text=GRAPH).returncode == 2


def test_schedule_after_a_pass(root):
    text = (
        "graph @g {\n  %0 = input f32[9,4]\n  %1 = scan_add f32[9,4] %0 {axis=0}\n  output %1\n}\n"
    )
    result = run(root, "--schedule", "--after=reduce", text=text)
    assert result.returncode == 0 and " = scan_add f32 " in result.stdout, result.stderr
    result = run(root, "--schedule", text=text)
    assert result.returncode == 0 and " = carry scan_add f64\n" in result.stdout, result.stderr
    result = run(root, "--schedule", "--after=fuse", text=text)
    assert result.returncode == 1 and '"fuse"; there are reduce, scan' in result.stderr
    assert run(root, "--emit=c", "--after=reduce", text=text).returncode == 2


def test_emit_json(root):
    result = run(root, "--emit=json", text=GRAPH)
    assert result.returncode == 0, result.stderr
    assert [node["op"] for node in json.loads(result.stdout)["nodes"]].count("mul") == 1


def test_compile(root):
    """How long it took."""
    result = run(root, "--compile", text=GRAPH)
    assert result.returncode == 0 and "compiled in" in result.stdout + result.stderr
    assert run(root, "--compile", text=GRAPH.replace("relu", "nonsense")).returncode == 1


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "line 1"),
        ("graph @g {\n  %0 = inpu f32[2]\n}", "line 2"),
        ("graph @g {\n  %0 = input f32[2]\n  %1 = add f32[2] %0, %7\n}", "line 3"),
        ("graph @g {\n  %0 = input f32[2]\n  %1 = add f32[3] %0, %0\n}", "line 3"),
        ("\x00\xff garbage", "line 1"),
    ],
)
def test_bad_text_names_the_place(root, text, message):
    result = run(root, text=text)
    assert result.returncode == 1 and message in result.stderr


def test_wrong_inputs(root, folder):
    np.save(folder / "input1.npy", np.zeros(4))
    result = run(root, "--run", folder)
    assert result.returncode == 1 and "input1.npy: dtype <f8, expected <f4" in result.stderr
    (folder / "input1.npy").unlink()
    assert "input1.npy" in run(root, "--run", folder).stderr
    assert run(root, "--nonsense").returncode == 2
    assert run(root, "--passes=nonsense", text=GRAPH).returncode == 1


def test_links_no_pytorch_and_no_blas(root):
    libraries = subprocess.run(
        ["ldd", os.path.join(root, "build", "opq-opt")], capture_output=True, text=True
    ).stdout
    names = " ".join(line.split()[0] for line in libraries.splitlines())  # an address may spell c10
    assert names and not any(name in names for name in ("torch", "c10", "blas", "mkl", "libLLVM"))
