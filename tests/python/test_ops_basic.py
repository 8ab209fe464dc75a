"""Operators against CPU eager: values, gradients, errors, the routes they take."""

import copy
import re

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch_opaque
from torch_opaque import _C

D = "opaque"


def on(x, device):
    return (
        x.detach().to(device).requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x
    )


def close(got, want, **tolerances):
    torch.testing.assert_close(got.detach().cpu(), want.detach(), equal_nan=True, **tolerances)


def check(f, *args, rtol=2e-5, atol=2e-5, native=True):
    """f(*args) and its gradients agree with CPU; natively: without a call through CPU kernels."""
    leaves = [on(a, "cpu") for a in args]
    moved = [on(a, D) for a in args]
    torch_opaque.reset_stats()
    want, got = f(*leaves), f(*moved)
    assert got.device.type == D and got.dtype == want.dtype and got.shape == want.shape
    close(got, want, rtol=rtol, atol=atol)
    if want.requires_grad:
        weight = torch.randn(want.shape)
        want.backward(weight)
        got.backward(weight.to(D))
        for a, b in zip(leaves, moved):
            if isinstance(a, torch.Tensor) and a.requires_grad:
                close(b.grad, a.grad, rtol=10 * rtol, atol=10 * atol)
    if native:
        assert torch_opaque.fallback_counts() == {}
    return got


def r(*shape, dtype=torch.float32, grad=True):
    return torch.randn(shape, dtype=dtype, requires_grad=grad and dtype.is_floating_point)


UNARY = [
    "abs",
    "neg",
    "exp",
    "log1p",
    "sin",
    "cos",
    "tanh",
    "sigmoid",
    "erf",
    "sqrt",
    "rsqrt",
    "square",
    "reciprocal",
    "floor",
    "ceil",
    "round",
    "trunc",
    "sign",
    "relu",
    "expm1",
    "atan",
    "sinh",
    "asinh",
    "frac",
    "isnan",
    "logical_not",
]
ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "elu": F.elu,
    "leaky": lambda x: F.leaky_relu(x, 0.1),
    "softplus": F.softplus,
    "hardtanh": F.hardtanh,
    "hardswish": F.hardswish,
    "logsigmoid": F.logsigmoid,
    "softmax": lambda x: F.softmax(x, -1),
    "log_softmax": lambda x: F.log_softmax(x, 0),
    "relu6": F.relu6,
    "threshold": lambda x: F.threshold(x, 0.1, 2),
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "clamp one side": lambda x: x.clamp(min=0.1),
    "nan_to_num": lambda x: torch.nan_to_num(x),
}
REDUCTIONS = {
    "sum": lambda x: x.sum(),
    "sum dim": lambda x: x.sum(1),
    "sum dims keep": lambda x: x.sum((0, 2), keepdim=True),
    "sum dtype": lambda x: x.sum(0, dtype=torch.float64),
    "mean": lambda x: x.mean(),
    "mean dim": lambda x: x.mean(-1),
    "prod": lambda x: x.prod(1),
    "amax": lambda x: x.amax((0, 1)),
    "max dim": lambda x: x.detach().max(1).values,
    "min dim index": lambda x: x.min(-1).indices,
    "max": lambda x: x.max(),
    "argmax": lambda x: x.argmax(),
    "argmin dim": lambda x: x.argmin(1, keepdim=True),
    "var": lambda x: x.var(1),
    "std": lambda x: x.std(correction=0),
    "var_mean": lambda x: torch.stack(torch.var_mean(x, 1)),
    "norm": lambda x: x.norm(),
    "norm 1": lambda x: x.norm(p=1, dim=1),
    "norm inf": lambda x: torch.linalg.vector_norm(x, float("inf"), dim=2),
    "logsumexp": lambda x: x.logsumexp(1),
    "any": lambda x: (x > 2).any(1),
    "all": lambda x: (x > -9).all(),
    "aminmax": lambda x: torch.stack(torch.aminmax(x, dim=1)),
    "count_nonzero": lambda x: (x > 0).count_nonzero(1),
}


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("shape", [(3, 5), (), (0, 3), (70,)], ids=str)
def test_unary(name, shape):
    x = (
        r(*shape)
        if name not in ("sqrt", "rsqrt", "log1p", "reciprocal")
        else (r(*shape).detach().abs() + 0.1).requires_grad_()
    )
    check(getattr(torch, name), x)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(name):
    check(ACTIVATIONS[name], r(4, 7))


def test_gelu_tanh_keeps_its_tail():
    """1 + tanh cancels there: a third of the result at -5. The sigmoid of twice the argument does not."""
    x = torch.linspace(-5, -1, 4001)
    exact = F.gelu(x.double(), approximate="tanh")
    got = F.gelu(x.to(D), approximate="tanh").cpu().double()
    assert ((got - exact) / exact).abs().max() < 1e-5


