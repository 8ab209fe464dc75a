"""Why a run had to be planned: what tells it from the nearest plan."""

import pytest
import torch
import torch.nn.functional as F
import torch_opaque

D = "opaque"


def made(*shape, dtype=torch.float32):
    result = torch.ones(shape, dtype=dtype, device=D)
    torch.opaque.synchronize()
    return result


X = (24, 40)
_odd = iter(range(41, 10000))


def why(fn, *args):
    (run,) = torch_opaque.explain(fn, *args, show=False).runs
    return run["why"]


def mlp(x, w, act=torch.relu, scale=2.0):
    h = act(x @ w)
    return h * scale + h.sin()


# what ran before, what runs now, and what the difference is called; n is a size of its own for each row
CHANGES = {
    "shape": (
        lambda n: (mlp, made(24, n), made(n, 8)),
        lambda n: (mlp, made(25, n), made(n, 8)),
        "shape [24,{n}] -> [25,{n}] of operand 0 of matmul at test_why.py:",
    ),
    "two shapes": (
        lambda n: (mlp, made(24, n), made(n, 8)),
        lambda n: (mlp, made(24, n), made(n, 9)),
        "shape [{n},8] -> [{n},9] of operand 1 of matmul",
    ),
    "rank": (
        lambda n: (torch.exp, made(n)),
        lambda n: (torch.exp, made(1, n)),
        "shape [{n}] -> [1,{n}] of operand 0 of exp",
    ),
    "dtype": (
        lambda n: (lambda x: x * x + x, made(n)),
        lambda n: (lambda x: x * x + x, made(n, dtype=torch.float64)),
        "dtype f32 -> f64 of operand 0 of mul",
    ),
    "scalar kind": (
        lambda n: (lambda x: (x * 3).abs() - x, made(n, dtype=torch.int64)),
        lambda n: (lambda x: (x * 3.5).abs() - x, made(n, dtype=torch.int64)),
        "cast at test_why.py:",
    ),
    "number to tensor": (
        lambda n: (mlp, made(n, n), made(n, 8), torch.relu, 2.0),
        lambda n: (mlp, made(n, n), made(n, 8), torch.relu, made()),
        "operand 1 of mul at test_why.py:{scale} is a tensor in memory, was a number",
    ),
    "new op": (
        lambda n: (lambda x: x.exp().sum(0), made(n, 8)),
        lambda n: (lambda x: x.exp().tanh().sum(0), made(n, 8)),
        "tanh at test_why.py:",
    ),
    "op gone": (
        lambda n: (lambda x: x.atan().sinh().sum(0), made(n, 8)),
        lambda n: (lambda x: x.atan().sum(0), made(n, 8)),
        "without sinh before sum at test_why.py:",
    ),
    "other op": (
        lambda n: (mlp, made(n, n), made(n, 8), torch.tanh),
        lambda n: (mlp, made(n, n), made(n, 8), torch.sigmoid),
        "sigmoid at test_why.py:{act} instead of tanh",
    ),
    "axis": (
        lambda n: (lambda x: x.exp().softmax(0), made(n, n)),
        lambda n: (lambda x: x.exp().softmax(1), made(n, n)),
        "axes=[0] -> axes=[1] of softmax at test_why.py:",
    ),
    "stride": (
        lambda n: (lambda x: x[::2].exp() + 1, made(n, 4)),
        lambda n: (lambda x: x[::3].exp() + 1, made(n, 4)),
        "step=[2,1] -> step=[3,1] of slice at test_why.py:",
    ),
    "offset": (
        lambda n: (lambda x: x[2:6].exp() + 1, made(n, 4)),
        lambda n: (lambda x: x[3:7].exp() + 1, made(n, 4)),
        "start=[2,0] -> start=[3,0] of slice at test_why.py:",
    ),
    "transposed": (
        lambda n: (lambda x: x.exp() + 1, made(n, n)),
        lambda n: (lambda x: x.t().exp() + 1, made(n, n)),
        "permute at test_why.py:",
    ),
    "permutation": (
        lambda n: (lambda x: x.permute(0, 2, 1).exp() + 1, made(n, 3, 3)),
        lambda n: (lambda x: x.permute(1, 2, 0).exp() + 1, made(n, 3, 3)),
        "dims=[0,2,1] -> dims=[1,2,0] of permute",
    ),
    "held": (
        lambda n: (lambda x: [(h := x.exp().cos()), h.sum(0)][1:], made(n, 8)),
        lambda n: (lambda x: [(h := x.exp().cos()), h.sum(0)], made(n, 8)),
        "cos at test_why.py:{held} is kept: something holds it",
    ),
    "not held": (
        lambda n: (lambda x: [(h := x.exp().cos()), h.sum(0)], made(n, 8)),
        lambda n: (lambda x: [(h := x.exp().cos()), h.sum(0)][1:], made(n, 8)),
        "is not kept: nothing holds it any more",
    ),
    "wiring": (
        lambda n: (lambda x, y: x.exp() - y.cos(), made(n, 8), made(n, 8)),
        lambda n: (lambda x, y: [(a := x.exp()), (b := y.cos()), b - a][2], made(n, 8), made(n, 8)),
        "operand 0 of sub at test_why.py:",
    ),
    "transposed product": (
        lambda n: (lambda x, w: F.linear(x, w).exp(), made(n, n), made(n, n)),
        lambda n: (lambda x, w: (x @ w).exp(), made(n, n), made(n, n)),
        "of matmul at test_why.py:",
    ),
    "target of a view": (
        lambda n: (lambda x: (x * 2).view(4, -1).softmax(1), made(4 * n, 6)),
        lambda n: (lambda x: (x * 2).view(6, -1).softmax(1), made(4 * n, 6)),
        "of reshape at test_why.py:",
    ),
    "values of a switch": (
        lambda n: (lambda x: F.gelu(x).sum(), made(n, 6)),
        lambda n: (lambda x: F.gelu(x, approximate="tanh").sum(), made(n, 6)),
        "gelu_tanh at test_why.py:",
    ),
    "shape of randomness": (
        lambda n: (lambda x: torch.rand(n, 6, device=D) * 2 + x, made(6)),
        lambda n: (lambda x: torch.rand(n + 1, 6, device=D) * 2 + x, made(6)),
        "shape [{n},6] -> [{m},6] of uniform",
    ),
}


