"""Operators of define_op(): values and gradients against the composition in f64, fusion, capture, compile, errors, text."""

import json

import pytest
import torch
import torch.nn.functional as F
import torch_opaque
from torch_opaque import _C, define_op, expressions

D = "opaque"
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]

softcap = define_op("t::softcap(Tensor x, float c) -> Tensor", "c * tanh(x / c)")
gate = define_op("t::gate(Tensor a, Tensor b) -> Tensor", "a * sigmoid(b)")

# Name: operator, the same in PyTorch, shapes, numbers.
OPS = {
    "softcap": (softcap, lambda x, c: c * torch.tanh(x / c), [(5, 7)], (3.0,)),
    "gelu": (
        define_op("t::gelu(Tensor x) -> Tensor", "0.5 * x * (1 + erf(x * 0.7071067811865476))"),
        F.gelu,
        [(5, 7)],
        (),
    ),
    "swish": (
        define_op("t::swish(Tensor x, float beta=1.0) -> Tensor", "x * sigmoid(beta * x)"),
        lambda x, beta=1.0: x * torch.sigmoid(beta * x),
        [(5, 7)],
        (1.7,),
    ),
    "mish": (
        define_op("t::mish(Tensor x) -> Tensor", "x * tanh(softplus(x, 1, 20))"),
        F.mish,
        [(33,)],
        (),
    ),
    "hardswish": (
        define_op(
            "t::hardswish(Tensor x) -> Tensor", "where(x < -3, 0, where(x > 3, x, x * (x + 3) / 6))"
        ),
        F.hardswish,
        [(5, 7)],
        (),
    ),
    "log_cosh": (
        define_op(
            "t::log_cosh(Tensor x) -> Tensor",
            "m + log1p(exp(-2 * m)) - 0.6931471805599453 where m = abs(x)",
        ),
        lambda x: torch.log(torch.cosh(x)),
        [(5, 7)],
        (),
    ),
    "gate": (gate, lambda a, b: a * torch.sigmoid(b), [(6, 1, 7), (5, 7)], ()),
    "squared_relu": (
        define_op("t::squared_relu(Tensor x) -> Tensor", "square(relu(x))"),
        lambda x: F.relu(x) ** 2,
        [(5, 7)],
        (),
    ),
    "smooth_l1": (
        define_op(
            "t::smooth_l1(Tensor a, Tensor b, float beta) -> Tensor",
            "where(z < beta, 0.5 * z * z / beta, z - 0.5 * beta) where z = abs(a - b)",
        ),
        lambda a, b, beta: F.smooth_l1_loss(
            *torch.broadcast_tensors(a, b), reduction="none", beta=beta
        ),
        [(5, 7), (5, 1)],
        (0.7,),
    ),
    "three": (
        define_op(
            "t::three(Tensor a, Tensor b, Tensor c) -> Tensor",
            "a * exp(-b * b) + pow(c * c + 1, 0.5)",
        ),
        lambda a, b, c: a * torch.exp(-b * b) + (c * c + 1) ** 0.5,
        [(3, 1), (4,), ()],
        (),
    ),
    "elu": (
        define_op("t::elu(Tensor x, Tensor alpha) -> Tensor", "elu(x, alpha, 1, 1)"),
        lambda x, alpha: torch.where(x <= 0, alpha * torch.expm1(x), x),
        [(5, 7), (7,)],
        (),
    ),
    "extremes": (
        define_op(
            "t::extremes(Tensor x, Tensor y) -> Tensor", "maximum(x, y) * minimum(x, 1) - abs(y)"
        ),
        lambda x, y: torch.maximum(x, y) * torch.minimum(x, torch.ones_like(x)) - y.abs(),
        [(5, 7), (7,)],
        (),
    ),
    "masked": (
        define_op(
            "t::masked(Tensor x, Tensor y, int k) -> Tensor",
            "where((x > 0) & (y > 0), x * y, -x) * k",
        ),
        lambda x, y, k: torch.where((x > 0) & (y > 0), x * y, -x) * k,
        [(5, 7), (7,)],
        (3,),
    ),
}


