"""Operators that run through the CPU kernel: what they are predicted to give, and what happens if that is wrong."""

import pytest
import torch
import torch_opaque
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_loss_without_reduction_of_one_sample():
    x, target = torch.randn(4), torch.tensor([3, 0, -1, 1])
    loss = nn.MultiLabelMarginLoss(reduction="none")
    here = x.clone().requires_grad_()
    there = x.to("opaque").requires_grad_()
    want, got = loss(here, target), loss(there, target.to("opaque"))
    assert got.shape == want.shape == torch.Size([])
    torch.testing.assert_close(got.detach().cpu(), want.detach())
    want.backward(), got.backward()
    torch.testing.assert_close(there.grad.cpu(), here.grad)


def test_a_wrong_prediction_is_found_before_it_is_used():
    """An operator whose meta kernel promises another shape than the CPU kernel gives: its first call of a kind is rehearsed, so that
    the shape is the CPU kernel's, also for large operands."""
    with torch.library._scoped_library("opaquetest", "DEF") as library:
        library.define("total(Tensor x) -> Tensor")
        library.impl("total", lambda x: x.sum(), "CPU")
        library.impl("total", lambda x: x.new_empty(1), "Meta")
        for size in (3, 5, 100000, 3):
            result = torch.ops.opaquetest.total(torch.ones(size, device="opaque"))
            assert result.shape == () and result.item() == size


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "training"])
def test_a_norm_of_half_precision_with_float_parameters(dtype, training):
    """As autocast makes it. It is native, and its statistics have the CPU's type; in evaluation there are none."""

    def run(device):
        torch.manual_seed(0)
        norm = nn.BatchNorm2d(3).train(training)
        with torch.no_grad():
            for tensor in (norm.weight, norm.running_mean, norm.running_var):
                tensor.uniform_(0.5, 1.5)
        x = torch.randn(4, 3, 5, 5, dtype=dtype).to(device).requires_grad_()
        norm.to(device)
        parts = (norm.weight, norm.bias, norm.running_mean.clone(), norm.running_var.clone())
        results = torch.ops.aten.native_batch_norm(x, *parts, training, 0.1, 1e-5)
        norm(x).float().square().sum().backward()
        return [
            t.detach().cpu()
            for t in (*results, x.grad, norm.weight.grad, norm.bias.grad, *norm.buffers())
        ]

    with torch_opaque.strict():
        got = run("opaque")
    for mine, theirs in zip(got, run("cpu"), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)


def test_a_norm_of_nothing_in_evaluation():
    norm = nn.BatchNorm1d(3).eval().to("opaque")
    x = torch.empty(0, 3, device="opaque", requires_grad=True)
    norm(x).sum().backward()
    assert x.grad.shape == (0, 3) and norm.weight.grad.tolist() == [0, 0, 0]


def test_statistics_have_the_dtype_of_the_cpu():
    def run(device):
        x, one = (
            torch.randn(2, 3, 4, device=device).bfloat16(),
            torch.ones(3, device=device).bfloat16(),
        )
        return [
            *torch.native_layer_norm(x[:0], (4,), None, None, 1e-5),
            *torch.ops.aten._native_batch_norm_legit.no_stats(x, one, one, True, 0.1, 1e-5),
        ]

    for mine, theirs in zip(run("opaque"), run("cpu"), strict=True):
        assert mine.shape == theirs.shape and mine.cpu().dtype == theirs.dtype


# ---- operators with one kernel for every device, which reads the memory of its operands


@pytest.mark.parametrize(
    "call",
    [
        lambda d: torch.kaiser_window(5, device=d),
        lambda d: torch.kaiser_window(6, False, 3.0, device=d, dtype=torch.float64),
        lambda d: torch.ops.aten.kaiser_window.out(5, out=torch.empty(5, device=d)),
        lambda d: torch.ops.aten.range.out_(0.5, 2, out=torch.empty(0, device=d)),
        lambda d: torch.arange(6, out=torch.empty(2, 3, device=d)),
        lambda d: torch.fft.rfftfreq(1, 2.0, out=torch.empty((), device=d)),
    ],
    ids=["window", "window of doubles", "window into", "range into", "arange into", "one into"],
)
def test_made_from_numbers(call):
    got, expected = call("opaque"), call("cpu")
    assert got.device.type == "opaque" and got.dtype == expected.dtype
    assert torch.equal(got.cpu(), expected)


def test_sobol_engine():
    def run(device):
        engine = torch.quasirandom.SobolEngine(3, scramble=False)
        for name in ("quasi", "sobolstate", "_first_point"):
            setattr(engine, name, getattr(engine, name).to(device))
        first = engine.draw(4)
        engine.fast_forward(3)
        state = torch.zeros(3, 30, dtype=torch.int64, device=device)
        torch._sobol_engine_initialize_state_(state, 3)
        return [t.cpu() for t in (first, engine.draw(4), engine.quasi, state)]

    for got, expected in zip(run("opaque"), run("cpu"), strict=True):
        assert torch.equal(got, expected)


