"""Operators that move elements, against the CPU: bits, strides, dtypes, gradients, and that no CPU kernel is called."""

import itertools
import random

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch_opaque
from moving import (
    DTYPES,
    SEEDS,
    D,
    compare,
    compare_gradients,
    layout,
    natively,
    on,
    same,
    shape_of,
    strides_of,
    values,
)
from raising import both_raise

# ---- geometry


def flip(rng, x):
    dims = rng.sample(range(-x.dim(), 0), rng.randint(0, x.dim())) if x.dim() else []
    return lambda x: x.flip(dims)


def roll(rng, x):
    if x.dim() == 0 or rng.random() < 0.2:
        shift = rng.randint(-9, 9)
        return lambda x: x.roll(shift) if x.numel() else x.clone()
    dims = [rng.randrange(-x.dim(), x.dim()) for _ in range(rng.randint(1, 3))]
    shifts = [rng.randint(-9, 9) for _ in dims]
    return lambda x: x.roll(shifts, dims) if x.numel() else x.clone()


def triangle(rng, x):
    name, k = rng.choice(["tril", "triu"]), rng.randint(-4, 4)
    return lambda x: getattr(x, name)(k) if x.dim() >= 2 else x.clone()


def rotate(rng, x):
    k = rng.randint(-4, 5)
    return lambda x: x.rot90(k, (0, -1)).contiguous() if x.dim() >= 2 else x.clone()


def repeat(rng, x):
    n = rng.randint(1, 3)
    return lambda x: x.repeat_interleave(n, -1) if x.dim() else x.clone()


def difference(rng, x):
    return lambda x: x.diff(dim=-1) if x.dim() and x.dtype != torch.bool else x.clone()


GEOMETRY = [flip, roll, triangle, rotate, repeat]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("make", GEOMETRY, ids=lambda f: f.__name__)
def test_geometry(make, seed):
    rng = random.Random(seed)
    for dtype in (torch.float32, rng.choice(DTYPES)):
        x = layout(rng, values(rng, shape_of(rng), dtype))
        compare(make(rng, x), x)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("make", [*GEOMETRY, difference], ids=lambda f: f.__name__)
def test_gradients_of_geometry(make, seed):
    rng = random.Random(seed)
    x = torch.randn(shape_of(rng, 2, 4, empty=False))
    compare_gradients(make(rng, x), x)


def test_flip_moves_complex_numbers():
    x = torch.randn(3, 4, dtype=torch.complex64)
    same(natively(torch.flip, x.to(D), (0, 1)), x.flip((0, 1)))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.flip(5),
        lambda x: x.flip((0, 0)),
        lambda x: x.roll((1, 2), 0),
        lambda x: x.roll(1, 7),
        lambda x: x[0, 0].tril(),
        lambda x: F.pixel_shuffle(x, 2),
        lambda x: F.pixel_unshuffle(x, 2),
        lambda x: F.channel_shuffle(x, 2),
        lambda x: F.pad(x, (5, 5), mode="reflect"),
        lambda x: F.group_norm(x, 2),
        lambda x: x.scatter(0, torch.zeros(1, 5, 1, dtype=torch.long, device=x.device), 1.0),
        lambda x: F.glu(x, 0),
    ],
)
def test_errors_are_pytorchs(f):
    x = torch.randn(3, 3, 5)
    want, got = both_raise(lambda device: f(x.to(device)))
    assert isinstance(want, (RuntimeError, IndexError))
    assert str(got).splitlines()[0] == str(want).splitlines()[0]


def test_in_place_and_out():
    x = torch.randn(4, 5)
    y = x.to(D)
    y.tril_(1)
    same(y, x.clone().tril_(1))
    out = torch.empty(0, device=D)
    same(torch.triu(x.to(D), -1, out=out), x.triu(-1))
    z = x.to(D)
    z[1:].copy_(z[:-1].flip(0))
    want = x.clone()
    want[1:].copy_(x[:-1].flip(0))
    same(z, want)


