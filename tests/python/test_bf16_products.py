"""Products of bf16: which rule they are recorded with, and that its bits are the same however they run."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch_opaque
from torch import nn

pytestmark = pytest.mark.usefixtures("planned")

D = "opaque"


@pytest.fixture(params=["chain", "pairs", "pairs16"])
def rule(request):
    with torch.backends.opaque.flags(bf16_products=request.param):
        yield request.param


@pytest.fixture
def pairs():
    with torch.backends.opaque.flags(bf16_products="pairs"):
        yield


def half(*shape):
    return torch.randn(*shape, dtype=torch.bfloat16)


def text(t):
    return str(torch_opaque.graph(t, stage="recorded"))


def as_f32(t):
    return t.to(torch.float32).numpy()


def summed_by_pairs(a, b, rule):
    """a @ b of two matrices of bf16, by the rule: f64 holds a sum of f32 and a product of bf16, but for one rounding in some thousands."""
    a, b = as_f32(a).astype(np.float64), as_f32(b).astype(np.float64)
    step = 2 if rule == "pairs" else 32
    more = -a.shape[1] % step
    a, b = np.pad(a, ((0, 0), (0, more))), np.pad(b, ((0, more), (0, 0)))

    def chain(total, places):
        for i in places:
            total = (total + a[:, i : i + 1] * b[i : i + 1]).astype(np.float32)
        return total

    zero = total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(0, a.shape[1], step):
        if rule == "pairs":
            total = chain(total, (k + 1, k))
        else:
            total = total + (
                chain(zero, range(k, k + 32, 2)) + chain(zero, range(k + 1, k + 32, 2))
            )
    return torch.from_numpy(total)


def test_what_goes_by_pairs(pairs):
    x, w = half(32, 64).to(D), half(64, 48).to(D)
    assert "{pairs=1}" in text(x @ w)
    assert "{pairs=1, transpose_b=1}" in text(F.linear(x, half(48, 64).to(D)))
    assert "pairs=1" in text(half(3, 32, 64).to(D) @ w)
    assert "pairs=1" in text(half(2, 32, 64).to(D) @ half(2, 64, 48).to(D))
    assert "pairs=1" in text(F.conv2d(half(2, 16, 20, 20).to(D), half(16, 16, 3, 3).to(D)))
    assert text(F.scaled_dot_product_attention(*half(3, 1, 1, 64, 64).to(D))).count("pairs=1") == 2
    for other in (
        x[:1] @ w,  # a row
        x @ w[:, :1],  # a column
        x[:8] @ w[:, :16],  # a small one
        half(8, 16, 64).to(D) @ half(8, 64, 16).to(D),  # several small ones
        x.float() @ w.float(),
        x.half() @ w.half(),
        F.scaled_dot_product_attention(*half(3, 1, 1, 16, 64).to(D)),
        F.conv2d(half(2, 16, 20, 20).to(D), half(16, 1, 3, 3).to(D), groups=16),
    ):
        assert "pairs" not in text(other)
    with torch.backends.opaque.flags(bf16_products="chain"):
        assert "pairs" not in text(x @ w)
    assert torch.backends.opaque.bf16_products == "pairs"
    with pytest.raises(ValueError, match="'auto', 'chain', 'pairs' or 'pairs16'"):
        torch.backends.opaque.bf16_products = "both"


def test_the_processor_decides(run_warm):
    code = "x = torch.randn(64, 64, dtype=torch.bfloat16).to('opaque')\nprint(torch_opaque.graph(x @ x, stage='recorded'))"
    code = "import torch, torch_opaque\n" + code
    assert "pairs" not in run_warm(code, OPAQUE_CPU="avx2").stdout
    assert "{pairs=1}" in run_warm(code, OPAQUE_CPU="avx2", OPAQUE_BF16_PRODUCTS="pairs").stdout
    assert "{pairs=16}" in run_warm(code, OPAQUE_CPU="avx2", OPAQUE_BF16_PRODUCTS="pairs16").stdout
    assert "pairs" not in run_warm(code, OPAQUE_BF16_PRODUCTS="chain").stdout


SHAPES = [(2, 130, 130), (5, 257, 33), (128, 96, 64), (33, 41, 70), (300, 7, 65), (16, 2051, 19)]


@pytest.mark.parametrize("m, k, n", SHAPES)
def test_layouts_and_neighbours_change_no_bits(rule, m, k, n):
    x, w = half(m, k), half(k, n)
    xd, wd = x.to(D), w.to(D)
    want = (xd @ wd).cpu()
    if rule != "chain":
        assert (want == summed_by_pairs(x, w, rule).bfloat16()).float().mean() > 0.999
    turned = x.t().contiguous().to(D).t(), w.t().contiguous().to(D).t()
    apart = torch.stack([x, x], 2).to(D)[..., 0], torch.stack([w, w], 2).to(D)[..., 1]
    for a, b in (turned, (xd, turned[1]), (turned[0], wd), apart, (xd * 1, wd * 1)):
        assert torch.equal((a @ b).cpu(), want)
    assert torch.equal(xd.view(1, m, k).matmul(wd).cpu()[0], want)
    with torch_opaque.unfused():
        assert torch.equal((xd @ wd).cpu(), want)
    for _ in range(3):  # with packed copies
        assert torch.equal((xd @ wd).cpu(), want)
    twice = (torch.cat([xd, xd]) @ wd).cpu()
    assert torch.equal(twice[:m], want) and torch.equal(twice[m:], want)


def test_f32_that_may_be_rounded(rule):
    """torch.set_float32_matmul_precision("medium"), as on a CPU: products of f32 of what is rounded to bf16, with f32 sums."""
    x, w = torch.randn(33, 70), torch.randn(70, 65)
    exact = (x.to(D) @ w.to(D)).cpu()
    torch.set_float32_matmul_precision("medium")
    try:
        y = x.to(D) @ w.to(D)
        assert ("pairs=" in text(y)) == (rule != "chain")
        got, small = y.cpu(), x[:8, :8].to(D) @ w[:8, :8].to(D)
        assert got.dtype == torch.float32 and "pairs" not in text(small)
        with torch_opaque.unfused():
            assert torch.equal((x.to(D) @ w.to(D)).cpu(), got)
    finally:
        torch.set_float32_matmul_precision("highest")
    if rule == "chain":
        assert torch.equal(got, exact)
    else:
        want = summed_by_pairs(x.bfloat16(), w.bfloat16(), rule)
        assert (got == want).float().mean() > 0.999 and not torch.equal(got, exact)
    assert torch.equal((x.to(D) @ w.to(D)).cpu(), exact)


def test_rows_of_merged_heads(rule):
    """The left operand lies at no one stride."""
    x, w = half(2, 40, 4, 16), half(64, 48)
    merged = x.to(D).permute(0, 2, 1, 3).contiguous()  # as heads lie
    with torch.no_grad():
        got = merged.permute(0, 2, 1, 3).reshape(80, 64) @ w.to(D)
    assert torch.equal(got.cpu(), (x.reshape(80, 64).to(D) @ w.to(D)).cpu())


def test_batches(rule):
    """Each matrix gives what it gives alone, whichever operand is shared."""
    x, w = half(3, 40, 64).to(D), half(3, 64, 48).to(D)
    for a, b in ((x, w), (x, w[:1]), (x[:1], w), (x, w.mT.contiguous().mT)):
        got = (a @ b).cpu()
        for i in range(3):
            assert torch.equal(got[i], (a[min(i, len(a) - 1)] @ b[min(i, len(b) - 1)]).cpu())


def special(m, k):
    """Bits of all kinds but NaN: denormals, numbers about the smallest one, infinities."""
    bits = torch.randint(-(1 << 15), 1 << 15, (m, k), dtype=torch.int16)
    small = (bits & ~0x7F80) | (torch.randint(0, 70, (m, k), dtype=torch.int16) << 7)
    bits = torch.where(torch.rand(m, k) < 0.98, small, bits)
    nan = ((bits & 0x7F80) == 0x7F80) & ((bits & 0x7F) != 0)
    return torch.where(nan, torch.zeros_like(bits), bits).view(torch.bfloat16)


@pytest.mark.parametrize("kind", ["normal", "special"])
def test_a_dump_gives_the_bits_of_the_device(rule, kind, tmp_path, opq_opt):
    make = half if kind == "normal" else special
    x, w, v, bias = (
        make(40, 77).to(D),
        make(50, 77).to(D),
        make(50, 61).to(D),
        make(50).to(D) if kind == "normal" else None,
    )

    def f():
        hidden = F.gelu(F.linear(x, w, bias)) if bias is not None else F.linear(x, w)
        return [hidden, hidden @ v, F.linear(x[:2], w), x @ w.t()]

    torch.opaque.synchronize()
    torch_opaque.dump(f, dir=tmp_path)
    want = [t.cpu() for t in f()]
    for how in ("--run", "--eval-kernels"):
        opq_opt(how, tmp_path)
        paths = sorted(tmp_path.glob("out*.npy"), key=lambda p: int(p.stem[3:]))
        ran = [torch.from_numpy(np.load(p).view(np.int16)).view(torch.bfloat16) for p in paths]
        assert len(ran) >= len(want)
        for a, b in zip(ran, want, strict=False):
            same = (a.view(torch.int16) == b.view(torch.int16)) | (a.isnan() & b.isnan())
            assert same.all()


def test_as_accurate_as_pytorch(rule):
    x, w = half(64, 1000), half(1000, 80)
    exact = x.double() @ w.double()
    error = ((x.to(D) @ w.to(D)).cpu().double() - exact).abs()
    place = torch.exp2(torch.floor(torch.log2(exact.abs()))) * 2.0**-7
    theirs = ((x @ w).double() - exact).abs()
    assert (error / place).max() <= (theirs / place).max() + 1


def test_training(rule):
    """Gradients' products, whose left operand is transposed, go by the same rule and are as near as PyTorch's."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(96, 128), nn.GELU(), nn.Linear(128, 64)).to(torch.bfloat16)
    x = half(50, 96)
    ours = nn.Sequential(nn.Linear(96, 128), nn.GELU(), nn.Linear(128, 64)).to(torch.bfloat16)
    ours.load_state_dict(model.state_dict())
    ours.to(D)
    model(x).float().square().mean().backward()
    loss = ours(x.to(D)).float().square().mean()
    loss.backward()
    for a, b in zip(ours.parameters(), model.parameters(), strict=True):
        assert torch.allclose(a.grad.cpu().float(), b.grad.float(), rtol=0.05, atol=2e-3)


