"""What tests of operators that move elements share: inputs in all layouts, and comparing bits and gradients with the CPU."""

import os

import torch
import torch_opaque

D = "opaque"
SEEDS = range(200 if os.environ.get("OPAQUE_TEST_FULL") == "1" else 30)
DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


def bits(x):
    """Numbers that compare as their memory does: NaN is NaN, -0 is not 0."""
    x = x.detach().cpu()
    if not x.is_floating_point():
        return x
    return x.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def strides_of(x):
    return [t for s, t in zip(x.shape, x.stride(), strict=True) if s > 1 and x.numel() > 0]


def same(got, want, strides=True):
    assert got.device.type == D and got.dtype == want.dtype and got.shape == want.shape
    assert not strides or strides_of(got) == strides_of(want)
    assert torch.equal(bits(got), bits(want))


def values(rng, shape, dtype=torch.float32):
    """Random numbers, with NaN, infinities and both zeros among those of a floating dtype."""
    torch.manual_seed(rng.randrange(1 << 30))
    x = torch.randn(shape) * 4
    if dtype.is_floating_point and x.numel():
        flat = x.view(-1)
        for special in (float("nan"), float("inf"), -float("inf"), -0.0):
            flat[rng.randrange(flat.numel())] = special
    return x.to(dtype)


def layout(rng, x):
    """The same elements at other places in memory."""
    kind = rng.randrange(4)
    if kind == 0 or x.dim() == 0:
        return x.contiguous()
    if kind == 1:
        dims = list(range(x.dim()))
        rng.shuffle(dims)
        return x.permute(dims).contiguous().permute([dims.index(d) for d in range(x.dim())])
    if kind == 2 and x.dim() in (4, 5):
        last = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
        return x.contiguous(memory_format=last)
    wide = torch.zeros([s * 2 + 1 for s in x.shape], dtype=x.dtype)
    window = wide[tuple(slice(1, None, 2) for _ in x.shape)]
    window.copy_(x)
    return window


def natively(f, *args):
    torch_opaque.reset_stats()
    result = f(*args)
    assert torch_opaque.fallback_counts() == {}
    return result


def on(x):
    """On the device, with the same strides."""
    moved = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=D)
    return moved.copy_(x)


def compare(f, *args, strides=True):
    same(
        natively(f, *[on(a) if isinstance(a, torch.Tensor) else a for a in args]), f(*args), strides
    )


def compare_gradients(f, *args, rtol=1e-5, atol=1e-5):
    """Of the floating arguments; the weights of the results are random."""
    here = [a.detach().clone().requires_grad_(a.is_floating_point()) for a in args]
    there = [on(a.detach()).requires_grad_(a.is_floating_point()) for a in args]
    want = f(*here)
    weight = torch.randn(want.shape, dtype=want.dtype)
    want.backward(weight)
    torch_opaque.reset_stats()
    got = f(*there)
    got.backward(weight.to(D))
    assert torch_opaque.fallback_counts() == {}
    torch.testing.assert_close(got.detach().cpu(), want.detach(), rtol=rtol, atol=atol)
    for a, b in zip(here, there, strict=True):
        if a.requires_grad:
            torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=rtol, atol=atol)


def shape_of(rng, least=0, most=4, empty=True):
    sizes = [1, 2, 3, 5, 8, 17] + [0] * empty
    return [rng.choice(sizes) for _ in range(rng.randint(least, most))]