# ---- shuffles


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize("r", [1, 2, 3])
def test_shuffles(dtype, r):
    rng = random.Random(r)
    for lead in ((2,), (), (2, 3)):
        x = values(rng, (*lead, 4 * r * r, 3, 5), dtype)
        compare(lambda x: F.pixel_shuffle(x, r), layout(rng, x) if len(lead) < 2 else x)
        compare(lambda x: F.pixel_unshuffle(x, r), values(rng, (*lead, 2, 3 * r, 2 * r), dtype))
    if dtype.is_floating_point:
        x = values(rng, (2, 6 * r, 3, 2), dtype)
        compare(lambda x: F.channel_shuffle(x, r), layout(rng, x))
    compare_gradients(lambda x: F.pixel_shuffle(x, r), torch.randn(2, r * r, 3, 4))
    compare_gradients(lambda x: F.channel_shuffle(x, r), torch.randn(2, r * 2, 3, 4))


# ---- padding


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular", "constant"])
def test_padding(mode, seed):
    rng = random.Random(seed)
    spatial = rng.randint(1, 3)
    shape = [rng.randint(1, 3) for _ in range(rng.randint(1 + (mode == "circular"), 2))]
    shape += [rng.randint(1, 7) for _ in range(spatial)]
    least = -1 if mode == "constant" else 0
    padding = []
    for size in reversed(shape[-spatial:]):
        most = {"reflect": size - 1, "circular": size}.get(mode, 4)
        padding += [rng.randint(max(least, 1 - size) if least else 0, most) for _ in range(2)]
        if size + padding[-1] + padding[-2] < 1:
            padding[-2:] = [0, 0]
    f = lambda x: F.pad(x, padding, mode=mode)  # noqa: E731
    for dtype in (torch.float32, rng.choice([torch.float64, torch.float16, torch.bfloat16])):
        compare(f, layout(rng, values(rng, shape, dtype)))
    compare_gradients(f, layout(rng, torch.randn(shape)))


def test_padding_that_cuts():
    x = torch.randn(2, 3, 6, 7)
    for padding in ((-1, 2, 3, -2), (-1, -1, -2, 0), (2, -3, 0, 0)):
        compare(lambda x: F.pad(x, padding, mode="replicate"), x)
        compare(lambda x: F.pad(x, padding, mode="reflect"), x)
        compare_gradients(lambda x: F.pad(x, padding, mode="replicate"), x)
        compare_gradients(lambda x: F.pad(x, padding, mode="reflect"), x)
    for padding in ((-7, 3, 0, 0), (4, -7, 1, 1), (0, 0, 2, -6)):  # only copies of an end are left
        compare(lambda x: F.pad(x, padding, mode="replicate"), x)
        compare_gradients(lambda x: F.pad(x, padding, mode="replicate"), x)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "constant"])
def test_padding_of_many_elements(mode):
    x = torch.randn(3, 4, 50, 60)
    for padding in ((3, 0, 2, 5), (1, 2), (0, 0, 4, 4), (-2, 3, -1, 4)):
        padded = (*padding, 0, 0)[:4]
        compare(lambda x: F.pad(x, padded, mode=mode), x)
        compare(lambda x: F.pad(x, padded, mode=mode), layout(random.Random(3), x))
        compare_gradients(lambda x: F.pad(x, padded, mode=mode), x, atol=1e-4)


def test_padding_of_nothing():
    for shape, padding in (
        ((0, 3), (1, 2)),
        ((0,), (2, 1)),
        ((), ()),
        ((3, 4), (-4, 2)),
        ((2, 3), (0, -3)),
    ):
        compare(lambda x: F.pad(x, padding, value=2.5), torch.randn(shape))