CONVOLUTIONS = {
    "3x3": (F.conv2d, (2, 16, 20, 23), (24, 16, 3, 3), {"padding": 1}),
    "by 2": (F.conv2d, (1, 3, 33, 33), (40, 3, 5, 5), {"stride": 2, "padding": 2}),
    "1x1": (F.conv2d, (3, 40, 12, 12), (33, 40, 1, 1), {}),
    "apart": (F.conv2d, (2, 24, 16, 18), (16, 24, 3, 3), {"dilation": 2, "padding": (0, 2)}),
    "groups": (F.conv2d, (2, 32, 16, 16), (48, 16, 3, 3), {"groups": 2, "padding": 1}),
    "line": (F.conv1d, (4, 31, 200), (30, 31, 7), {"padding": 3}),
    "space": (F.conv3d, (1, 8, 9, 10, 11), (16, 8, 3, 3, 3), {"padding": 1}),
    "transposed": (F.conv_transpose2d, (2, 24, 13, 13), (24, 16, 3, 3), {"stride": 2}),
}


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(rule, name, last):
    """Windows are operands like others; so are the gradients' products."""
    function, shape, weight_shape, options = CONVOLUTIONS[name]
    torch.manual_seed(0)
    x, w = half(*shape), half(*weight_shape)
    if last and x.dim() == 4:
        x, w = (t.to(memory_format=torch.channels_last) for t in (x, w))

    def run(x, w):
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        y = function(x, w, **options)
        weight = torch.arange(y.numel(), dtype=torch.float64).reshape(y.shape).sin()
        gradients = torch.autograd.grad(y, (x, w), weight.bfloat16().to(y.dtype).to(y.device))
        return [t.detach().cpu() for t in (y, *gradients)]

    want, got = run(x.double(), w.double()), run(x.to(D), w.to(D))
    for a, b in zip(want, got, strict=True):
        error = (b.double() - a).abs().max() / a.abs().max()
        assert error < 2**-8
    xd, wd = x.to(D), w.to(D)
    results = [function(xd, wd, **options).cpu() for _ in range(3)]  # with packed copies
    assert all(torch.equal(r, got[0]) for r in results)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers(rule, kind):
    """Products of inputs and those of each step, and their gradients'."""
    torch.manual_seed(0)
    theirs = kind(40, 48, num_layers=2, bidirectional=True).double()
    with torch.no_grad():
        for p in theirs.parameters():
            p.copy_(p.bfloat16().double())
    ours = kind(40, 48, num_layers=2, bidirectional=True).bfloat16().to(D)
    ours.load_state_dict(theirs.state_dict())
    x = half(7, 20, 40)

    def run(layer, x):
        x = x.detach().requires_grad_()
        y = layer(x)[0]
        grads = torch.autograd.grad(y, (x, *layer.parameters()), torch.ones_like(y))
        return [t.detach().cpu() for t in (y, *grads)]

    want, got = run(theirs, x.double()), run(ours, x.to(D))
    for a, b in zip(want, got, strict=True):
        assert (b.double() - a).abs().max() / a.abs().max() < 0.05
    assert ("pairs" in text(ours(x.to(D))[0])) == (rule != "chain")
    assert all(torch.equal(a, b) for a, b in zip(got, run(ours, x.to(D)), strict=True))