def test_a_lazy_clone_is_a_copy():
    x = torch.arange(6.0, device="opaque").reshape(2, 3)
    for source in (x, x.t(), x[:, 1:]):
        before = source.tolist()
        y = torch._lazy_clone(source)
        y.add_(1)
        assert source.tolist() == before and y.stride() == torch.clone(source).stride()
        assert y.cpu().equal(source.cpu() + 1)


def test_batch_norm_without_an_update():
    def run(device, *, stats=True):
        torch.manual_seed(0)
        x, weight, bias, mean, variance = (
            torch.rand(*size).to(device) for size in ((2, 3, 4), (3,), (3,), (3,), (3,))
        )
        if not stats:
            mean = variance = None
        return torch.ops.aten._batch_norm_no_update(x, weight, bias, mean, variance, 0.1, 1e-5)

    for got, expected in zip(run("opaque"), run("cpu"), strict=True):
        assert got.shape == expected.shape and got.dtype == expected.dtype
        assert torch.allclose(got.cpu(), expected, rtol=1e-5)
    # The CPU's kernel crashes here.
    with pytest.raises(RuntimeError, match="must be defined in evaluation mode"):
        run("opaque", stats=False)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_lists_of_torchscript():
    def masked(x):
        x[x < 3] = 1.0
        return x[x > 4], x[:, torch.tensor([0, 2], device=x.device)]

    program = torch.jit.script(masked)
    for _ in range(3):  # the third call runs what was optimized
        got = program(torch.arange(12.0, device="opaque").reshape(3, 4))
    expected = masked(torch.arange(12.0).reshape(3, 4))
    assert all(g.cpu().equal(e) for g, e in zip(got, expected, strict=True))


def _mode_into(d):
    values, indices = torch.empty(0, device=d), torch.empty(0, dtype=torch.int64, device=d)
    torch.mode(torch.tensor([[1.0, 1, 2], [3, 4, 4]], device=d), 1, out=(values, indices))
    return values


def _copied_into_a_conjugate(d):
    x = torch.zeros(2, dtype=torch.complex64, device=d)
    x.conj().copy_(torch.tensor([1 + 2j, 3 - 1j], device=d))
    return x


@pytest.mark.parametrize(
    "call",
    [
        lambda d: torch._neg_view(torch.tensor([1 + 2j, 3 - 1j], device=d)),
        lambda d: torch._neg_view(torch.tensor([1 + 2j, 3 - 1j], device=d)) + 1,
        lambda d: torch.tensor([1 + 2j], device=d).conj().imag.clone(),
        _copied_into_a_conjugate,
        lambda d: torch.tensor([1 + 2j], device=d).conj_physical_(),
        lambda d: torch.all(torch.ones(2, 3, device=d), dim=()),
        lambda d: torch.any(torch.zeros(2, 3, device=d), dim=(), keepdim=True),
        _mode_into,
        lambda d: torch.ops.aten.copy.out(torch.ones(2, device=d), torch.zeros(2, device=d), out=torch.ones(2, device=d)),
        lambda d: torch.ops.aten._foreach_copy([torch.ones(2, device=d)], [torch.zeros(2, device=d)])[0],
        lambda d: torch.arange(0, 7.5, 0.5, dtype=torch.int8, device=d),
        lambda d: torch.zeros((), dtype=torch.float16, device=d).fill_(70000.0),
        lambda d: torch.zeros(1, dtype=torch.bfloat16, device=d).fill_(1e39),
    ],
)  # fmt: skip
def test_as_on_the_cpu(call):
    got, want = call("opaque"), call("cpu")
    assert got.device.type == "opaque" and got.dtype == want.dtype
    assert got.cpu().tolist() == want.tolist()


@pytest.mark.parametrize("default", [torch.float32, torch.float64])
def test_an_operator_that_breaks_its_promise_runs_at_once_from_then_on(default):
    name = f"odd_{str(default)[6:]}"
    with torch.library._scoped_library("opaque_test", "FRAGMENT") as library:
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, lambda x: x[:1].clone() if x.max() > 1 else x.clone(), "CPU")
        library.impl(name, torch.empty_like, "Meta")
        odd = getattr(torch.ops.opaque_test, name)
        x = torch.arange(5.0, device="opaque")
        torch.set_default_dtype(default)
        try:
            promised = odd(x)
            assert promised.shape == (5,)
            with pytest.raises(RuntimeError, match="promised"):
                promised.cpu()
            assert odd(x).tolist() == [0.0]
        finally:
            torch.set_default_dtype(torch.float32)


# ---- what is told of it