# What is read through a padding that lies over a reshape: offsets below 0, whose carries go into other dims.
ABOVE_PADDINGS = {
    "a view": lambda x: F.pad(x.expand(8, 2).reshape(-1), (1, -1)).view(8, 2).exp(),
    "a sum": lambda x: F.pad(x.expand(8, 2).reshape(-1), (1, -1)).view(8, 2).sum(1),
    "a product": lambda x: F.pad(x.expand(8, 2).reshape(-1), (1, -1)).view(8, 2) @ x.new_ones(2, 3),
    "a window": lambda x: F.pad(x.expand(8, 2).reshape(-1), (1, -1)).unfold(0, 4, 3).exp(),
    "a flip": lambda x: F.pad(x.expand(8, 2).reshape(-1), (3, -3)).view(4, 4).flip(1).exp(),
    "repeats": lambda x: F.pad(x.reshape(-1).repeat_interleave(2), (1, -1)).view(-1, 2).exp(),
    "an index": lambda x: (
        F.pad(torch.arange(8, device=x.device).view(8, 1).expand(8, 2).reshape(-1), (1, -1)).view(
            8, 2
        )
        * 2
    ),
    "another padding": lambda x: F.pad(
        F.pad(x.expand(8, 2).reshape(-1), (3, -1)).view(6, 3), (1, -2, -1, 2), value=1.0
    ).exp(),
    "whole rows": lambda x: F.pad(x.expand(8, 2).reshape(-1), (2, -2)).view(8, 2).sum(),
    "rows before and behind": lambda x: (
        F.pad(x.expand(8, 2).reshape(-1), (4, 4)).view(3, 4, 2).exp()
    ),
    "one element": lambda x: F.pad(x[:1, :1].reshape(1), (1, 2)).view(2, 2).exp(),
}


@pytest.mark.parametrize("name", ABOVE_PADDINGS)
@pytest.mark.parametrize("shape", [(8, 1), (1, 2), (8, 2)])
def test_views_above_paddings(name, shape):
    f, x = ABOVE_PADDINGS[name], torch.arange(1.0, 1 + shape[0] * shape[1]).reshape(shape) / 8
    for mode in (torch_opaque.strict, torch_opaque.unfused):
        with mode():
            torch.testing.assert_close(f(x.to(D)).cpu(), f(x), rtol=1e-6, atol=0)


def test_rolls_of_many_elements():
    x = torch.randn(30, 40, 50)
    for shifts, dims in ((3, 2), ((1, -2), (1, 2)), ((5, 60), (0, 2)), (7, 0), (-1001, None)):
        compare(lambda x: x.roll(shifts, dims), x)


# ---- upsampling


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("spatial", [1, 2, 3])
@pytest.mark.parametrize("factor", [1, 2, 3, 5])
def test_upsampling_by_whole_factors(mode, spatial, factor):
    rng = random.Random(factor)
    x = layout(rng, torch.randn(2, 3, *[rng.randint(1, 5) for _ in range(spatial)]))
    size = [s * factor for s in x.shape[2:]]
    compare(lambda x: F.interpolate(x, size=size, mode=mode), x)
    compare(lambda x: F.interpolate(x, scale_factor=factor, mode=mode), x)
    compare_gradients(lambda x: F.interpolate(x, scale_factor=factor, mode=mode), x)


def test_upsampling_by_other_factors():
    x = torch.randn(1, 2, 5, 7)
    for size in ((7, 9), (10, 9), (3, 3)):
        compare(lambda x: F.interpolate(x, size=size), x)


# ---- group norm


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(2, 6), (2, 6, 5), (3, 12, 4, 5), (1, 6, 2, 3, 4)], ids=str)
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm(shape, groups, affine):
    rng = random.Random(groups)
    parameters = [torch.randn(shape[1]) for _ in range(2)] if affine else []
    f = lambda x, *p: F.group_norm(x, groups, *p)  # noqa: E731
    for x in (torch.randn(shape), layout(rng, torch.randn(shape) * 3 + 2)):
        got, want = natively(f, on(x), *[p.to(D) for p in parameters]), f(x, *parameters)
        assert strides_of(got) == strides_of(want)
    if len(shape) > 2 or groups == 1:  # a group of a single element has no slope but noise
        compare_gradients(f, x, *parameters, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_group_norm_of_other_dtypes(dtype):
    x, w, b = torch.randn(2, 8, 6, 5).to(dtype), torch.randn(8).to(dtype), torch.randn(8).to(dtype)
    got = natively(F.group_norm, x.to(D), 4, w.to(D), b.to(D))
    want = F.group_norm(x.double(), 4, w.double(), b.double())
    torch.testing.assert_close(
        got.cpu().double(), want, rtol=torch.finfo(dtype).eps * 4, atol=torch.finfo(dtype).eps * 8
    )
    if dtype != torch.float64:
        got = natively(F.group_norm, x.to(D), 4, w.float().to(D), b.float().to(D))
        same(got, got.cpu())
        assert got.dtype == F.group_norm(x, 4, w.float(), b.float()).dtype


def test_group_norm_trains():
    torch.manual_seed(0)
    here = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(4, 8), nn.SiLU(), nn.InstanceNorm2d(8, affine=True)
    )
    there = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(4, 8), nn.SiLU(), nn.InstanceNorm2d(8, affine=True)
    )
    there.load_state_dict(here.state_dict())
    there.to(D)
    x = torch.randn(2, 3, 9, 9)
    here(x).square().mean().backward()
    there(x.to(D)).square().mean().backward()
    for a, b in zip(here.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-3, atol=1e-5)