def test_tanh_takes_one_permute_a_coefficient_on_avx2(run_warm):
    """Tables of eight intervals fit a register; of 32 they take nine instructions each."""
    text = """
import torch, torch_opaque
print(torch_opaque.graph(torch.ones(64).to("opaque").tanh(), stage="asm"))
"""
    asm = run_warm(text, OPAQUE_CPU="avx2").stdout
    vectors = asm.count("vminps")
    assert vectors and asm.count("vperm") == 7 * vectors


def test_columns_are_read_some_lines_at_a_time(run_warm):
    """On AVX2 by eight vectors, then four, then one, each with 8 rows in a turn, then row by row: 1.0 to 1.7x of four, by the shape."""
    text = """
import torch, torch_opaque
print(torch_opaque.graph(torch.ones(64, 64).to("opaque").sum(0), stage="asm"))
"""
    assert run_warm(text, OPAQUE_CPU="avx2").stdout.count("prefetcht0") == (8 + 1) * (8 + 4 + 1)


def test_cumulative_sums_fill_the_processor(run_warm):
    """Of columns, four vectors at a time; of rows, which are turned in tiles, memory is asked for ahead. 1.4x and 1.15x at 4096 x 4096."""
    text = """
import torch, torch_opaque
for dim in (0, 1):
    print(torch_opaque.graph(torch.ones(64, 64).to("opaque").cumsum(dim), stage="asm"))
    print("====")
"""
    columns, rows, _ = run_warm(text, OPAQUE_CPU="avx2").stdout.split("====")
    assert columns.count("vaddpd") == 2 * (4 + 1)  # and a masked one; each is two of f64
    assert rows.count("prefetch") >= 8


@pytest.mark.parametrize(
    "f",
    [
        "x[:, :, 1:-1, 1:-1] * 2",
        "x.flip(-1)",
        "x.sum(-1)",
        "F.max_pool2d(x, 2)",
        "F.avg_pool2d(x, 2)",
    ],
)
def test_short_rows_are_asked_for_ahead(run_warm, f):
    """Where a row has fewer elements than a loop of vectors, or a window few turns: 1.6 to 6.5x from memory."""
    text = f"""
import torch, torch_opaque, torch.nn.functional as F
x = torch.ones(2, 8, 28, 28).to("opaque")
print(torch_opaque.graph({f}, stage="llvm"))
"""
    llvm = run_warm(text).stdout
    masked = llvm[llvm.rindex("icmp slt <") :]  # the vector of a row's end is all there is of it
    assert "call void @llvm.prefetch" in masked
    assert "select i1" in llvm[: llvm.index("loop:")]  # how far is known where the kernel begins


@pytest.mark.parametrize("cpu", ["avx2", ""])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_every_second_element_is_loaded_by_vectors(run_warm, cpu, dtype):
    """Of two bytes as of four, in whole vectors and at a row's end: pools of bf16 are 1.5 to 4.4x as fast as element by element."""
    text = f"""
import torch, torch_opaque, torch.nn.functional as F
x = torch.ones(2, 8, 64, 64, dtype=torch.{dtype}).to("opaque")
print(torch_opaque.graph(F.max_pool2d(x, 2), stage="llvm"))
"""
    llvm = run_warm(text, OPAQUE_CPU=cpu).stdout
    assert "max" in llvm
    assert "llvm.masked.gather" not in llvm
    assert not re.search(r"insertelement <\d+ x (i16|float)> %", llvm)  # lane after lane


@pytest.mark.parametrize("cpu", ["avx2", ""])
@pytest.mark.parametrize("pool", ["max", "avg"])
def test_the_middle_of_padded_rows_needs_no_masks(run_warm, pool, cpu):
    """Where all lanes are there, another way is taken, without masks: 1.4x for maxima of 3 x 3, by 2."""
    text = f"""
import torch, torch_opaque, torch.nn.functional as F
x = torch.randn(1, 2, 40, 200)
pooled = F.{pool}_pool2d(x.to("opaque"), 3, 2, 1)
print(torch_opaque.graph(pooled, stage="llvm"))
assert torch.equal(pooled.cpu(), F.{pool}_pool2d(x, 3, 2, 1))
"""
    llvm = run_warm(text, OPAQUE_CPU=cpu).stdout
    assert "llvm.masked.load" in llvm
    assert re.search(r"load <\d+ x float>, ptr [^,]*, align 4", llvm)  # of elements, not of locals