def line_of(text: str) -> int:
    with open(__file__) as file:
        return next(i for i, line in enumerate(file, 1) if text in line)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_named(name):
    before, now, expected = CHANGES[name]
    n = next(_odd)
    torch_opaque.explain(*before(n), show=False)
    assert why(*before(n)) is None
    lines = {
        "scale": line_of("return h * scale"),
        "act": line_of("h = act("),
        "held": line_of('"held": (') + 2,
    }
    reason = why(*now(n))
    assert expected.format(n=n, m=n + 1, **lines) in reason, reason
    assert ";" not in reason or name == "transposed product", reason
    assert why(*now(n)) is None


def test_a_mode_is_named():
    x = made(next(_odd), 3)
    torch_opaque.explain(torch.cos, x, show=False)
    with torch_opaque.unfused():
        assert why(torch.cos, x) == "grouping is off (unfused), was on"
        assert why(torch.cos, x) is None


def test_a_graph_like_none_before():
    x = made(next(_odd), 3)

    def strange(x):
        for _ in range(60):
            x = x.atan().sinh().cos().round()
        return x

    assert "the nearest plan has" in (reason := why(strange, x)) or "the first graph" in reason
    torch_opaque.explain(lambda x: x.erf(), x, show=False)


def test_explain_says_it(capsys):
    x = made(next(_odd), 3)
    torch_opaque.explain(mlp, x, made(3, 4))
    assert "planned, " in capsys.readouterr().out
    result = torch_opaque.explain(mlp, x, made(3, 4))
    assert result.why == ["the plan was there"]
    assert "the plan was there" in capsys.readouterr().out
