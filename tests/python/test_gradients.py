"""Gradients where layouts and extents of 1 meet, and gradients of gradients. All operators': test_layouts.py."""

from contextlib import nullcontext

import pytest
import torch
import torch_opaque
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

MODES = {"fused": None, "unfused": torch_opaque.unfused, "eager": torch_opaque.eager}
pytestmark = pytest.mark.filterwarnings("ignore")


def patches(norm, x, weight):
    """The patch embedding of vision transformers: behind the norm, channels become the last dimension."""
    return (norm(x).flatten(2).transpose(1, 2) @ weight).square().mean()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "size", [(1, 4, 8, 8), (2, 4, 8, 8), (1, 1, 8, 8), (1, 4, 1, 8), (1, 4, 1, 1)], ids=str
)
def test_a_norm_before_patches(size, mode):
    """Against differences of values: for a batch of 1 PyTorch's CPU kernel takes the transposed gradient for a contiguous one
    (both memory formats look contiguous to it), and gives wrong gradients of weight and bias."""

    def made(device):
        torch.manual_seed(0)
        norm = nn.BatchNorm2d(size[1]).double().eval()
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        x, weight = (
            torch.randn(size, dtype=torch.float64),
            torch.randn(size[1], 5, dtype=torch.float64),
        )
        return norm.to(device), x.to(device), weight.to(device)

    norm, x, weight = made("opaque")
    with MODES[mode]() if MODES[mode] else torch.enable_grad():
        patches(norm, x, weight).backward()
    twin, x, weight = made("cpu")
    for name in ("weight", "bias"):
        parameter = getattr(twin, name)
        slopes = []
        with torch.no_grad():
            for i in range(size[1]):
                values = []
                for step in (1e-4, -2e-4):
                    parameter[i] += step
                    values.append(patches(twin, x, weight))
                parameter[i] += 1e-4
                slopes.append((values[0] - values[1]) / 2e-4)
        torch.testing.assert_close(
            getattr(norm, name).grad.cpu(), torch.stack(slopes), rtol=1e-6, atol=1e-7
        )


# ---- factors of a matrix or of its transpose


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "sliced", "cropped"])
@pytest.mark.parametrize("name", ["det", "slogdet", "solve", "inv"])
def test_factors_of_matrices_in_layouts(name, layout):
    """PyTorch factors the transpose of a contiguous matrix; for the gradient it looks whether the matrix was contiguous."""
    torch.manual_seed(0)
    values = torch.randn(3, 5, 5)
    function = {
        "det": torch.linalg.det,
        "slogdet": lambda x: torch.linalg.slogdet(x)[1],
        "solve": lambda x: torch.linalg.solve(x, x.new_ones(3, 5, 2)).square(),
        "inv": torch.linalg.inv,
    }[name]

    def gradient(matrix):
        matrix = matrix.detach().requires_grad_()
        return torch.autograd.grad(function(matrix).sum(), matrix)[0].cpu().double()

    t = values.to("opaque")
    if layout == "transposed":
        t = t.mT.contiguous().mT
    elif layout == "sliced":
        t = torch.stack([t, t + 1], -1)[..., 0]
    elif layout == "cropped":
        t = F.pad(t, (1, 1, 1, 1), value=7.0)[:, 1:-1, 1:-1]
    torch.testing.assert_close(gradient(t), gradient(values.double()), rtol=1e-4, atol=1e-4)


# ---- gradients of gradients

TWICE = {
    "linear": (F.linear, (3, 4), (2, 4), (2,)),
    "linear of one row": (F.linear, (1, 4), (1, 4), (1,)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), (3, 4), (4,), (4,)),
    "batch_norm": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        (3, 2, 2, 2),
        (2,),
        (2,),
    ),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (2, 4, 3), (4,), (4,)),
    "softmax": (lambda x: x.softmax(-1), (3, 4)),
    "log_softmax": (lambda x: x.log_softmax(0), (3, 4)),
    "gelu": (F.gelu, (3, 4)),
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), (3, 4)),
    "silu": (F.silu, (3, 4)),
    "tanh": (torch.tanh, (3, 4)),
    "conv1d": (F.conv1d, (2, 2, 4), (3, 2, 2), (3,)),
    "conv2d": (
        lambda x, w, b: F.conv2d(x, w, b, padding=1, stride=2),
        (1, 2, 3, 3),
        (2, 2, 2, 2),
        (2,),
    ),
    "conv_transpose2d": (F.conv_transpose2d, (1, 2, 2, 2), (2, 1, 2, 2), (1,)),
    "matmul": (torch.matmul, (2, 3, 4), (4, 2)),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        (1, 2, 3, 2),
        (1, 2, 3, 2),
        (1, 2, 3, 2),
    ),
    "max_pool": (lambda x: F.max_pool2d(x, 2), (1, 2, 4, 4)),
    "avg_pool": (lambda x: F.avg_pool2d(x, 2), (1, 2, 4, 4)),
    "mse_loss": (F.mse_loss, (3, 4), (3, 4)),
    "cross_entropy": (
        lambda x: F.cross_entropy(x, torch.tensor([0, 2, 1], device=x.device)),
        (3, 4),
    ),
    "norm": (lambda x: x.norm(dim=1), (3, 4)),
    "var": (lambda x: x.var(1), (3, 4)),
    "cumsum": (lambda x: x.cumsum(0) * x, (3, 4)),
}