@pytest.mark.parametrize("kernel, stride, padding", [(2, 2, 0), (3, 2, 1), (3, 2, 0)])
def test_gradients_of_maxima_are_one_kernel(kernel, stride, padding):
    """Of the few windows that may reach an element; where it is, is counted and not multiplied: 4x for a kernel of 3 by 2."""
    x = torch.randn(2, 4, 32, 32, device=D)
    y, places = F.max_pool2d(x, kernel, stride, padding, return_indices=True)
    backward = torch.ops.aten.max_pool2d_with_indices_backward
    places, grad = places.cpu().to(D), torch.ones_like(y).cpu().to(D)
    window = [[n, n] for n in (kernel, stride, padding, 1)]
    text = str(torch_opaque.graph(backward(grad, x, *window, False, places), stage="kernels"))
    assert text.count("kernel @") == 1
    assert "mul i64" not in text
    forward = str(torch_opaque.graph(F.max_pool2d(x, 2, return_indices=True), stage="kernels"))
    assert forward.count("mul i64") == 1  # where a window has its second row


@pytest.mark.parametrize("stride, size", [(1, 3), (2, 3), (1, 5)])
def test_rows_of_windows_are_asked_for_ahead(run_warm, stride, size):
    """Of depthwise convolutions, four rows of the result at a time look at what the next four will read: 1.2 to 3.2x from memory."""
    text = f"""
import torch, torch_opaque
x, w = torch.ones(1, 8, 64, 64).to("opaque"), torch.ones(8, 1, {size}, {size}).to("opaque")
y = torch.nn.functional.conv2d(x, w, stride={stride}, padding={size // 2}, groups=8)
print(torch_opaque.graph(y, stage="llvm"))
"""
    assert run_warm(text).stdout.count("call void @llvm.prefetch") >= 4


@pytest.mark.parametrize(
    "f", [F.silu, F.mish, F.gelu, torch.tanh, F.softplus], ids=lambda f: f.__name__
)
def test_second_derivative(f):
    def twice(x):
        x = x.detach().requires_grad_()
        (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        return torch.autograd.grad(g.square().sum(), x)[0]

    x = torch.randn(5)
    close(twice(x.to(D)), twice(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduction(name):
    check(REDUCTIONS[name], r(3, 4, 5))


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.uint8,
        torch.bool,
    ],
    ids=str,
)
@pytest.mark.parametrize("other", [2, 2.5, True, "tensor", "0-d", "cpu 0-d"], ids=str)
def test_promotion(dtype, other):
    x = (torch.randn(4, 3) * 3).to(dtype)
    y = {
        "tensor": torch.arange(3, dtype=torch.int32) + 1,
        "0-d": torch.tensor(2.5, dtype=torch.float64),
        "cpu 0-d": torch.tensor(3),
    }.get(other, other)
    for f in (
        torch.add,
        torch.mul,
        torch.div,
        torch.gt,
        torch.maximum if isinstance(y, torch.Tensor) else torch.remainder,
    ):
        moved = y if other == "cpu 0-d" else on(y, D)
        try:
            want = f(x, y)
        except NotImplementedError:  # remainder of bool
            with pytest.raises(NotImplementedError):
                f(x.to(D), moved).cpu()
            continue
        got = f(x.to(D), moved)
        assert got.dtype == want.dtype, f
        close(got, want)


def test_alpha():
    check(lambda a, b: torch.add(a, b, alpha=0.5), r(3), r(3))
    check(lambda a, b: torch.sub(a, b, alpha=2), r(3, 1), r(4))
    check(lambda a: torch.rsub(a, 1.5, alpha=3), r(3))
    with pytest.raises(RuntimeError, match="argument alpha must not be a floating point number"):
        torch.add(
            torch.ones(2, dtype=torch.long, device=D),
            torch.ones(2, dtype=torch.long, device=D),
            alpha=0.5,
        )


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 0.5, -0.5, -1, -2, 2.5, 7])
def test_pow(exponent):
    check(lambda x: x**exponent, (r(5).detach().abs() + 0.5).requires_grad_())


def test_pow_tensor():
    check(torch.pow, (r(5).detach().abs() + 0.5).requires_grad_(), r(5))
    check(lambda x: 2.0**x, r(5))


@pytest.mark.parametrize("mode", [None, "trunc", "floor"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32], ids=str)
def test_div_mode(mode, dtype):
    a, b = (torch.randn(20) * 10).to(dtype), torch.tensor([3, -2, 7, 5] * 5).to(dtype)
    check(lambda x, y: torch.div(x, y, rounding_mode=mode), a, b)