def arguments_of(name, device, dtype):
    """Tensors that want gradients, and numbers."""
    _, _, shapes, numbers = OPS[name]
    torch.manual_seed(len(name))
    tensors = [
        (torch.randn(shape, dtype=torch.float64) * 2).to(dtype).to(device) for shape in shapes
    ]
    return [tensor.requires_grad_() for tensor in tensors], numbers


def values_of(f, tensors, numbers):
    """The result and the gradients, in f64 on the CPU."""
    result = f(*tensors, *numbers)
    weight = torch.linspace(-1, 2, result.numel(), dtype=torch.float64).reshape(result.shape)
    result.backward(weight.to(result))
    return result, [t.detach().cpu().double() for t in (result, *(t.grad for t in tensors))]


@pytest.mark.parametrize("device", [D, "cpu"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", OPS)
def test_values_and_gradients(name, dtype, device):
    op, composition, *_ = OPS[name]
    tensors, numbers = arguments_of(name, device, dtype)
    result, values = values_of(op, tensors, numbers)
    exact = [t.detach().cpu().double().requires_grad_() for t in tensors]
    _, expected = values_of(composition, exact, numbers)
    assert result.dtype == dtype
    eps = torch.finfo(dtype).eps
    for value, wanted in zip(values, expected, strict=True):
        # The weights are rounded, and gradients are summed where tensors were broadcast.
        assert (value - wanted).abs().max() <= 16 * eps * wanted.abs().max()


@pytest.mark.parametrize("name", OPS)
def test_gradients_of_gradients(name):
    op, _, shapes, numbers = OPS[name]
    torch.manual_seed(3)
    tensors = [torch.randn(shape[-1:], dtype=torch.float64) for shape in shapes]
    tensors = [tensor.to(D).requires_grad_() for tensor in tensors]

    def f(*given):
        return op(*given, *numbers)

    assert torch.autograd.gradcheck(f, tensors, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, tensors)


@pytest.mark.parametrize("name", OPS)
def test_one_node_and_one_kernel_with_neighbours(planned, name):
    op, _, shapes, numbers = OPS[name]
    tensors = [torch.randn(5, 7, device=D) for _ in shapes]
    torch.opaque.synchronize()

    def f(*given):
        return (op(given[0] * 2, *given[1:], *numbers) + 1).relu()

    graph = torch_opaque.graph(f, *tensors, stage="recorded")
    assert [node.op for node in graph.nodes].count(f"t::{name}") == 1
    f(*tensors).cpu()
    torch_opaque.reset_stats()
    f(*tensors).cpu()
    assert torch_opaque.stats()["kernels_run"] == 1
    assert torch_opaque.fallback_counts() == {}


def test_a_gradient_is_one_node_and_fuses(planned):
    x = torch.randn(64, device=D, requires_grad=True)
    torch.opaque.synchronize()

    def f():
        return torch.autograd.grad(softcap(x * 2, 3.0), x, torch.ones_like(x))[0]

    ops = [node.op for node in torch_opaque.graph(f, stage="recorded").nodes]
    assert ops.count("t::softcap_backward_x") == 1
    f().cpu()
    torch_opaque.reset_stats()
    f().cpu()
    assert torch_opaque.stats()["kernels_run"] == 1


def test_a_number_that_changes_makes_no_plan(planned):
    x = torch.randn(32).to(D)
    softcap(x, 1.0).cpu()
    torch_opaque.reset_stats()
    for c in (2.0, 3.0, 4.5):
        softcap(x, c).cpu()
    stats = torch_opaque.stats()
    assert stats["plans_built"] == stats["kernels_compiled"] == 0


# ---- dtypes


def test_integers():
    mix = define_op("t::mix(Tensor a, Tensor b, int k) -> Tensor", "(a ^ b) & k")
    a = torch.arange(8)
    for dtype in (torch.int64, torch.int32, torch.uint8):
        expected = (a.to(dtype) ^ (a.to(dtype) + 3)) & 7
        for device in (D, "cpu"):
            given = a.to(dtype).to(device)
            result = mix(given, given + 3, 7)
            assert result.dtype == dtype
            assert result.cpu().equal(expected)
    for device in (D, "cpu"):
        x = torch.ones(3, device=device)
        with pytest.raises(
            RuntimeError, match=r'"t::mix" not implemented for \'torch.float32\'; masks'
        ):
            mix(x, x, 1)
        with pytest.raises(TypeError, match=r"t::mix\(\): argument 3 must be int, not float"):
            mix(x.long(), x.long(), 1.5)


def test_integers_become_floats():
    x = torch.arange(6)
    for given in (x, x.to(D), x.to(D).int(), x.to(D) > 2):
        result = softcap(given, 2)
        assert result.dtype == torch.float32
        torch.testing.assert_close(result.cpu(), 2 * torch.tanh(given.cpu() / 2))
    only = define_op("t::only_floats(Tensor x) -> Tensor", "silu(x)")
    for given in (x, x.to(D)):
        with pytest.raises(
            RuntimeError, match="\"t::only_floats\" not implemented for 'torch.int64'"
        ):
            only(given)


def test_comparisons_and_masks():
    more = define_op("t::more(Tensor a, Tensor b) -> Tensor", "a > b")
    masked = define_op(
        "t::pick(Tensor x, Tensor m, float f=0.5, bool b=True) -> Tensor",
        "where(logical_and(m, b), x, f)",
    )
    x = torch.randn(4, 5)
    for device in (D, "cpu"):
        there = x.to(device).requires_grad_()
        assert more(there, 0 * there).cpu().equal(x > 0)
        assert not more(there, there).requires_grad
        assert masked(there, there > 0).cpu().equal(torch.where(x > 0, x, 0.5))
        assert masked(there, there > 0, b=False, f=7.0).cpu().equal(torch.full_like(x, 7.0))
        masked(there, there > 0).sum().backward()
        assert there.grad.cpu().equal((x > 0).float())


def test_promotion_and_layouts():
    x = torch.randn(4, 6, 3, 5)
    images = x.to(D).to(memory_format=torch.channels_last)
    result = softcap(images, 2.0)
    assert result.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(result.cpu(), 2 * torch.tanh(x / 2))
    half = gate(x.to(D).half(), torch.tensor(0.5, dtype=torch.float64))
    assert half.dtype == torch.float16
    assert gate(x.to(D), x.to(D).double()).dtype == torch.float64
    torch.testing.assert_close(
        gate(x.to(D)[:, ::2], x.to(D)[:, 1::2]).cpu(), x[:, ::2] * torch.sigmoid(x[:, 1::2])
    )


def test_division_by_zero_is_an_error():
    left = define_op("t::left(Tensor a, int k) -> Tensor", "remainder(a, k) * 2")
    x = torch.arange(5, device=D)
    assert left(x, 3).tolist() == [0, 2, 4, 0, 2]
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        left(x, 0).cpu()


# ---- derivatives


def test_conventions_at_kinks():
    kinks = {
        "abs(x)": [0.0],
        "relu(x)": [0.0],
        "maximum(x, 0)": [0.5],
        "clamp(x, 0, 1)": [1.0],
        "hardtanh(x, 0, 1)": [0.0],
        "where(x > 0, x, 2 * x)": [2.0],
        "sqrt(x * x)": [float("nan")],
        "pow(x, 0)": [0.0],
    }
    for i, (text, expected) in enumerate(kinks.items()):
        op = define_op(f"t::kink{i}(Tensor x) -> Tensor", text)
        for device in (D, "cpu"):
            x = torch.zeros(1, device=device, requires_grad=True)
            op(x).backward()
            assert str(x.grad.tolist()) == str(expected), text


@pytest.mark.parametrize("name", sorted(expressions.DERIVATIVES))
def test_every_derivative_is_right(name):
    """Each of a row's operands, where it is smooth."""
    row = next(row for row in _C.op_table() if row["name"] == name)
    names = tuple("abcd"[: row["arity"]])
    rules = expressions.DERIVATIVES[name][: row["arity"]]
    if not any(rules):
        pytest.skip("is constant, or has no floats")
    numbers = dict(zip("abcd", (0.37, 0.61, 0.83, 0.29), strict=True))
    if name == "acosh":
        numbers["a"] = 1.7
    if name == "where":
        numbers["a"] = 1.0
    tensors = {n: torch.tensor([value], dtype=torch.float64) for n, value in numbers.items()}
    wanted = [n for n, rule in zip(names, rules, strict=False) if rule is not None]
    schema = ", ".join(f"Tensor {n}" if n in wanted else f"float {n}" for n in names)
    op = define_op(f"t::rule_{name}({schema}) -> Tensor", f"{name}({', '.join(names)})")

    def f(*given):
        each = iter(given)
        return op(*(next(each) if n in wanted else numbers[n] for n in names))

    assert torch.autograd.gradcheck(f, [tensors[n].requires_grad_() for n in wanted])


def test_a_function_without_derivative():
    op = define_op("t::next(Tensor x) -> Tensor", "nextafter(2 * x, 9)")
    x = torch.zeros(3, device=D, requires_grad=True)
    result = op(x)
    assert (result.detach().cpu() > 0).all()
    with pytest.raises(
        RuntimeError,
        match="t::next has no derivative, because nextafter has none; give define_op a backward=",
    ):
        result.sum().backward()


def test_long_expressions():
    parts = ["p0 = x * x", *(f"p{i} = p{i - 1} * sin(p{i - 1}) + p{i - 1}" for i in range(1, 20))]
    chain = define_op("t::chain(Tensor x) -> Tensor", f"p19 where {'; '.join(parts)}")
    x = torch.full((3,), 0.1, dtype=torch.float64, device=D, requires_grad=True)
    assert torch.autograd.gradcheck(chain, (x,))
    names = "abcdefghijkl"
    listed = [f"Tensor {n}" for n in names + "m"]
    many = define_op(
        f"t::many({', '.join(listed[:12])}) -> Tensor", " * ".join(f"sin({n})" for n in names)
    )
    leaves = [torch.ones(2, dtype=torch.float64, device=D, requires_grad=True) for _ in names]
    assert torch.autograd.gradcheck(many, leaves)
    with pytest.raises(ValueError, match="has 13 arguments, at most 12"):
        define_op(f"t::too_many({', '.join(listed)}) -> Tensor", "a")
    parts = ["p0 = x * x", *(f"p{i} = p{i - 1} * sin(p{i - 1}) + p{i - 1}" for i in range(1, 150))]
    longest = define_op("t::longest(Tensor x) -> Tensor", f"p149 where {'; '.join(parts)}")
    result = longest(x)
    with pytest.raises(
        RuntimeError, match="t::longest has no derivative, because that is too long"
    ):
        result.sum().backward()


def test_backward_given():
    x = torch.tensor([0.5, -2.0], device=D)

    def gradient(name, schema, text, backward, *others):
        op = define_op(f"t::{name}({schema}) -> Tensor", text, backward=backward)
        leaves = [t.clone().requires_grad_() for t in (x, *others)]
        op(*leaves).sum().backward()
        return [None if leaf.grad is None else leaf.grad.tolist() for leaf in leaves]

    assert gradient("ste", "Tensor x", "round(x)", "grad") == [[1, 1]]
    assert gradient("with_out", "Tensor x", "x * x", "grad * out + x") == [[0.75, 2]]
    assert gradient("pair", "Tensor x, Tensor y", "x * y", ("grad * y", None), x) == [
        [0.5, -2],
        None,
    ]
    assert gradient("named", "Tensor x, Tensor y", "x * y", {"y": "3 * grad"}, x) == [None, [3, 3]]
    assert gradient("called", "Tensor x", "x", lambda grad, x: grad * 5 + x) == [[5.5, 3]]


def test_wrong_backward():
    for backward, message in (
        ("grad * z", r"t::wrong, backward: expression, column 8: no operand or part is named 'z'"),
        (("grad", "grad"), r"has 1 Tensors \(x\), and backward= has 2 expressions"),
        ({"y": "grad"}, "has no Tensor y, which backward= has"),
        (3, "backward= is an expression, a dict or tuple of them, or a function"),
    ):
        with pytest.raises(ValueError, match=message):
            define_op("t::wrong(Tensor x) -> Tensor", "x", backward=backward)
    twice = define_op(
        "t::two_for_one(Tensor x) -> Tensor", "x", backward=lambda grad, x: (grad, grad)
    )
    x = torch.ones(1, device=D, requires_grad=True)
    with pytest.raises(RuntimeError, match="returned 2 gradients, for 1 Tensors"):
        twice(x).backward()


def test_saved_tensors_are_watched():
    x = torch.ones(3, device=D, requires_grad=True)
    y = x * 2
    z = softcap(y, 2.0)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()
    z = softcap(x, 2.0).sum()
    z.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        z.backward()


# ---- definitions


def test_the_same_words_again():
    again = define_op("t::softcap(Tensor x, float c) -> Tensor", "c * tanh(x / c)")
    assert again is softcap
    with pytest.raises(RuntimeError, match="t::softcap is defined already, as softcap"):
        define_op("t::softcap(Tensor x, float c) -> Tensor", "x")
    torch.library.define("t::taken", "(Tensor x) -> Tensor")
    with pytest.raises(RuntimeError, match="t::taken is an operator already, of somebody else"):
        define_op("t::taken(Tensor x) -> Tensor", "x")


@pytest.mark.parametrize(
    "schema, text, message",
    [
        ("t::e(Tensor x", "x", "expected"),
        ("e(Tensor x) -> Tensor", "x", "wants a namespace"),
        ("aten::e(Tensor x) -> Tensor", "x", "the namespace aten is PyTorch's"),
        ("t::e.a(Tensor x) -> Tensor", "x", "is an overload"),
        ("t::e(Tensor[] x) -> Tensor", "x", r"argument x of .* is List\[Tensor\]"),
        ("t::e(Tensor(a!) x) -> Tensor", "x", "argument x of .* is Tensor!"),
        ("t::e(float x) -> Tensor", "x", "has no Tensor"),
        ("t::e(Tensor x) -> (Tensor, Tensor)", "x", "has to return one Tensor"),
        ("t::e(Tensor x, *, float c) -> Tensor", "x", "arguments that go by name only"),
        ("t::e(Tensor x) -> Tensor", "c * x", r"column 1: no operand or part is named 'c'\n    c \* x\n    \^"),
        ("t::e(Tensor x) -> Tensor", "2 * tahn(x)", r"no function is named 'tahn'; did you mean (tan or )?tanh.*\n.*\n        \^"),
        ("t::e(Tensor x) -> Tensor", "x * (x + 1", r"column 11: '\)' expected"),
        ("t::e(Tensor x) -> Tensor", "x ** 2", r"operand expected; a power is pow\(a, b\)"),
        ("t::e(Tensor x) -> Tensor", "pow(x)", "pow takes 2 operands, not 1"),
        ("t::e(Tensor x) -> Tensor", "x / sum(x)", "column 5: sum is not elementwise"),
        ("t::e(Tensor x) -> Tensor", "x & 0.5", "column 3: bitwise_and: not implemented for f32"),
        ("t::e(Tensor x) -> Tensor", "", "column 1: operand expected"),
    ],
)  # fmt: skip
def test_mistakes(schema, text, message):
    with pytest.raises(ValueError, match=message):
        define_op(schema, text)
    assert not hasattr(torch.ops.t, "e")


# ---- where it works


def test_capture():
    f = torch_opaque.capture(lambda x, c: softcap(x * 2, c).sum())

    def step(x, c):
        x = x.detach().requires_grad_()
        softcap(x, c).sum().backward()
        return x.grad

    g = torch_opaque.capture(step)
    x = torch.randn(8)
    there = x.to(D)
    for c in (1.0, 2.0, 3.0, 4.0):
        torch.testing.assert_close(f(there, c).cpu(), (c * torch.tanh(x * 2 / c)).sum())
        torch.testing.assert_close(g(there, c).cpu(), 1 - torch.tanh(x / c) ** 2)
    for captured in (f, g):  # a number that changes is one more plan, for all of them
        assert "2 plans" in str(captured.summary())


@pytest.mark.parametrize(
    "device, backend", [(D, "opaque"), ("cpu", "opaque"), ("cpu", "aot_eager")]
)
def test_compile(device, backend):
    def f(x, w):
        return softcap((x * w).relu() + 1, 5.0) * gate(x, w)

    tensors = [torch.randn(6, 4, device=device), torch.randn(4, device=device)]
    values = []
    for run in (f, torch.compile(f, backend=backend, fullgraph=True)):
        given = [t.clone().requires_grad_() for t in tensors]
        result = run(*given)
        result.sum().backward()
        values.append([result.detach().cpu(), *(t.grad.cpu() for t in given)])
    torch.testing.assert_close(*values)


def test_export_keeps_it_whole():
    class Model(torch.nn.Module):
        def forward(self, x):
            return softcap(x, 3.0) + 1

    rows = torch.export.Dim("rows")
    program = torch.export.export(Model(), (torch.randn(4, 3),), dynamic_shapes={"x": {0: rows}})
    assert "torch.ops.t.softcap.default" in program.graph_module.code
    torch.testing.assert_close(
        program.module()(torch.ones(7, 3)), softcap(torch.ones(7, 3), 3.0) + 1
    )


def test_vmap_and_func():
    a, b = torch.randn(3, 4, device=D), torch.randn(2, 4, device=D)
    batched = torch.vmap(gate, in_dims=(0, None))(a, b)
    assert batched.cpu().equal(gate(a[:, None], b).cpu())
    hessian = torch.func.hessian(lambda x: softcap(x, 2.0).sum())(a[0])
    t = torch.tanh(a[0].cpu() / 2)
    torch.testing.assert_close(hessian.cpu(), torch.diag(-t * (1 - t * t)))


def test_threads(in_threads):
    def work(i):
        op = define_op(f"t::thread{i % 3}(Tensor x) -> Tensor", f"x * {i % 3} + tanh(x)")
        x = torch.ones(10, device=D, requires_grad=True)
        for _ in range(10):
            op(x).sum().backward()
        assert torch.isfinite(x.grad.cpu()).all()

    in_threads(work, range(8))


def test_text_and_json(tmp_path, opq_opt):
    x = torch.ones(2, 3, device=D)
    graph = torch_opaque.graph(lambda: gate(softcap(x, 3.0), x), stage="recorded")
    text = str(graph)
    assert text.startswith(
        "define t::softcap(x, c) = c * tanh(x / c)\ndefine t::gate(a, b) = a * sigmoid(b)\ngraph @"
    )
    (tmp_path / "graph.ir").write_text(text)
    assert opq_opt(tmp_path / "graph.ir", "--verify", "--print").strip() == text.strip()
    assert "sigmoid" in opq_opt(tmp_path / "graph.ir", "--passes=expand,simplify,group", "--print")
    ops = [node["op"] for node in json.loads(graph.to_json())["nodes"]]
    assert "t::softcap" in ops
    assert "t::gate" in torch_opaque.describe(gate(x, x))
    assert "tanh" in str(torch_opaque.explain(lambda: softcap(x, 3.0), show=False))


def test_compare_runs_the_copy_on_the_cpu():
    x = torch.randn(64, device=D)
    comparison = torch_opaque.compare(lambda: softcap(x * 2, 3.0) + 1, show=False)
    assert all(row.same_bits for row in comparison.rows)
