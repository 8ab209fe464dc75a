"""Integers divided by zero: PyTorch's error, at the line if a number says so, else where the value is needed."""

import pytest
import torch
import torch_opaque

OPS = {
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "floor_divide": torch.floor_divide,
    "div floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "div trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
}
DTYPES = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
ops = pytest.mark.parametrize("op", OPS.values(), ids=OPS)


def outcome(f):
    try:
        result = f()
        return result.dtype, result.cpu().tolist()
    except (RuntimeError, NotImplementedError) as error:
        return type(error), "ZeroDivisionError" in str(error)


@ops
@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool])
def test_as_on_cpu(op, dtype):
    x = torch.tensor([1, 7, 0, 1, 1]).to(dtype)
    y = torch.tensor([1, 2, 3, 0, 1]).to(dtype)
    calls = [
        lambda to: op(to(x), to(y)),
        lambda to: op(to(x[:3]), to(y[:3])),
        lambda to: op(to(x), 0),
        lambda to: op(to(x), False),
        lambda to: op(to(x), 0.0),
        lambda to: op(to(x[:0]), to(y[3:4])),
        lambda to: op(to(x[:0]), 0),
        lambda to: op(to(x), torch.zeros((), dtype=dtype)),
        lambda to: op(to(x), to(torch.zeros((), dtype=dtype))),
        lambda to: op(to(x), to(y.float())),
        lambda to: op(to(x[:, None]), to(y[None])),
    ]
    for i, call in enumerate(calls):
        cpu, device = (
            outcome(lambda: call(lambda t: t)),
            outcome(lambda: call(lambda t: t.opaque())),
        )
        assert str(cpu) == str(device), i


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_the_smallest_by_minus_one(name, dtype):
    """Quotients wrap. PyTorch's CPU kernels end the process for 32 and 64 bits."""
    least = torch.iinfo(dtype).min
    x, y = (torch.full((37,), n, dtype=dtype).opaque() for n in (least, -1))
    wanted = [0 if name in ("%", "fmod", "remainder") else least] * 37
    assert OPS[name](x, y).tolist() == OPS[name](x, -1).tolist() == wanted


def euclid(a, b, wrap):
    """As PyTorch's kernels have it, where |the least| is the least."""
    a, b = wrap(abs(a)), wrap(abs(b))
    while a:
        a, b = wrap(abs(b) % abs(a) * (1 if b >= 0 else -1)), a
    return b


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_common_divisors_and_multiples_of_the_smallest(dtype):
    """PyTorch's CPU kernels end the process for some of these."""
    bits = torch.iinfo(dtype).bits
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def wrap(n):
        return (n - least) % 2**bits + least

    numbers = [least, least + 1, -12, -7, -1, 0, 1, 6, 7, 8, most]
    pairs = [(a, b) for a in numbers for b in numbers]
    divisors = [euclid(a, b, wrap) for a, b in pairs]
    quotients = [
        abs(a) // abs(g) * (1 if (a < 0) == (g < 0) else -1) if g else 0
        for (a, _), g in zip(pairs, divisors)
    ]
    product = wrap if bits >= 32 else int  # C multiplies the others as int
    multiples = [wrap(abs(product(product(q) * b))) for q, (_, b) in zip(quotients, pairs)]
    x, y = (torch.tensor(column, dtype=dtype, device="opaque") for column in zip(*pairs))
    with torch_opaque.strict():
        assert torch.gcd(x, y).tolist() == divisors
        assert torch.lcm(x, y).tolist() == multiples


@ops
def test_a_number_is_refused_at_the_line(op):
    x = torch.arange(4).opaque()
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        op(x, 0)
    assert (x + 1).tolist() == [1, 2, 3, 4]


def test_the_value_says_what_and_where():
    x, y = torch.arange(100).opaque(), (torch.arange(100) - 50).opaque()
    q = x // y  # here
    r = x + y
    line = test_the_value_says_what_and_where.__code__.co_firstlineno + 2
    with pytest.raises(RuntimeError, match="ZeroDivisionError") as error:
        q.cpu()
    assert f"test_division.py:{line}" in str(error.value) and "div_floor" in str(error.value)
    assert r.tolist() == [2 * i - 50 for i in range(100)]
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        (q * 2).cpu()


def test_in_place_and_out():
    for name in ("floor_divide_", "remainder_", "fmod_"):
        x = torch.arange(8).opaque()
        getattr(x, name)(torch.zeros(8, dtype=torch.int64).opaque())
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            x.cpu()
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            getattr(torch.arange(8).opaque(), name)(0)
    out = torch.ones(8, dtype=torch.int64).opaque()
    torch.floor_divide(
        torch.arange(8).opaque(), torch.zeros(8, dtype=torch.int64).opaque(), out=out
    )
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        out.cpu()


@pytest.mark.parametrize("mode", ["fused", "unfused", "eager"])
def test_wherever_it_is_used(mode):
    """Eager divides all elements before anything is chosen of them."""
    x, y = torch.arange(1000), torch.arange(1000) - 500
    uses = [
        lambda q: torch.where((y == 0).opaque(), 0, q),
        lambda q: q[:10] + 1,
        lambda q: q.view(10, 100).sum(1),
        lambda q: q.view(10, 100).t().contiguous(),
        lambda q: q[torch.tensor([1, 2, 3]).opaque()],
        lambda q: q.float().exp().sum(),
        lambda q: q.new_ones(1000).masked_fill_((y == 0).opaque(), 5) * q,
    ]
    context = {"unfused": torch_opaque.unfused, "eager": torch_opaque.eager}.get(mode)
    for use in uses:
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            if context:
                with context():
                    use(x.opaque() // y.opaque()).cpu()
            else:
                use(x.opaque() // y.opaque()).cpu()


def test_floats_are_as_before():
    x, y = torch.tensor([1.0, 0.0, -1.0]), torch.zeros(3)
    for op in OPS.values():
        torch.testing.assert_close(op(x.opaque(), y.opaque()).cpu(), op(x, y), equal_nan=True)