def test_where_and_masked_fill():
    m = torch.randn(3, 4) > 0
    check(lambda a, b: torch.where(on(m, a.device), a, b), r(3, 4), r(4))
    check(lambda a: a.masked_fill(on(m, a.device), 2.5), r(3, 4))
    check(lambda a: a.clone().masked_fill_(on(m, a.device), float("-inf")), r(3, 4))
    check(lambda a: torch.where(a > 0, a, 0.0), r(3, 4))


def test_in_place_and_out():
    a, b = torch.randn(3, 4), torch.randn(4)
    x, y = a.to(D), b.to(D)
    for t, u in ((a, b), (x, y)):
        t.add_(u).mul_(2).sub_(u, alpha=0.5).div_(3).clamp_(-1, 1).exp_().pow_(2).neg_().relu_()
    close(x, a)
    out = torch.empty(0, device=D)
    assert torch.add(x, y, out=out) is out
    close(out, a + b)
    torch.sum(x, 1, out=out)
    close(out, a.sum(1))
    torch.mm(x, x.t(), out=out)
    close(out, a @ a.t())
    values, indices = torch.empty(0, device=D), torch.empty(0, dtype=torch.long, device=D)
    torch.max(x, 1, out=(values, indices))
    close(indices, a.max(1).indices)


