"""Gradients where layouts and extents of 1 meet, gradients of gradients, and the sweeps over op_db, module_db and optim_db.

What op_db's own sweep (test_opdb.py) does not vary is varied in tests/opdb/layouts.py. A few entries run always, all of them with
--full.
"""

import os
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch_opaque
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(Path(__file__).parent.parent / "opdb"))

import forms  # noqa: E402
import layouts  # noqa: E402
import modules  # noqa: E402

FULL = bool(os.environ.get("OPAQUE_TEST_FULL"))
JOBS = int(os.environ.get("OPAQUE_TEST_JOBS", len(os.sched_getaffinity(0))))
MODES = {"fused": None, "unfused": torch_opaque.unfused, "eager": torch_opaque.eager}
pytestmark = pytest.mark.filterwarnings("ignore")

# The cases and samples that run always: one of each kind of layer.
QUICK_LAYOUTS = [
    *(
        "case.batch_norm.4d.eval",
        "case.batch_norm.4d.training",
        "case.group_norm.4d",
        "case.layer_norm.3d",
    ),
    *(
        "case.conv.2d",
        "case.conv.depthwise.2d",
        "case.max_pool.2d",
        "case.linear.3d",
        "case.bmm",
        "case.patches",
    ),
    *(
        "case.attention",
        "case.softmax.4d",
        "case.cross_entropy.mean.3d",
        "case.cat.4d",
        "case.write.4d",
    ),
]
QUICK_FORMS = [
    *("nn.functional.conv1d", "nn.functional.conv_transpose2d"),
    *("native_dropout_backward", "native_batch_norm", "nn.functional.batch_norm"),
]
QUICK_MODULES = [
    *(
        "nn.BatchNorm2d",
        "nn.MultiLabelMarginLoss",
        "nn.LSTM",
        "nn.Conv2d",
        "nn.TransformerEncoderLayer",
    ),
    *("optim.Adam", "optim.SGD", "optim.RMSprop"),
]


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


# ---- sweeps


# What cannot pass, with the reason.
WINDOW = (
    "the sample is a window of a larger storage, which a copy to the device does not take along"
)
EXPECTED = {
    "as_strided.partial_views": WINDOW,
    "optim.SparseAdam": "sparse tensors do not live on the device",
}
CANCELS = "the gradient is the difference of two equal numbers; fused halves are not rounded where the CPU rounds them"
POLICY = "PyTorch accumulates in another dtype on devices that its table of (device type, dtype) does not name"
EXPECTED_FORMS = {
    "as_strided.partial_views": WINDOW,
    "istft": "the CPU gives no gradient of a complex window",
    "masked.normalize": CANCELS,
    "nn.functional.linear_cross_entropy.chunked": POLICY,
    "nn.functional.linear_cross_entropy.chunked_none": POLICY,
    "nn.functional.normalize": CANCELS,
    **({"nn.functional.soft_margin_loss": "an exponential is infinite in float16"} if FULL else {}),
    "sparse.mm.reduce": "compressed sparse tensors do not live on the device",
    "sparse.sampled_addmm": "compressed sparse tensors do not live on the device",
}


def swept(file, names, full, expected=EXPECTED):
    rows = layouts.run(file, names, full, jobs=JOBS)
    bad = [
        f"{n}: {row}" for n, row in rows.items() if row[0] not in ("ok", "-") and n not in expected
    ]
    bad += [
        f"{n} passes, and is listed" for n, row in rows.items() if row[0] == "ok" and n in expected
    ]
    bad += [
        f"{n} compares nothing"
        for n, row in rows.items()
        if row[0] == "-" and n.startswith("case.")
    ]
    assert not bad, "\n".join(bad)


def test_layouts():
    swept(layouts.__file__, sorted(layouts.entries()) if FULL else QUICK_LAYOUTS, FULL)


def test_dtypes_and_forms():
    names = sorted(forms.entries())
    swept(
        forms.__file__,
        names if FULL else sorted({*names[::40], *QUICK_FORMS}),
        FULL,
        EXPECTED_FORMS,
    )


def test_modules_and_optimizers():
    swept(modules.__file__, sorted(modules.entries()) if FULL else QUICK_MODULES, FULL)


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