# ---- gates and others


def test_gates():
    for dim in (0, 1, -1):
        compare_gradients(lambda x: F.glu(x, dim), torch.randn(4, 6, 8))  # noqa: B023
    compare_gradients(F.prelu, torch.randn(3, 4, 5), torch.randn(4))
    compare_gradients(F.prelu, torch.randn(3, 4), torch.randn(1))
    compare_gradients(lambda x: torch.logit(x), torch.rand(20) * 0.9 + 0.05, rtol=1e-4, atol=1e-4)
    compare_gradients(lambda x: torch.logit(x, 0.2), torch.rand(20), rtol=1e-4, atol=1e-4)
    edges = torch.tensor([0.0, 1.0, -0.5, 1.5, 0.5, float("nan")])
    torch.testing.assert_close(
        natively(torch.logit, edges.to(D)).cpu(), torch.logit(edges), equal_nan=True
    )
    slope = torch.ops.aten.logit_backward
    for eps in (None, 0.25):
        got = natively(slope, torch.ones(6, device=D), edges.to(D), eps).cpu()
        torch.testing.assert_close(got, slope(torch.ones(6), edges, eps), equal_nan=True)


def test_cat_of_one_and_of_empty_parts():
    x, none = torch.randn(2, 3), torch.empty(0)
    for f in (
        lambda x, n: torch.cat([x]),
        lambda x, n: torch.cat([n, x, n], 1),
        lambda x, n: torch.cat([x, x[:0], x.int()], 0),
        lambda x, n: torch.cat([x, x.double(), x.half()], -1),
        lambda x, n: torch.stack([x]),
    ):
        compare(f, x, none)


def test_cat_parts_that_are_skipped_have_a_say_in_the_dtype():
    dtypes = (torch.uint8, torch.bool, torch.int64, torch.float16, torch.float32, torch.complex64)
    joins = (
        lambda a, b: torch.cat([a, b]),
        lambda a, b: torch.cat([b, a], 1),
        lambda a, b: torch.concat([a, a, b]),
        lambda a, b: torch.concatenate([b, a]),
        lambda a, b: torch.cat([a, b], out=torch.empty(0, dtype=torch.complex64, device=a.device)),
        lambda a, b: torch.cat([a, b], out=torch.empty(0, dtype=b.dtype, device=a.device)),
        lambda a, b: torch.hstack([a, b]),
        lambda a, b: torch.vstack([a[:, None], b[:, :0]]),
        lambda a, b: torch.stack([a, b[0, :0]]),
        lambda a, b: torch.dstack([a[None, None], b[None, :0, None]]),
        lambda a, b: torch.column_stack([b, b]),
        lambda a, b: torch.cat([b, b.to(memory_format=torch.contiguous_format), a]),
    )
    for one, two in itertools.product(dtypes, dtypes):
        a, b = torch.empty(0).to(one), torch.tensor([[0.5], [1], [2], [200]]).to(two)
        for i, join in enumerate(joins):
            try:
                want = join(a, b)
            except (RuntimeError, IndexError, TypeError) as error:
                with pytest.raises(type(error)):
                    join(a.to(D), b.to(D))
                continue
            got = join(a.to(D), b.to(D))
            assert got.dtype == want.dtype and torch.equal(got.cpu(), want), (i, one, two)
    image, none = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.empty(0)
    assert torch.cat([image.to(D), none.to(D)]).stride() == torch.cat([image, none]).stride()
