"""Upsampling by any factor, against the CPU: values, gradients, strides, and that no CPU kernel is called."""

import random

import pytest
import torch
import torch.nn.functional as F
import torch_opaque
from test_convolution import D, check, formatted

LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}
DTYPES = [torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16]


def case(rng):
    """A tensor, what F.interpolate takes for its size, and whether it is channels-last."""
    spatial = rng.choice([1, 2, 2, 3])
    sizes = [rng.randint(1, 9) for _ in range(spatial)]
    x = torch.randn(rng.randint(1, 3), rng.randint(1, 5), *sizes)
    kind = rng.randrange(4)
    if kind == 0:
        target = {"scale_factor": rng.choice([2, 3, 4, 5])}
    elif kind == 1:
        target = {"scale_factor": [rng.uniform(0.6, 3.5) for _ in sizes]}
        if any(s * f < 1 for s, f in zip(sizes, target["scale_factor"], strict=True)):
            target = {"scale_factor": 1.7}
    elif kind == 2:
        target = {"size": [s * rng.choice([1, 2, 3]) for s in sizes]}
    else:
        target = {"size": [rng.randint(1, 20) for _ in sizes]}
    if rng.random() < 0.2 and "scale_factor" in target:
        target["recompute_scale_factor"] = True
    return x, target, spatial, rng.random() < 0.4


@pytest.mark.parametrize("seed", range(80))
def test_linear(seed):
    torch.manual_seed(seed)
    rng = random.Random(seed)
    x, target, spatial, last = case(rng)
    x, align = x.to(rng.choice(DTYPES)), rng.random() < 0.5
    check(
        lambda x: F.interpolate(x, mode=LINEAR[spatial], align_corners=align, **target),
        x,
        last=last,
    )


@pytest.mark.parametrize("seed", range(60))
def test_nearest(seed):
    torch.manual_seed(seed)
    rng = random.Random(seed)
    x, target, _, last = case(rng)
    x, mode = x.to(rng.choice(DTYPES)), rng.choice(["nearest", "nearest-exact"])
    check(lambda x: F.interpolate(x, mode=mode, **target), x, last=last, native=not last)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("target", [{"scale_factor": 2}, {"size": (31, 17)}], ids=str)
def test_fused_is_unfused(target, last):
    torch.manual_seed(0)
    x = formatted(torch.randn(2, 8, 13, 11, device=D), last)

    def layer():
        wide = F.interpolate(x * 2, mode="bilinear", **target)
        return torch.relu(wide + 1).cpu()

    fused = layer()
    with torch_opaque.unfused():
        assert torch.equal(layer(), fused)


def test_gradients_of_gradients():
    x = torch.randn(1, 2, 3, 4, dtype=torch.float64, device=D, requires_grad=True)
    for align in (False, True):
        assert torch.autograd.gradgradcheck(
            lambda x: F.interpolate(x, size=(5, 8), mode="bilinear", align_corners=align), x
        )