def told(run_warm, text) -> str:
    return run_warm(
        "import torch\nimport torch.nn.functional as F\nx = torch.rand(4, 4, device='opaque')\n"
        + text
    ).stderr


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("torch.digamma(x.double())", "has no native kernel"),
        ("x.to(torch.complex64).exp()", "aten::exp has no native kernel for complex64"),
        ("torch.special.entr(x)", ""),
        (
            "F.interpolate(x[None, None], scale_factor=2, mode='bilinear', antialias=True)",
            "has no native kernel",
        ),
        (
            "F.interpolate(x[None, None], scale_factor=2, mode='bicubic')",
            "upsample_bicubic2d has no native kernel;",
        ),
        ("torch.linalg.inv(x)", "aten::linalg_inv_ex has no native kernel"),
    ],
)
def test_a_warning_names_the_reason(run_warm, call, reason):
    shown = told(run_warm, f"{call}.sum().item()")
    assert reason in shown
    if reason:
        assert "for these arguments" not in shown and "<string>:4: aten::" in shown, shown


def test_a_warning_of_a_gradient_names_the_line_of_its_forward_op(run_warm):
    text = """
w = torch.rand(3, device="opaque", requires_grad=True)
loss = torch.special.i0e(w)

loss.sum().backward()
print(w.grad)
"""
    shown = told(run_warm, text)
    assert "<string>:6 (backward): aten::" in shown, shown


def test_strict_names_the_reason_and_the_search_for_it_leaves_no_trace():
    x = torch.rand(4, 4, device="opaque").to(torch.complex64)
    torch.opaque.synchronize()
    before = torch_opaque.fallback_counts()
    state = torch.opaque.get_rng_state()
    with (
        torch_opaque.strict(),
        pytest.raises(
            NotImplementedError, match="aten::exp has no native kernel for complex64 on device"
        ),
    ):
        x.exp()
    assert torch_opaque.fallback_counts() == before and torch.equal(
        torch.opaque.get_rng_state(), state
    )


def test_a_result_of_another_kind_is_called_what_it_is():
    x = torch.rand(4, device="opaque")
    with pytest.raises(
        NotImplementedError, match="quantized tensor, which device opaque:0 does not have"
    ):
        torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)


def kernels_of(f):
    before = torch_opaque.stats()
    kept = f()
    torch.opaque.synchronize()
    after = torch_opaque.stats()
    del kept
    return [after[name] - before[name] for name in ("kernels_run", "extern_calls")]


@pytest.mark.parametrize("f", [torch.linalg.inv, torch.linalg.cholesky], ids=["inv", "cholesky"])
@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 3)], ids=str)
def test_whether_a_factorisation_failed_is_asked_without_a_kernel(f, shape):
    good = torch.eye(3).expand(shape).contiguous().to("opaque")
    for _ in range(3):
        assert kernels_of(lambda: f(good)) == [0, 1]
    with pytest.raises(torch.linalg.LinAlgError) as want:
        f(torch.zeros(shape))
    with pytest.raises(torch.linalg.LinAlgError) as got:
        f(torch.zeros(shape, device="opaque"))
    assert str(got.value) == str(want.value)


EVER_NEW_SHAPES = """
import torch, torch_opaque
calls = []

def doubled(x):
    calls.append(x.shape)
    return x * 2

library = torch.library.Library("opaquetest", "DEF")
library.define("doubled(Tensor x) -> Tensor")
library.impl("doubled", doubled, "CPU")
library.impl("doubled", torch.empty_like, "Meta")
run = torch.ops.opaquetest.doubled
for size in range(3, 43):
    assert run(torch.ones(size, device="opaque")).sum().item() == 2 * size
assert calls.count((40,)) == 1 and len(calls) <= 40 + 9, len(calls)
before = torch_opaque.stats()["extern_calls"]
for _ in range(80):  # known by now, and soon the operator is no longer one of new shapes
    assert run(torch.ones(4, device="opaque")).sum().item() == 8
assert torch_opaque.stats()["extern_calls"] == before + 80
del calls[:]
run(torch.ones(200, device="opaque"))  # predicted and rehearsed, and nobody reads it
run(torch.ones(200, device="opaque"))
assert len(calls) == 1
"""


def test_an_operator_of_ever_new_shapes_runs_once(run_python):
    """It is neither predicted nor rehearsed, but for the first shapes; where a program goes back to few shapes it waits again."""
    run_python(EVER_NEW_SHAPES)


def test_halves_are_always_predicted(run_python):
    """Where their graphs end decides what is rounded, which must not depend on what ran before."""
    text = EVER_NEW_SHAPES.replace(
        "calls = []", "calls = []; torch.ones(2, dtype=torch.bfloat16).to('opaque')", 1
    )
    text = text[: text.index("assert calls.count")] + "assert calls.count((40,)) == 2"
    run_python(text)