ERRORS = {
    "broadcast": (lambda d: torch.ones(3, device=d) + torch.ones(4, device=d), RuntimeError),
    "in place shape": (
        lambda d: torch.ones(3, device=d).add_(torch.ones(2, 3, device=d)),
        RuntimeError,
    ),
    "in place dtype": (lambda d: torch.ones(3, dtype=torch.long, device=d).add_(1.5), RuntimeError),
    "out dtype": (
        lambda d: torch.add(
            torch.ones(3, device=d), 1, out=torch.ones(3, dtype=torch.int, device=d)
        ),
        RuntimeError,
    ),
    "mm": (lambda d: torch.ones(3, 4, device=d) @ torch.ones(3, 4, device=d), RuntimeError),
    "axis": (lambda d: torch.ones(3, device=d).sum(2), IndexError),
    "repeated axis": (lambda d: torch.ones(3, 3, device=d).sum((0, 0)), RuntimeError),
    "empty amax": (lambda d: torch.ones(0, 3, device=d).amax(0), IndexError),
    "bool sub": (
        lambda d: (
            torch.ones(2, dtype=torch.bool, device=d) - torch.ones(2, dtype=torch.bool, device=d)
        ),
        RuntimeError,
    ),
    "mean of ints": (lambda d: torch.ones(2, dtype=torch.long, device=d).mean(), RuntimeError),
    "cat": (
        lambda d: torch.cat([torch.ones(2, 2, device=d), torch.ones(2, 3, device=d)]),
        RuntimeError,
    ),
    "view": (lambda d: torch.ones(2, 3, device=d).t().view(6), RuntimeError),
    "negative size": (lambda d: torch.empty(-1, device=d), RuntimeError),
    "index too large": (
        lambda d: torch.ones(3, device=d)[torch.tensor([5], device=d)].cpu(),
        IndexError,
    ),
    "embedding index": (
        lambda d: F.embedding(torch.tensor([7], device=d), torch.ones(3, 2, device=d)).cpu(),
        IndexError,
    ),
    "target": (
        lambda d: F.nll_loss(torch.ones(1, 3, device=d), torch.tensor([9], device=d)).cpu(),
        IndexError,
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_pytorchs(name):
    f, kind = ERRORS[name]
    with pytest.raises(kind) as want:
        f("cpu")
    with pytest.raises(kind) as got:
        f(D)
    if not issubclass(kind, IndexError):
        assert str(got.value).splitlines()[0].split(" (when")[0] == str(want.value).splitlines()[0]


def test_a_failed_run_spoils_nothing_else():
    x = torch.ones(3, device=D)
    bad = x[torch.tensor([5], device=D)] + 1
    good = x * 2
    with pytest.raises(IndexError):
        bad.cpu()
    close(good, torch.full((3,), 2.0))
    torch.opaque.synchronize()


MATMULS = {
    "mm": (lambda a, b: a @ b, (3, 4), (4, 5)),
    "mm t": (lambda a, b: a @ b.t(), (3, 4), (5, 4)),
    "t mm": (lambda a, b: a.t() @ b, (4, 3), (4, 5)),
    "bmm": (torch.bmm, (2, 3, 4), (2, 4, 5)),
    "bmm t": (lambda a, b: a @ b.transpose(1, 2), (2, 3, 4), (2, 5, 4)),
    "broadcast": (torch.matmul, (2, 1, 3, 4), (3, 4, 2)),
    "mv": (torch.mv, (3, 4), (4,)),
    "dot": (torch.dot, (5,), (5,)),
    "vector matrix": (torch.matmul, (4,), (4, 3)),
    "large": (torch.mm, (65, 130), (130, 70)),
}


@pytest.mark.parametrize("name", MATMULS)
def test_matmul(name):
    f, a, b = MATMULS[name]
    check(f, r(*a), r(*b), atol=1e-4)


@pytest.mark.parametrize("beta, alpha", [(1, 1), (0, 1), (0.5, 2)])
def test_addmm(beta, alpha):
    check(lambda c, a, b: torch.addmm(c, a, b, beta=beta, alpha=alpha), r(5), r(3, 4), r(4, 5))
    check(
        lambda c, a, b: torch.baddbmm(c, a, b, beta=beta, alpha=alpha),
        r(2, 3, 5),
        r(2, 3, 4),
        r(2, 4, 5),
    )
    check(
        lambda c, a, b: torch.addbmm(c, a, b, beta=beta, alpha=alpha),
        r(3, 5),
        r(2, 3, 4),
        r(2, 4, 5),
    )
    check(lambda c, a, b: torch.addmv(c, a, b, beta=beta, alpha=alpha), r(3), r(3, 4), r(4))


def test_addmm_beta_zero_ignores_nan():
    c = torch.full((3, 5), float("nan"))
    check(lambda c, a, b: torch.addmm(c, a, b, beta=0), c, r(3, 4), r(4, 5))


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4), (0, 4)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_linear(shape, bias):
    x, w, b = r(*shape), r(5, 4), r(5) if bias else None
    y = check(F.linear, x, w, b)
    assert type(y.grad_fn).__name__ == "LinearBackward0"


def test_linear_forward_and_second_derivatives():
    from torch.func import hessian, jacfwd

    x, w = r(3, 4, grad=False), r(2, 4, grad=False)
    close(jacfwd(lambda v: F.linear(v, w.to(D)))(x.to(D)), jacfwd(lambda v: F.linear(v, w))(x))
    close(
        hessian(lambda v: F.linear(v, w.to(D)).tanh().sum())(x.to(D)),
        hessian(lambda v: F.linear(v, w).tanh().sum())(x),
    )


def test_losses():
    a, b = r(4, 3), r(4, 3, grad=False)
    for reduction in ("mean", "sum", "none"):
        check(lambda x, y: F.mse_loss(x, y, reduction=reduction), a, b)
        check(lambda x, y: F.smooth_l1_loss(x, y, reduction=reduction, beta=0.7), a, b)
        check(lambda x, y: F.huber_loss(x, y, reduction=reduction, delta=0.7), a, b)
        target = torch.tensor([0, 2, -100, 1])
        weight = torch.tensor([0.5, 1, 2])
        check(lambda x, t: F.cross_entropy(x, t, reduction=reduction), a, target)
        check(lambda x, t, w: F.cross_entropy(x, t, w, reduction=reduction), a, target, weight)
    check(lambda x, t: F.cross_entropy(x, t), r(3), torch.tensor(1))
    check(lambda x, y: F.binary_cross_entropy_with_logits(x, y), a, torch.rand(4, 3))


def test_normalisation():
    check(lambda x, w, b: F.layer_norm(x, (5,), w, b), r(3, 4, 5), r(5), r(5))
    check(lambda x, w, b: F.layer_norm(x, (4, 5), w, b), r(3, 4, 5), r(4, 5), r(4, 5))
    check(lambda x: F.layer_norm(x, (5,)), r(4, 5))
    check(lambda x, w: F.rms_norm(x, (5,), w), r(4, 5), r(5))
    for training in (True, False):
        m = nn.BatchNorm2d(3).train(training)
        twin = copy.deepcopy(m).to(D)
        x = torch.randn(4, 3, 5, 5)
        a, b = x.clone().requires_grad_(), x.to(D).requires_grad_()
        m(a).square().sum().backward()
        twin(b).square().sum().backward()
        close(b.grad, a.grad, rtol=1e-3, atol=1e-4)
        close(twin.weight.grad, m.weight.grad, rtol=1e-4, atol=1e-4)
        close(twin.running_var, m.running_var)
        close(twin.running_mean, m.running_mean)


def test_indexing():
    i = torch.tensor([2, 0, 2])
    check(lambda x, i: x.index_select(1, i), r(3, 4), i)
    check(lambda x, i: x[i], r(3, 4), i)
    check(lambda x, i: x[:, -i - 1], r(3, 4), i)
    check(lambda x, i: x[i, :, -i - 1] + x[i, i, 0].sum(), r(3, 3, 4), i)
    check(lambda x, i: x[:, i, i], r(3, 3, 4), i)
    check(lambda x, i: x.gather(1, i), r(3, 4), torch.tensor([[1, 0], [3, 3], [0, 2]]))
    check(
        lambda x, i, s: x.scatter_add(1, i, s),
        r(3, 4),
        torch.tensor([[1, 0], [3, 3], [0, 2]]),
        r(3, 2),
    )
    check(lambda x, i, s: x.index_add(0, i, s, alpha=2), r(3, 4), i, r(3, 4))
    check(lambda w, i: F.embedding(i, w, padding_idx=2), r(5, 3), torch.tensor([[1, 2], [4, 1]]))
    check(lambda a, b: torch.cat([a, b, a], 1), r(2, 3), r(2, 1))
    check(lambda a, b: torch.stack([a, b], 1), r(2, 3), r(2, 3))
    check(lambda x: x.repeat(2, 3), r(2, 3))
    check(lambda x: F.pad(x, (1, 2), value=3.0), r(2, 3))


def test_attention():
    q, k, v = r(2, 3, 5, 8), r(2, 3, 6, 8), r(2, 3, 6, 8)
    check(F.scaled_dot_product_attention, q, k, v)
    check(lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), q, native=False)
    m = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    e = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                close(
                    copy.deepcopy(m).to(D)(*[x.to(D)] * 3)[0], m(x, x, x)[0], rtol=1e-4, atol=1e-5
                )
                close(copy.deepcopy(e).to(D)(x.to(D)), e(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent(kind):
    m = kind(3, 4, num_layers=2, bidirectional=True)
    twin = copy.deepcopy(m).to(D)
    x = torch.randn(5, 2, 3)
    a, b = m(x)[0], twin(x.to(D))[0]
    close(b, a)
    a.square().sum().backward()
    b.square().sum().backward()
    for p, q in zip(m.parameters(), twin.parameters()):
        close(q.grad, p.grad, rtol=1e-4, atol=1e-5)


def test_convolutions():
    m = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.ConvTranspose2d(4, 2, 2),
        nn.GroupNorm(1, 2),
    )
    twin = copy.deepcopy(m).to(D)
    x = torch.randn(2, 3, 8, 8)
    for layout in (torch.contiguous_format, torch.channels_last):
        a, b = m(x.to(memory_format=layout)), twin(x.to(D).to(memory_format=layout))
        close(b, a, rtol=1e-4, atol=1e-5)
    a.square().sum().backward()
    b.square().sum().backward()
    close(twin[0].weight.grad, m[0].weight.grad, rtol=1e-3, atol=1e-4)


OPTIMIZERS = [
    (kind, options)
    for kind in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad")
    for options in (
        {},
        {"foreach": False},
        {"fused": True},
        {"weight_decay": 0.1},
        {"maximize": True},
    )
    if not options.get("fused") or kind in ("SGD", "Adam", "AdamW")
]


@pytest.mark.parametrize(("kind", "options"), OPTIMIZERS, ids=str)
def test_optimizers(kind, options):
    m = nn.Linear(4, 3)
    twin = copy.deepcopy(m).to(D)
    more = {"momentum": 0.9, "nesterov": True} if kind == "SGD" else {}
    a = getattr(torch.optim, kind)(m.parameters(), lr=0.05, **options, **more)
    b = getattr(torch.optim, kind)(twin.parameters(), lr=0.05, **options, **more)
    for _ in range(4):
        x = torch.randn(6, 4)
        for model, optimizer, data in ((m, a, x), (twin, b, x.to(D))):
            optimizer.zero_grad()
            model(data).square().sum().backward()
            optimizer.step()
    close(twin.weight, m.weight, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
def test_fused_adam_amsgrad_and_tensor_rate(kind):
    m = nn.Linear(4, 3)
    twin = copy.deepcopy(m).to(D)
    a = getattr(torch.optim, kind)(m.parameters(), lr=0.05, amsgrad=True)
    b = getattr(torch.optim, kind)(
        twin.parameters(), lr=torch.tensor(0.05), amsgrad=True, fused=True
    )
    for _ in range(4):
        x = torch.randn(6, 4)
        for model, optimizer, data in ((m, a, x), (twin, b, x.to(D))):
            optimizer.zero_grad()
            model(data).square().sum().backward()
            optimizer.step()
    close(twin.weight, m.weight, rtol=1e-4, atol=1e-5)


def test_grad_scaler():
    m = nn.Linear(4, 3).to(D)
    scaler = torch.amp.GradScaler(D, init_scale=8.0)
    optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
    before = m.weight.detach().cpu()
    scaler.scale(m(torch.full((2, 4), float("inf"), device=D)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    close(m.weight, before)
    assert scaler.get_scale() == 4.0


def test_autocast():
    m = nn.Linear(4, 3).to(D)
    with torch.autocast(D, dtype=torch.bfloat16):
        y = m(torch.randn(2, 4, device=D))
        loss = F.mse_loss(y, torch.zeros(2, 3, device=D))
    assert y.dtype == torch.bfloat16 and loss.dtype == torch.float32
    loss.backward()
    assert m.weight.grad.dtype == torch.float32


PROMOTED = {
    "dot": lambda a, b: torch.dot(a, b),
    "vdot": lambda a, b: torch.vdot(a, b),
    "cross": lambda a, b: torch.cross(a, b, dim=0),
    "tensordot": lambda a, b: torch.tensordot(a, b, 1),
    "bilinear": lambda a, b: F.bilinear(a[None], b[None], torch.ones(2, 3, 3, device=D)),
    "index_put": lambda a, b: a.index_put((torch.tensor([2, 0, 1], device=D),), b),
    "scatter_add": lambda a, b: a.scatter_add(0, torch.tensor([2, 2, 1], device=D), b),
    "addcmul": lambda a, b: torch.addcmul(a, b, b),
    "addcdiv": lambda a, b: torch.addcdiv(a, b, b + 3),
    "atan2": lambda a, b: torch.atan2(a, b),
}


@pytest.mark.parametrize("name", PROMOTED)
def test_autocast_widens_what_cuda_widens(name):
    a, b = torch.randn(3, device=D), torch.randn(3, device=D).bfloat16()
    with torch.autocast(D, dtype=torch.bfloat16):
        got = PROMOTED[name](a, b)
    assert got.dtype == torch.float32
    close(got, PROMOTED[name](a, b.float()).cpu())


# ---- the extern route


def test_extern_is_lazy_counted_and_refused():
    x = torch.rand(3, 4, device=D)
    torch_opaque.reset_stats()
    y = torch.digamma(x) + 1
    assert _C.is_pending(y) and torch_opaque.fallback_counts() == {"aten::digamma": 1}
    close(y, torch.digamma(x.cpu()) + 1)
    with torch_opaque.strict(), pytest.raises(NotImplementedError, match="aten::digamma"):
        torch.digamma(x)


EXTERN = {
    "list result": lambda d: torch.stack(
        torch.meshgrid(torch.arange(3.0, device=d), torch.arange(2.0, device=d), indexing="ij")
    ),
    "two results": lambda d: torch.stack(
        [t.float() for t in torch.frexp(torch.arange(6.0, device=d).view(2, 3))]
    ),
    "some results": lambda d: torch.linalg.qr(torch.arange(6.0, device=d).view(3, 2) ** 2).R.abs(),
    "complex": lambda d: torch.fft.fft(torch.arange(6.0, device=d)).abs(),
    "complex and a number": lambda d: torch.view_as_real(
        torch.ones(3, dtype=torch.complex64, device=d) * 2 + 1j
    ),
    "data decides the shape": lambda d: torch.arange(6, device=d).remainder(4).unique(),
    "nonzero": lambda d: (torch.arange(6, device=d) % 2).nonzero(),
    "mask": lambda d: torch.arange(6.0, device=d)[torch.arange(6, device=d) % 2 == 0],
    "index_put": lambda d: torch.zeros(3, 3, device=d).index_put_(
        (torch.tensor([0, 2], device=d), torch.tensor([1, 1], device=d)), torch.ones(2, device=d)
    ),
    "in place": lambda d: torch.rand(3, device=d).mul(0).add(0.5).digamma_(),
    "out": lambda d: torch.digamma(torch.full((3,), 0.5, device=d), out=torch.empty(0, device=d)),
    "non-dense operand": lambda d: torch.arange(1.0, 13, device=d).view(3, 4)[:, ::2].digamma(),
    "transposed operand": lambda d: (
        torch.arange(1.0, 13, device=d).view(3, 4).t().digamma().contiguous()
    ),
    "f64": lambda d: torch.arange(3.0, dtype=torch.float64, device=d).exp(),
    "linspace": lambda d: torch.linspace(0, 1, 5, device=d),
    "tril": lambda d: torch.ones(3, 3, device=d).tril(),
    "empty operand": lambda d: torch.digamma(torch.ones(0, 3, device=d)),
}


@pytest.mark.parametrize("name", EXTERN)
def test_extern_values(name):
    want, got = EXTERN[name]("cpu"), EXTERN[name](D)
    assert got.device.type == D and got.is_contiguous() == want.is_contiguous()
    close(got, want)


@pytest.mark.parametrize("wrong", [lambda x: x + x[:, :2], lambda x: x @ x], ids=["add", "mm"])
def test_wrong_shapes_are_no_fallback(wrong, capfd):
    torch_opaque.reset_stats()
    with pytest.raises(RuntimeError, match="match|multiplied"):
        wrong(torch.ones(2, 3, device=D))
    assert torch_opaque.fallback_counts() == {} and capfd.readouterr().err == ""


def test_extern_never_changes_its_operands():
    x = torch.arange(4.0, device=D)
    keep = x + 0
    x.put_(torch.tensor([0], device=D), torch.tensor([9.0], device=D))
    close(keep, torch.arange(4.0))
    close(x, torch.tensor([9.0, 1, 2, 3]))


def test_every_kernel_keeps_its_gradient():
    """A kernel on an operator that PyTorch would decompose loses gradients unless autograd knows the operator."""
    # The backward formulas of silu and mish run these only when no second derivative is wanted.
    known = {
        "aten::linear",
        "aten::tensor_split.tensor_indices_or_sections",
        "aten::silu_backward",
        "aten::mish_backward",
        # These have a kernel for autograd, too, that decomposes them.
        "aten::max_pool1d",
        "aten::lstm.input",
        "aten::gru.input",
        "aten::quantile",
        "aten::quantile.out",
        "aten::nanquantile",
        "aten::nanquantile.out",
        # These have none.
        "aten::_has_compatible_shallow_copy_type",
        "aten::one_hot",
        "aten::choose_qparams_optimized",
        "aten::_sobol_engine_draw",
        "aten::_sobol_engine_ff_",
        "aten::_sobol_engine_initialize_state_",
        "aten::_sobol_engine_scramble_",
    }
    found = set()
    for name in torch._C._dispatch_get_registrations_for_dispatch_key("PrivateUse1"):
        if not name.startswith("aten::"):
            continue
        dump = torch._C._dispatch_dump(name)
        if "CompositeImplicitAutograd[alias]" in dump:
            found.add(name)
    assert found <= known, sorted(found - known)


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1])
def test_cat_keeps_channels_last(axis):
    last = torch.channels_last
    a, b = (torch.randn(2, 3, 4, 5).contiguous(memory_format=last) for _ in range(2))
    for pair in (
        (a, b),
        (a[:, :, ::2], b[:, :, ::2]),
        (a, b.half()),
        (a, b.contiguous()),
        (a.int(), b),
    ):
        want = torch.cat(pair, axis)
        got = torch.cat([x.to("opaque") for x in pair], axis)
        assert got.stride() == want.stride() and got.dtype == want.dtype
        assert torch.equal(got.cpu(), want)


def rotation(v, angle):
    """Of vectors, from entries (Rodrigues)."""
    zero = torch.zeros((), device=v.device)
    rows = [[zero, -v[2], v[1]], [v[2], zero, -v[0]], [-v[1], v[0], zero]]
    cross = torch.stack([torch.stack(row) for row in rows])
    return torch.eye(3, device=v.device) + angle.sin() * cross + (1 - angle.cos()) * cross


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_few_numbers_stacked_are_one_kernel(dtype, dim):
    x = (torch.randn(5, 4) * 10).to(dtype)

    def stack(x):
        return torch.stack([x[k] + k for k in range(5)], dim) * 2

    assert torch.equal(stack(x.to(D)).cpu(), stack(x))
    assert len(torch_opaque.graph(stack, x.to(D), stage="fused").kernels) == 1
    v, angle = torch.randn(3), torch.randn(())
    torch.testing.assert_close(rotation(v.to(D), angle.to(D)).cpu(), rotation(v, angle))
    assert len(torch_opaque.graph(rotation, v.to(D), angle.to(D), stage="fused").kernels) == 1


@pytest.mark.parametrize(
    "shapes",
    [((3,), (3,), 0), ((5, 1, 3), (1, 4, 3), -1), ((3, 70), (3, 70), 0), ((2, 3, 0), (2, 3, 1), 1)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_cross_is_native(shapes, dtype):
    a, b = ((torch.randn(s) * 10).to(dtype) for s in shapes[:2])
    before = torch_opaque.fallback_counts()
    got = torch.linalg.cross(a.to(D), b.to(D), dim=shapes[2])
    assert torch_opaque.fallback_counts() == before
    torch.testing.assert_close(got.cpu(), torch.linalg.cross(a, b, dim=shapes[2]))
    assert got.stride() == torch.linalg.cross(a, b, dim=shapes[2]).stride()
    if dtype == torch.float64:
        x, y = (t.to(D).requires_grad_() for t in (a, b))
        assert torch.autograd.gradcheck(
            lambda x, y: torch.linalg.cross(x, y, dim=shapes[2]), (x, y)
        )