@pytest.mark.parametrize("name", TWICE)
@sdpa_kernel(SDPBackend.MATH)  # the CPU's own choice has no second derivative
def test_gradients_of_gradients(name):
    function, *shapes = TWICE[name]
    torch.manual_seed(0)
    inputs = [torch.randn(s, dtype=torch.float64) for s in shapes]
    here = [t.requires_grad_() for t in inputs]
    there = [t.detach().to("opaque").requires_grad_() for t in inputs]

    def slopes(leaves):
        out = function(*leaves)
        torch.manual_seed(1)
        weight = torch.randn(out.shape, dtype=torch.float64).to(out.device).requires_grad_()
        first = torch.autograd.grad(out, leaves, weight, create_graph=True)
        second = torch.autograd.grad(
            sum((g * g.detach().cos()).sum() for g in first), [*leaves, weight], allow_unused=True
        )
        return [*first, *second]

    for mine, theirs in zip(slopes(there), slopes(here), strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            torch.testing.assert_close(mine.detach().cpu(), theirs.detach(), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", ["linear", "layer_norm", "softmax", "gelu", "conv2d"])
def test_gradgradcheck(name):
    function, *shapes = TWICE[name]
    torch.manual_seed(0)
    inputs = [torch.randn(s, dtype=torch.float64).to("opaque").requires_grad_() for s in shapes]
    assert torch.autograd.gradcheck(function, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("batch", [1, 2])
def test_batch_norm_before_a_patch_embedding(batch, training):
    """The cotangent of `bn(x).flatten(2).transpose(1, 2) @ w` has memory order [h, w, c], and for a batch of 1 a stride of the batch
    that says nothing. There PyTorch's own CPU kernel (2.13) gives wrong gradients of weight and bias, in float64 too, so the
    reference is the formula: normalising written out, differentiated in float64, and finite differences of it."""
    torch.manual_seed(0)
    x, w = torch.randn(batch, 4, 8, 8), torch.randn(4, 8)
    mean, variance = torch.randn(4), torch.rand(4) + 0.5

    def composed(weight, bias):
        y = x.double()
        m, v = mean.double(), variance.double()
        if training:
            m, v = y.mean((0, 2, 3)), y.var((0, 2, 3), correction=0)
        m, v, weight, bias = (t[None, :, None, None] for t in (m, v, weight, bias))
        y = (y - m) / torch.sqrt(v + 1e-5) * weight + bias
        return (y.flatten(2).transpose(1, 2) @ w.double()).square().mean()

    start = torch.linspace(0.5, 2, 4), torch.linspace(-1, 1, 4)
    wanted = torch.autograd.functional.jacobian(composed, tuple(t.double() for t in start))
    step = torch.zeros(4, dtype=torch.float64)
    step[2] = 1e-6
    low, high = (composed(start[0].double() + s, start[1].double()) for s in (-step, step))
    assert abs((high - low) / 2e-6 - wanted[0][2]) < 1e-6 * abs(wanted[0][2])
    for mode in (nullcontext, torch_opaque.unfused, torch_opaque.eager):
        with mode():
            weight, bias = (t.to("opaque").requires_grad_() for t in start)
            statistics = mean.to("opaque"), variance.to("opaque")
            y = torch.nn.functional.batch_norm(
                x.to("opaque"), *statistics, weight, bias, training, 0.1, 1e-5
            )
            (y.flatten(2).transpose(1, 2) @ w.to("opaque")).square().mean().backward()
            for got, expected in zip((weight.grad, bias.grad), wanted, strict=True):
                assert torch.allclose(got.cpu().double(), expected, rtol=1e-4, atol=1e-5)


PARTS = {
    "select": lambda x: (x[0] * x[1] + x[-1]).square(),
    "inner": lambda x: x[:, 2] * x[..., -1, :1] + x[:, -3].exp(),
    "slices": lambda x: x[1:, :2] * x[-2:, 2:4] + x[:2, -2:],
    "over": lambda x: x[:, 1:100].square() + x[0:1, -100:3],
    "steps": lambda x: x[::2, 1:-1] * x[::2, :2],
    "nothing": lambda x: x[2:2].sum() + x[0, 1, 2] * x[-1],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64], ids=str)
@pytest.mark.parametrize("part", PARTS)
def test_gradients_of_parts(part, dtype):
    """Bit by bit, and their gradients."""

    def found(device):
        torch.manual_seed(0)
        x = torch.randn(3, 4, 4, dtype=dtype).to(device).requires_grad_()
        first = torch.autograd.grad(PARTS[part](x).abs().sum(), x, create_graph=True)[0]
        return [
            t.detach().cpu() for t in (first, *torch.autograd.grad(first.abs().square().sum(), x))
        ]

    for ours, expect in zip(found("opaque"), found("cpu"), strict=True):
        torch.testing.assert_close(ours, expect)
