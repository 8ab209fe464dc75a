"""Random numbers: moments, distribution, the bits of each dtype, and how the generator advances."""

import math

import pytest
import torch
from torch import nn

D = "opaque"
N = 200_000
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
LEAST_BIT = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}


def moments(x):
    x = x.double()
    mean, var = x.mean(), x.var()
    return mean.item(), var.item(), (((x - mean) ** 4).mean() / var**2).item()


def distance(x, cumulative):
    """Kolmogorov's and Smirnov's, scaled: above 1.95 in one of a thousand samples."""
    x = x.double().sort().values
    steps = torch.arange(len(x) + 1, dtype=torch.float64) / len(x)
    f = cumulative(x)
    return max((f - steps[:-1]).max(), (steps[1:] - f).max()).item() * math.sqrt(len(x))


def normal_cdf(x):
    return 0.5 * (1 + torch.erf(x / math.sqrt(2)))


@pytest.mark.parametrize("dtype", FLOATS)
def test_normal(dtype):
    x = torch.randn(N, dtype=dtype, device=D).cpu()
    assert x.dtype == dtype
    mean, var, kurtosis = moments(x)
    assert abs(mean) < 0.01 and abs(var - 1) < 0.02 and abs(kurtosis - 3) < 0.1
    if dtype.itemsize > 2:
        assert distance(x, normal_cdf) < 1.95


@pytest.mark.parametrize("dtype", COMPLEX)
def test_normal_of_complex(dtype):
    z = torch.view_as_real(torch.randn(N, dtype=dtype, device=D).cpu())
    for half in (z[:, 0], z[:, 1]):
        mean, var, kurtosis = moments(half)
        assert abs(mean) < 0.01 and abs(var - 0.5) < 0.01 and abs(kurtosis - 3) < 0.1
        assert distance(half * math.sqrt(2), normal_cdf) < 1.95
    assert abs((z[:, 0] * z[:, 1]).mean().item()) < 0.01
    shifted = torch.view_as_real(torch.empty(N, dtype=dtype, device=D).normal_(2, 3).cpu())
    assert abs(shifted.mean().item() - 2) < 0.05  # both halves have the mean, as on the CPU
    assert abs(shifted[:, 1].var().item() - 4.5) < 0.1
    like = torch.view_as_real(torch.randn_like(torch.empty(N, dtype=dtype, device=D)).cpu())
    assert abs(like.var().item() - 0.5) < 0.01


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform(dtype):
    x = torch.rand(N, dtype=dtype, device=D).cpu()
    assert x.dtype == dtype and x.min() >= 0 and x.max() < 1
    mean, var, _ = moments(x)
    assert abs(mean - 0.5) < 0.005 and abs(var - 1 / 12) < 0.002
    if dtype.itemsize > 2:
        assert distance(x, lambda v: v) < 1.95
    scaled = x.double() * 2.0 ** LEAST_BIT[dtype]
    assert torch.equal(scaled, scaled.round())  # a multiple of the least bit
    assert abs((scaled % 2).mean().item() - 0.5) < 0.01  # which is random too
    y = torch.empty(N, dtype=dtype, device=D).uniform_(-3, 5).cpu().double()
    assert y.min() >= -3 and y.max() <= 5 and abs(y.mean().item() - 1) < 0.03


def test_f64_has_more_than_f32():
    for x in (
        torch.randn(N, dtype=torch.float64, device=D),
        torch.rand(N, dtype=torch.float64, device=D),
    ):
        x = x.cpu()
        assert (x.float().double() != x).double().mean() > 0.99
        assert len(x.unique()) == N


def test_normal_overloads():
    mean, std = torch.full((N,), 3.0), torch.full((N,), 0.5)
    for x in (
        torch.normal(mean.to(D), std.to(D)),
        torch.normal(mean.to(D), 0.5),
        torch.normal(3.0, std.to(D)),
        torch.normal(3.0, 0.5, (N,), device=D),
        torch.empty(N, device=D).normal_(3, 0.5),
    ):
        m, v, _ = moments(x.cpu())
        assert x.device.type == D and abs(m - 3) < 0.01 and abs(v - 0.25) < 0.01
    with pytest.raises(RuntimeError, match="std >= 0"):
        torch.empty(3, device=D).normal_(0, -1)
    with pytest.raises(NotImplementedError, match="not implemented for 'Long'"):
        torch.empty(3, device=D, dtype=torch.long).normal_()


