"""find_nan(): the first op that makes a NaN or an infinity; and explain --find-nan."""

import json
import subprocess

import pytest
import torch
import torch_opaque
from conftest import PYTHON
from torch import nn

D = "opaque"


def look(fn, *args, **kwargs):
    torch.opaque.synchronize()
    return torch_opaque.find_nan(fn, *args, show=False, **kwargs)


def test_the_op_that_makes_it_and_not_those_that_pass_it_on():
    x = torch.tensor([1.0, -1.0, 4.0], device=D)

    def f(x):
        y = x * 2
        z = y.sqrt()  # of -2
        return (z + 1).sum(), z.log()

    found = look(f, x)
    assert found.what == "nan" and found.op == "sqrt" and (found.count, found.size) == (1, 3)
    assert found.line.startswith("test_first_nan.py:") and not found.backward and not found.is_input
    (row,) = found.inputs
    assert (row["least"], row["greatest"], row["NaN"], row["type"]) == ("-2", "8", 0, "float32[3]")
    assert "sqrt" in found.kernel_ops and found.kernel
    assert f"the first NaN is made by sqrt at {found.line}, 1 of 3 elements" in found.text()
    assert json.loads(found.to_json())["inputs"][0]["operand"] == row["operand"]


@pytest.mark.parametrize(
    ("f", "op"),
    [
        (lambda x: x / x, "div"),
        (lambda x: (x * 1e30 - torch.inf).exp() - torch.inf * x, "mul"),
        (lambda x: torch.softmax(x.masked_fill(x < 5, -torch.inf), -1), "softmax"),
        (lambda x: torch.special.gammaln(x - 1.0) * 0, "mul"),  # inf of a CPU kernel, times 0
        (lambda x: torch.linalg.solve(x.view(2, 2) * 0 + torch.nan, x.view(2, 2)), "add"),
        (lambda x: x.double().log() * x.double(), "mul"),
        (
            lambda x: torch.zeros(4, device=D).index_add(
                0, torch.tensor([0], device=D), (x / x)[:1]
            ),
            "div",
        ),
    ],
)
def test_ops(f, op):
    x = torch.tensor([0.0, 1.0, 2.0, 3.0], device=D)
    found = look(f, x)
    assert found and found.what == "nan" and op in (found.op, found.op.removeprefix("aten::"))


def test_infinities_are_an_option():
    x = torch.tensor([0.0, 1.0], device=D)
    assert look(lambda: 1 / x) is None
    found = look(lambda: 1 / x, infinities=True)
    assert found.what == "inf" and found.count == 1 and "infinity" in found.text()
    row = next(row for row in found.inputs if row["type"].startswith("float32"))
    assert row["operand"] == "x" and row["zeros"] == 1


def test_an_input_that_has_it():
    x = torch.tensor([torch.nan, 1.0], device=D)
    found = look(lambda a: (a + 1).exp(), x)
    assert (
        found.is_input and "comes in with an input, 1 of 2" in found.text() and "# a" in found.node
    )


def test_what_is_not_used_is_no_fault():
    x = torch.tensor([-1.0, 1.0], device=D)
    scratch = torch.empty(64, device=D)
    assert look(lambda: torch.where(x > 0, x, 0.0) + scratch.zero_()[0]) is None
    assert torch_opaque.find_nan(lambda: x + 1) is None


def test_a_backward_op_shows_its_forward_op():
    """sqrt of 0 is 0, and its gradient is infinite: times 0 it is NaN."""
    w = nn.Parameter(torch.tensor([0.0, 4.0], device=D))

    def step():
        root = w.sqrt()
        (root * torch.tensor([0.0, 1.0], device=D)).sum().backward()

    found = look(step)
    assert found.backward and "sqrt" in found.forward and found.line == found.line.strip()
    with open(__file__) as file:
        line = next(i for i, text in enumerate(file, 1) if "root = w.sqrt()" in text)
    assert found.line == f"test_first_nan.py:{line}" and "a gradient of" in found.text()
    assert w.grad is None and w.tolist() == [0.0, 4.0]  # it ran on snapshots


def test_modules_have_their_names():
    model = nn.Sequential(nn.Linear(4, 4), nn.Softplus(), nn.LayerNorm(4)).to(D)
    with torch.no_grad():
        model[2].weight[1] = torch.nan
    found = look(model, torch.randn(2, 4, device=D))
    assert found.is_input and "2.weight" in found.node
    with torch.no_grad():
        model[2].weight[1] = 1.0
        model[0].weight.mul_(1e38)
    found = look(model, torch.full((2, 4), 1e30, device=D), infinities=True)
    assert found.module == "0" and found.what in ("inf", "nan")


def test_a_function_that_reads_values_on_the_way():
    x = torch.tensor([2.0, 3.0], device=D)

    def f():
        y = (x - 3).sqrt()
        if y.sum().item() > 0:
            return y
        return y.exp()

    assert look(f).op == "sqrt"


def test_half_types_and_complex():
    x = torch.tensor([300.0, 2.0], device=D, dtype=torch.float16)
    assert look(lambda: x * x, infinities=True).op == "mul"
    z = torch.tensor([0j, 1j], device=D)
    assert look(lambda: z / z).what == "nan"


SCRIPT = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
x = torch.randn(8, 4)
for step in range(6):
    root = (model(x).abs() - 100.0 * (step == 3)).sqrt()
    loss = torch.where(root == root, root, 0.0).mean() if step < 3 else root.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("finished")
"""


def run(folder, *words):
    folder.joinpath("train.py").write_text(SCRIPT)
    command = [*PYTHON, "-m", "torch_opaque", "explain", *map(str, words), "train.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_the_command_line(tmp_path):
    result = run(tmp_path, "--find-nan", "--json", "nan.json")
    assert result.returncode == 1 and "by sqrt at train.py:8" in result.stdout, result
    assert "finished" not in result.stdout + result.stderr  # the program ends there
    document = json.loads((tmp_path / "nan.json").read_text())
    assert document["schema"] == "opaque.nan" and document["line"] == "train.py:8"
    assert run(tmp_path, "--infinities").returncode == 2
