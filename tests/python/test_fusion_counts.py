"""How many kernels run and how many bytes they move, for the patterns fusion promises to take whole."""

import math
import os
import random

import pytest
import torch
import torch.nn.functional as F
import torch_opaque

D = "opaque"
SEEDS = range(400 if os.environ.get("OPAQUE_TEST_FULL") == "1" else 40)


def ready(*tensors):
    """The tensors on the device, computed."""
    moved = [t.to(D) for t in tensors]
    torch.opaque.synchronize()
    return moved


def run(f, *args):
    """f's result on the CPU and the counters of that run. A first call fills the caches: what is
    packed or computed once for all steps is not the pattern's own work."""
    f(*args)
    torch.opaque.synchronize()
    torch_opaque.reset_stats()
    result = f(*args)
    torch.opaque.synchronize()
    stats = torch_opaque.stats()
    return result.cpu(), stats


def moved(stats):
    return stats["bytes_read"], stats["bytes_written"]


def assert_one_kernel(f, *args):
    result, stats = run(f, *args)
    assert torch_opaque.fallback_counts() == {}
    why = torch_opaque.explain(f, *args, show=False).text() if stats["kernels_run"] != 1 else ""
    assert stats["kernels_run"] == 1, why
    return result, stats


# ---- elementwise chains

UNARY = [
    torch.relu,
    torch.tanh,
    torch.sigmoid,
    torch.abs,
    torch.neg,
    torch.square,
    torch.sin,
    torch.cos,
    torch.erf,
    torch.floor,
    torch.exp2,
    F.silu,
    F.gelu,
    F.hardswish,
    lambda x: F.gelu(x, approximate="tanh"),
    lambda x: x.clamp(-2, 2),
    lambda x: F.leaky_relu(x, 0.1),
    lambda x: x * 0.5,
    lambda x: 1.5 - x,
    lambda x: x**2,
    lambda x: torch.where(x > 0, x, -0.5),
    lambda x: torch.sqrt(x.abs() + 1e-3),
    lambda x: x.masked_fill(x > 1, 0.25),
    lambda x: (x.double() * 0.25).float(),
]
BINARY = [
    torch.add,
    torch.sub,
    torch.mul,
    torch.maximum,
    torch.minimum,
    lambda x, y: x / (y.abs() + 1),
    lambda x, y: torch.where(x < y, x, y * 0.5),
    lambda x, y: torch.lerp(x, y, 0.25),
    lambda x, y: torch.addcmul(x, x, y, value=0.1),
    lambda x, y: torch.add(x, y, alpha=0.3),
    lambda x, y: torch.atan2(x, y.abs() + 1),
]


def layouts(rng, shape):
    """Inputs that broadcast to `shape`, one of each kind of geometry: (tensor, view of it)."""
    n = len(shape)
    last = shape[-1]
    contiguous = torch.randn(shape)
    dims = list(range(n))
    rng.shuffle(dims)
    permuted = torch.randn([shape[d] for d in dims])
    back = [dims.index(d) for d in range(n)]
    sliced = torch.randn([s * 2 + 1 for s in shape])
    return [
        (contiguous, lambda t: t),
        (permuted, lambda t: t.permute(back)),
        (sliced, lambda t: t[tuple(slice(1, None, 2) for _ in shape)]),
        (torch.randn(last), lambda t: t),
        (torch.randn([*shape[:-1], 1]), lambda t: t.expand(shape)),
        (torch.randn(()), lambda t: t),
        (torch.randn(math.prod(shape) + 3), lambda t: t[3:].view(shape)),
    ]


def random_chain(seed):
    """(function, its tensors): 3 to 80 operations over 1 to 5 inputs of one broadcast shape."""
    rng = random.Random(seed)
    shape = [rng.choice([1, 2, 3, 7, 16, 33, 65, 129]) for _ in range(rng.randint(1, 4))]
    while math.prod(shape) > 200_000:
        shape[rng.randrange(len(shape))] = 3
    kinds = layouts(rng, shape)
    chosen = [kinds[rng.randrange(3)], *rng.sample(kinds, rng.randint(0, 4))]
    steps = []
    for _ in range(rng.randint(3, 80)):
        binary = rng.random() < 0.5
        op = rng.choice(BINARY if binary else UNARY)
        steps.append((op, binary, rng.random()))

    def f(*tensors):
        live = [view(t) for t, (_, view) in zip(tensors, chosen, strict=True)]
        x = live[0]
        for op, binary, which in steps:
            x = op(x, live[int(which * len(live))]) if binary else op(x)
            # The growth of products is kept in range: infinities would hide wrong values.
            x = x * 0.125 if which > 0.9 else x
            if which < 0.1:
                live.append(x)
        return x

    return f, [t for t, _ in chosen], shape


@pytest.mark.parametrize("seed", SEEDS)
def test_a_chain_of_elementwise_operations_is_one_kernel(seed):
    torch.manual_seed(seed)
    f, tensors, shape = random_chain(seed)
    args = ready(*tensors)
    result, stats = assert_one_kernel(f, *args)
    with torch_opaque.unfused():
        assert torch.equal(f(*args).cpu().view(torch.int32), result.view(torch.int32))
    assert stats["bytes_written"] == math.prod(shape) * 4
    # A broadcast input is read as often as its values are: at most once per result element.
    used = [view for _, view in zip(tensors, tensors, strict=True)]
    assert stats["bytes_read"] <= sum(t.numel() * 4 for t in used)