def cdf_tests():
    yield "exponential_", (2.0,), lambda x: 1 - torch.exp(-2 * x)
    yield "cauchy_", (1.0, 2.0), lambda x: torch.atan((x - 1) / 2) / math.pi + 0.5
    yield "log_normal_", (0.5, 0.8), lambda x: normal_cdf((x.log() - 0.5) / 0.8)
    yield "uniform_", (-1.0, 2.0), lambda x: (x + 1) / 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [c[0] for c in cdf_tests()])
def test_distributions(name, dtype):
    arguments, cumulative = next((a, c) for n, a, c in cdf_tests() if n == name)
    x = getattr(torch.empty(N, dtype=dtype, device=D), name)(*arguments).cpu()
    assert distance(x, cumulative) < 1.95


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_integers_in_range(dtype):
    x = torch.empty(N, dtype=dtype, device=D).random_(3, 10).cpu().double()
    counts = torch.bincount(x.long(), minlength=10)
    assert counts[:3].sum() == 0 and len(counts) == 10
    assert ((counts[3:] - N / 7).abs() < 6 * math.sqrt(N / 7)).all()
    high = {torch.uint8: 255, torch.int8: 127}.get(dtype)
    if high:
        full = torch.empty(N, dtype=dtype, device=D).random_().cpu()
        assert full.min() == 0 and full.max() == high
    y = torch.randint(-5, 5, (N,), device=D, dtype=torch.int64).cpu()
    assert y.min() == -5 and y.max() == 4


def test_discrete():
    assert abs(torch.empty(N, device=D).bernoulli_(0.3).mean().item() - 0.3) < 0.01
    for dtype in (torch.float32, torch.float64):
        p = torch.full((N,), 0.7, device=D, dtype=dtype)
        assert abs(torch.bernoulli(p).double().mean().item() - 0.7) < 0.01
    geometric = torch.empty(N, device=D).geometric_(0.25).cpu()
    assert geometric.min() == 1 and abs(geometric.mean().item() - 4) < 0.1
    drawn = torch.multinomial(torch.tensor([1.0, 0.0, 3.0], device=D), N, replacement=True).cpu()
    counts = torch.bincount(drawn, minlength=3).double() / N
    assert counts[1] == 0 and abs(counts[2].item() - 0.75) < 0.01
    assert sorted(torch.randperm(1000, device=D).tolist()) == list(range(1000))


def test_initialisations():
    w = torch.empty(400, 300, device=D)
    bound = math.sqrt(6 / 700)
    for f, std in (
        (lambda: nn.init.xavier_uniform_(w), bound / math.sqrt(3)),
        (lambda: nn.init.xavier_normal_(w), math.sqrt(2 / 700)),
        (lambda: nn.init.kaiming_uniform_(w, nonlinearity="relu"), math.sqrt(2 / 300)),
        (lambda: nn.init.kaiming_normal_(w, nonlinearity="relu"), math.sqrt(2 / 300)),
        (lambda: nn.init.normal_(w, 0, 0.02), 0.02),
        (lambda: nn.init.trunc_normal_(w, 0, 1, -2, 2), 0.8796),
    ):
        f()
        assert abs(w.cpu().std().item() / std - 1) < 0.02
    q = nn.init.orthogonal_(torch.empty(20, 20, device=D)).cpu()
    torch.testing.assert_close(q @ q.T, torch.eye(20), atol=1e-5, rtol=0)


DRAWS = [
    lambda g: torch.randn(7, device=D, generator=g),
    lambda g: torch.randn(7, device=D, generator=g, dtype=torch.float64),
    lambda g: torch.randn(7, device=D, generator=g, dtype=torch.complex64),
    lambda g: torch.rand(7, device=D, generator=g, dtype=torch.float64),
    lambda g: torch.randint(9, (7,), device=D, generator=g),
    lambda g: torch.empty(7, device=D).exponential_(generator=g),
    lambda g: torch.empty(7, device=D).bernoulli_(0.5, generator=g),
    lambda g: torch.multinomial(torch.ones(9, device=D), 5, generator=g),
]


@pytest.mark.parametrize("draw", range(len(DRAWS)))
def test_same_seed_same_numbers(draw):
    draw = DRAWS[draw]
    a, b = torch.Generator(D).manual_seed(5), torch.Generator(D).manual_seed(5)
    first, second = [draw(a) for _ in range(3)], [draw(b) for _ in range(3)]
    assert all(torch.equal(x.cpu(), y.cpu()) for x, y in zip(first, second))
    assert torch.equal(a.get_state(), b.get_state())
    assert not torch.equal(first[0].cpu(), first[1].cpu())
    c = torch.Generator(D).manual_seed(5)
    c.set_state(a.get_state())
    assert torch.equal(draw(a).cpu(), draw(c).cpu())
