"""Faults in a folder: what is written, that it can be run again, that it shrinks to what is broken, and report_bug().

What opq-opt --reduce finds is tried on build/tests/tools/opq_opt_broken: opq-opt over a compiler that gets an op wrong
(OPQ_BROKEN, see tests/tools/broken.c). Kernels are evaluated there, not compiled, which takes a tenth of the time.
"""

import json
import os
import random
import re
import subprocess
import zipfile

import numpy as np
import pytest
import torch
import torch_opaque

UNARY = ("neg", "abs", "sin", "tanh", "cos")
BINARY = ("add", "sub", "mul")


def random_graph(seed: int, count: int, special: str) -> str:
    """About `count` nodes, one of which is `special` (lines of text with %X, %Y for values, the last one whole)."""
    rng = random.Random(seed)
    lines = [f"  %{i} = input f32[16,32]" for i in range(3)]
    whole, used, special_at = [0, 1, 2], set(), rng.randrange(count // 4, count)

    def pick() -> str:
        used.add(x := rng.choice(whole[-12:]))
        return f"%{x}"

    def add(op: str, operands: str, shape: str = "16,32") -> str:
        lines.append(f"  %{len(lines)} = {op} f32[{shape}] {operands}")
        return f"%{len(lines) - 1}"

    while len(lines) < 3 + count:
        kind = rng.random()
        if special and len(lines) >= special_at:
            value = pick()
            for op in special.split():
                value = add(op, value)
            used.discard(len(lines) - 1)  # an output: what comes behind may hide that it is wrong
            shown, special = len(lines) - 1, ""
        elif kind < 0.1:
            row = add("tanh", add("sum", f"{pick()} {{axes=[1], tree=lanes}}", "16,1"), "16,1")
            add("add", f"{pick()}, {row}")
        elif kind < 0.5:
            add(rng.choice(UNARY), pick())
        else:
            add(rng.choice(BINARY), f"{pick()}, {pick()}")
        whole.append(len(lines) - 1)
    sinks = [x for x in whole[3:] if x not in used or x == shown]
    outputs = ", ".join(f"%{x}" for x in sinks)
    return "graph @g {\n" + "\n".join(lines) + f"\n  output {outputs}\n}}\n"


@pytest.fixture
def write(tmp_path):
    """Writes a graph of three inputs and its inputs; returns the folder."""

    def write(text: str, seed: int = 0):
        folder = tmp_path / f"g{seed}"
        folder.mkdir()
        (folder / "graph.ir").write_text(text)
        for i in range(3):
            numbers = np.random.default_rng(seed).standard_normal((16, 32))
            np.save(folder / f"input{i}.npy", numbers.astype(np.float32))
        return folder

    return write


@pytest.fixture
def broken(root):
    """Runs opq-opt over the broken compiler."""

    def run(how: str, *arguments):
        return subprocess.run(
            [os.path.join(root, "build/tests/tools/opq_opt_broken"), *map(str, arguments)],
            env={**os.environ, "OPQ_BROKEN": how, "OPAQUE_EXECUTOR": "reference"},
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


def ops(text: str) -> list:
    """Ops of a graph but inputs, in order."""
    return [op for op in re.findall(r" = (\w+)", text) if op not in ("input", "const", "scalar")]


# ---- opq-opt --reduce


@pytest.mark.parametrize("seed", range(20))
def test_the_broken_op_is_found(write, broken, opq_opt, seed):
    folder = write(random_graph(seed, 200, "exp"), seed)
    result = broken("value exp", "--reduce", folder)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("# differs: output 0, element ") and ops(result.stdout) == [
        "exp"
    ]
    reduced = folder / "reduced"
    assert (reduced / "graph.ir").read_text() == result.stdout.partition("\n")[2]
    opq_opt("--run", reduced)
    right = np.load(reduced / "out0.npy")
    assert broken("value exp", "--run", reduced).returncode == 0
    assert not np.array_equal(np.load(reduced / "out0.npy"), right)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("value", "differs: "),
        ("fail", "fails: broken: exp"),
        ("crash", "crashes: Segmentation fault"),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_two_ops_that_are_wrong_together(write, broken, how, says, seed):
    folder = write(random_graph(seed, 200, "exp log1p"), seed)
    result = broken(f"{how} exp log1p", "--reduce", folder)
    assert result.stdout.startswith(f"# {says}"), result.stderr
    assert ops(result.stdout) == ["exp", "log1p"]


def test_a_hang_is_a_fault(write, broken):
    graph = "graph @g {\n  %0 = input f32[16,32]\n  %1 = exp f32[16,32] %0\n  output %1\n}\n"
    result = broken("hang exp", "--reduce", write(graph), "--timeout=2")
    assert result.stdout.startswith("# hangs\n"), result.stderr


def test_two_ops_far_apart(write, broken):
    """One at the beginning, one at the end, joined by a chain that must stay."""
    chain = ["%0 = input f32[16,32]", "%1 = exp f32[16,32] %0"]
    chain += [f"%{i} = sin f32[16,32] %{rng}" for i, rng in enumerate([0, *range(2, 60)], 2)]
    chain += ["%61 = log1p f32[16,32] %1"]
    text = "graph @g {\n  " + "\n  ".join(chain) + "\n  output %60, %61\n}\n"
    result = broken("value exp log1p", "--reduce", write(text))
    assert ops(result.stdout) == ["exp", "log1p"], result.stderr


def test_large_graphs_are_quick(write, broken):
    folder = write(random_graph(1, 2000, "exp"))
    result = broken("value exp", "--reduce", folder)
    assert ops(result.stdout) == ["exp"]
    assert result.stderr.count("\n") < 60


def test_nothing_is_wrong(write, opq_opt, root):
    folder = write(random_graph(1, 10, "exp"))
    command = [os.path.join(root, "build/opq-opt"), "--reduce", folder]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1 and "nothing goes wrong" in result.stderr
    assert not (folder / "reduced").exists()


def test_halves_may_round_differently(write, root, broken):
    """A kernel keeps f32 between nodes of f16: that is no fault. What is far off is one."""
    lines = ["%0 = input f32[16,32]", "%1 = cast f16[16,32] %0"]
    lines += [
        f"%{i} = {op} f16[16,32] %{i - 1}" for i, op in enumerate(["exp", "sin", "tanh"] * 3, 2)
    ]
    folder = write("graph @g {\n  " + "\n  ".join(lines) + f"\n  output %{len(lines) - 1}\n}}\n")
    command = [os.path.join(root, "build/opq-opt"), "--reduce", folder]
    assert "nothing goes wrong" in subprocess.run(command, capture_output=True, text=True).stderr
    assert "nothing goes wrong" in broken("value exp", "--reduce", folder).stderr
    assert ops(broken("crash sin", "--reduce", folder).stdout) == ["sin"]


def test_calls_and_undefined_contents_become_inputs(write, broken):
    text = """graph @g {
  %0 = input f32[16,32]  # x
  %1 = extern f32[16,32] %0 {key="aten::fft", result=1}  # a.py:1
  %2 = extern_result f32[16,32] %1 {result=0}  # a.py:1
  %3 = undefined f32[16,32]  # a.py:2
  %4 = add f32[16,32] %2, %3  # a.py:3
  %5 = exp f32[16,32] %4  # a.py:4
  %6 = sum f32[16,1] %5 {axes=[1], tree=lanes}
  output %6, %1
}
"""
    result = broken("value exp", "--reduce", write(text))
    assert ops(result.stdout) == ["exp"], result.stderr
    assert "input f32[16,32]  # add, a.py:3" in result.stdout


def test_an_earlier_result_is_replaced(write, broken):
    folder = write(random_graph(1, 20, "exp"))
    (folder / "reduced").mkdir()
    for name in ("input0.npy", "input1.npy", "input2.npy"):
        (folder / "reduced" / name).write_text("old")
    assert broken("value exp", "--reduce", folder).returncode == 0
    assert sorted(p.name for p in (folder / "reduced").iterdir()) == ["graph.ir", "input0.npy"]


@pytest.mark.parametrize("arguments", [["--timeout=0"], ["--run", "x"], ["--eval", "x"]])
def test_usage(root, arguments):
    command = [os.path.join(root, "build/opq-opt"), "--reduce", "x", *arguments]
    assert subprocess.run(command, capture_output=True).returncode == 2


def test_a_composite_op_is_looked_into(write, broken):
    text = """graph @g {
  %0 = input f32[16,32]
  %1 = softmax f32[16,32] %0 {axes=[1], tree=lanes}  # a.py:1
  %2 = neg f32[16,32] %1
  output %2
}
"""
    folder = write(text)
    assert ops(broken("value exp", "--reduce", folder).stdout) == ["exp"]
    assert ops(broken("crash exp sum", "--reduce", folder).stdout) == ["exp", "sum"]


# ---- OPAQUE_REPRO=DIR, and inputs that fit statistics

PROGRAM = """
import torch
x = torch.tensor([[1.0, float("nan"), -2.0, 0.0], [float("inf"), 5.0, -0.5, 0.0]], device="opaque")
i = torch.tensor([3, 0, 1], device="opaque")
b = torch.tensor([True, True, False], device="opaque")
for _ in range(2):
    print((x[:, i] * 2).cpu().tolist())
print((x.to(torch.bfloat16) + 1).sum().item(), (i[b] + 1).cpu().tolist(), (b & ~b).cpu().tolist())
with torch.backends.opaque.flags(fusion=False):
    print((x + 3).cpu().tolist())
"""


def test_every_plan_is_written_and_runs_again(tmp_path, run_python, opq_opt):
    plain = run_python(PROGRAM).stdout
    assert run_python(PROGRAM, OPAQUE_REPRO=str(tmp_path / "runs")).stdout == plain
    folders = sorted((tmp_path / "runs").iterdir())
    assert len(folders) >= 4
    assert [f for f in folders if "--unfused" in (f / "environment.json").read_text()] == folders[
        -1:
    ]
    for folder in folders:
        names = sorted(p.name for p in folder.iterdir())
        assert names == ["environment.json", "graph.ir", "inputs.json", "kernels.txt"]
        environment = json.loads((folder / "environment.json").read_text())
        assert environment["schema"] == "opaque.environment"
        assert environment["host"].startswith(
            f"torch {torch.__version__.partition('+')[0]}, Python "
        )
        assert environment["variables"]["OPAQUE_REPRO"] == str(tmp_path / "runs")
        assert environment["command"][1] == "-c"
        opq_opt("--run", folder)
        ran = [np.load(p).tobytes() for p in sorted(folder.glob("out*.npy"))]
        opq_opt("--eval", folder)
        assert [np.load(p).tobytes() for p in sorted(folder.glob("out*.npy"))] == ran

    inputs = json.loads((folders[0] / "inputs.json").read_text())["inputs"]
    by_dtype = {x["dtype"]: x for x in inputs}
    assert by_dtype["f32"] == {
        **{"input": by_dtype["f32"]["input"], "dtype": "f32", "shape": [2, 4], "min": -2, "max": 5},
        **{"mean": 3.5 / 6, "zeros": 2, "nan": 1, "inf": 1, "-inf": 0},
    }
    assert by_dtype["i64"]["min"] == 0 and by_dtype["i64"]["max"] == 3


def stand_in(tmp_path, opq_opt, dtype: str, line: str, count: int = 4096) -> np.ndarray:
    """The input that is made up for a line of statistics."""
    (tmp_path / "graph.ir").write_text(
        f"graph @g {{\n  %0 = input {dtype}[{count}]\n  %1 = reshape {dtype}[{count},1] %0\n  output %1\n}}\n"
    )
    head = f'{{"input": 0, "dtype": "{dtype}", "shape": [{count}], '
    (tmp_path / "inputs.json").write_text('{"inputs": [\n' + head + line + "}]}\n")
    opq_opt("--eval", tmp_path)
    return np.load(tmp_path / "out0.npy")


def test_random_inputs_fit_the_statistics(tmp_path, opq_opt):
    line = '"min": -1, "max": 9, "mean": 0.5, "zeros": 100, "nan": 40, "inf": 20, "-inf": 10'
    x = stand_in(tmp_path, opq_opt, "f32", line)
    finite = x[np.isfinite(x)]
    assert finite.min() >= -1 and finite.max() <= 9 and abs(finite.mean() - 0.5) < 0.2
    assert 80 <= (x == 0).sum() <= 100 and 30 <= np.isnan(x).sum() <= 40
    assert 15 <= (x == np.inf).sum() <= 20 and 5 <= (x == -np.inf).sum() <= 10
    assert np.array_equal(x, stand_in(tmp_path, opq_opt, "f32", line), equal_nan=True)
    i = stand_in(tmp_path, opq_opt, "i64", '"min": 2, "max": 6, "mean": 3.5, "zeros": 0')
    assert set(i.ravel()) == {2, 3, 4, 5, 6} and abs(i.mean() - 3.5) < 0.2
    large = '"min": -9223372036854775808, "max": 9223372036854775807, "mean": -0.5, "zeros": 0'
    assert stand_in(tmp_path, opq_opt, "i64", large).min() < 0
    b = stand_in(tmp_path, opq_opt, "bool", '"min": 0, "max": 1, "mean": 0.25, "zeros": 3072')
    assert abs(b.mean() - 0.25) < 0.05
    typed = stand_in(tmp_path, opq_opt, "f32", "")  # of a plan that no run asked for
    assert -1 <= typed.min() < -0.9 and 0.9 < typed.max() <= 1
    assert set(stand_in(tmp_path, opq_opt, "i64", "").ravel()) == {0}  # any index


@pytest.mark.parametrize("dtype", ["f32", "i64", "u8", "bool", "f16"])
def test_any_statistics_are_read(tmp_path, opq_opt, dtype):
    good = '"min": 1, "max": 2, "mean": 1.5, "zeros": 3, "nan": 4'
    for bad in ("", "null", "-", "1e999", "nan", "-1e308", "9" * 30, '"', "{}"):
        for part in ("1", "2", "1.5", "3", "4"):
            stand_in(tmp_path, opq_opt, dtype, good.replace(f": {part}", f": {bad}"), 8)


# ---- report_bug


def test_the_page_shows_what_happens(tmp_path, root, run_warm, broken):
    with open(os.path.join(root, "docs/bugs.md")) as file:
        blocks = re.findall(r"^```(\w+)\n(.*?)^```$", file.read(), re.M | re.S)
    (_, program), (_, printed), (_, reduced) = blocks
    run = f"import os; os.chdir({str(tmp_path)!r}); exec(compile({program!r}, 'bugs.py', 'exec'))"
    shown = run_warm(run).stdout

    def stable(text):  # but for sizes
        return re.sub(r" +[\d,]+ bytes", " N bytes", text)

    assert stable(shown) == stable(printed)
    with zipfile.ZipFile(tmp_path / "bug.zip") as file:
        file.extractall(tmp_path / "bug")
    result = broken("value exp", "--reduce", tmp_path / "bug")
    assert "$ opq-opt --reduce bug\n" + result.stderr + result.stdout == reduced


def model(x, w):
    return torch.relu(x @ w).sum(-1)


@pytest.fixture
def tensors():
    made = torch.randn(8, 16, device="opaque"), torch.randn(16, 4, device="opaque")
    torch.opaque.synchronize()  # data, not pending random numbers
    return made


def test_report(tmp_path, capsys, tensors, opq_opt):
    before = torch_opaque.stats()["kernels_run"]
    path = torch_opaque.report_bug(model, *tensors, dir=tmp_path / "bug.zip")
    assert torch_opaque.stats()["kernels_run"] == before
    printed = capsys.readouterr().out
    assert printed.startswith(f"{path}:\n") and "statistics" in printed.splitlines()[-1]
    with zipfile.ZipFile(path) as file:
        names = sorted(file.namelist())
        file.extractall(tmp_path / "bug")
    expected = ["environment.json", "graph.ir", "inputs.json", "kernels.txt", "stats.json"]
    assert names == expected and all(f"  {name} " in printed for name in names)
    text = (tmp_path / "bug" / "graph.ir").read_text()
    assert "input f32[8,16]  # x\n" in text and "# test_repro.py:" in text
    assert "kernel @" in (tmp_path / "bug" / "kernels.txt").read_text()
    assert json.loads((tmp_path / "bug" / "stats.json").read_text())["stats"]["ops_recorded"] > 0
    opq_opt("--run", tmp_path / "bug")


def test_report_has_the_end_of_the_log(tmp_path, tensors, monkeypatch):
    monkeypatch.setenv("OPAQUE_LOG_FILE", str(tmp_path / "log"))
    torch_opaque.report_bug(model, *tensors, dir=tmp_path / "none")  # nothing was logged
    assert not (tmp_path / "none" / "log.txt").exists()
    (tmp_path / "log").write_text("first\n" + "line\n" * 20000 + "last\n")
    torch_opaque.report_bug(model, *tensors, dir=tmp_path / "bug")
    text = (tmp_path / "bug" / "log.txt").read_text()
    assert text.endswith("line\nlast\n") and len(text) == 1 << 16


def test_report_with_inputs(tmp_path, capsys, tensors, opq_opt):
    folder = tmp_path / "bug"
    torch_opaque.report_bug(model, *tensors, dir=folder, inputs=True)
    assert "the values" in capsys.readouterr().out.splitlines()[-1]
    opq_opt("--run", folder)
    assert np.array_equal(np.load(folder / "out0.npy"), model(*tensors).cpu().numpy())
    x, w = (np.load(folder / f"input{i}.npy") for i in range(2))
    assert np.array_equal(x, tensors[0].cpu()) and np.array_equal(w, tensors[1].cpu())


def test_report_of_an_exception(tmp_path, capsys):
    secret = "text of the source"
    try:
        raise RuntimeError("it went wrong")
    except RuntimeError:
        torch_opaque.report_bug(dir=tmp_path / "bug")
    text = (tmp_path / "bug" / "error.txt").read_text()
    assert text.endswith("RuntimeError: it went wrong\n") and "test_repro.py:" in text
    assert secret not in text and "raise" not in text
    assert not (tmp_path / "bug" / "graph.ir").exists()


def test_report_of_a_function_that_raises(tmp_path, tensors):
    def wrong(x):
        return x @ x

    torch_opaque.report_bug(wrong, tensors[0], dir=tmp_path / "bug")
    text = (tmp_path / "bug" / "error.txt").read_text()
    assert "in wrong\n" in text and "RuntimeError: " in text


def test_report_refuses(tmp_path, tensors):
    (tmp_path / "there.zip").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").write_text("mine")
    for name in ("there.zip", "folder"):
        with pytest.raises(FileExistsError, match=name):
            torch_opaque.report_bug(model, *tensors, dir=tmp_path / name)
    with pytest.raises(TypeError, match="expected an opaque tensor or a function"):
        torch_opaque.report_bug(3, dir=tmp_path / "a.zip")
    with pytest.raises(TypeError, match="neither returned nor wrote"):
        torch_opaque.report_bug(lambda: 3, dir=tmp_path / "a.zip")
    with pytest.raises(TypeError):
        torch_opaque.report_bug(None, 3, dir=tmp_path / "a.zip")
    assert (tmp_path / "there.zip").read_text() == "mine" and not (tmp_path / "a.zip").exists()
