"""Scans: cumsum, cumprod, cummax, cummin, logcumsumexp and what PyTorch makes of them, against the CPU and without one call to it."""

import contextlib
import math

import pytest
import torch
import torch_opaque

D = "opaque"
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
SUMS = [torch.cumsum, torch.cumprod]
EXTREMES = [torch.cummax, torch.cummin]
SCANS = [*SUMS, *EXTREMES, torch.logcumsumexp]
# Rows in lanes with and without a rest, few rows, tiles with and without a rest, either axis, extents of 0 and 1.
SHAPES = [
    (1,),
    (5,),
    (1000,),
    (3, 17),
    (8, 16),
    (20, 33),
    (33, 20, 7),
    (2, 50, 40),
    (70, 64),
    (9, 1),
    (1, 9),
]
SHAPES += [(9, 5, 1), (0, 4), (4, 0), (2, 3, 4, 5)]


def numbers(shape, dtype, special=False):
    if dtype == torch.bool:
        return torch.rand(shape) > 0.5
    if not dtype.is_floating_point:
        return torch.randint(0 if dtype == torch.uint8 else -3, 4, shape).to(dtype)
    x = torch.randn(shape).to(dtype)
    if special and x.numel() > 40:
        places = torch.randperm(x.numel())[:6]
        x.view(-1)[places] = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0]).to(dtype)
    return x


def results(value):
    return value if isinstance(value, (tuple, list)) else (value,)


def check(f, *tensors, exact=True):
    want = results(f(*tensors))
    with torch_opaque.strict():
        got = results(f(*(t.to(D) for t in tensors)))
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype and a.stride() == b.stride()
        if exact:
            torch.testing.assert_close(a.cpu(), b, rtol=0, atol=0, equal_nan=True)
        else:
            torch.testing.assert_close(a.cpu(), b, equal_nan=True)


def bits_of_cpu(scan, dtype):
    """Sums and products are held as the CPU's kernels hold them; log and exp are our own."""
    return scan is not torch.logcumsumexp


@pytest.mark.sampled(3)
@pytest.mark.parametrize("special", [False, True], ids=["numbers", "specials"])
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
@pytest.mark.parametrize("scan", SCANS, ids=lambda f: f.__name__)
def test_every_axis(scan, dtype, special):
    if scan is torch.logcumsumexp and not dtype.is_floating_point:
        pytest.skip("of floats")
    if special and not dtype.is_floating_point:
        pytest.skip("integers have none")
    for shape in SHAPES:
        x = numbers(shape, dtype, special)
        for axis in range(-len(shape), len(shape)):
            check(lambda t, axis=axis: scan(t, axis), x, exact=bits_of_cpu(scan, dtype))


@pytest.mark.parametrize("scan", SCANS, ids=lambda f: f.__name__)
def test_layouts(scan):
    x = torch.randn(30, 44)
    for view in (
        lambda t: t.t(),
        lambda t: t[::2, 3:20],
        lambda t: t[:, None].expand(30, 3, 44),
        lambda t: t.flip(0),
        lambda t: t.view(-1)[7:967].view(24, 40),
        lambda t: t[3, 4],
    ):
        for axis in (0, -1):
            check(lambda t, v=view, a=axis: scan(v(t), a), x, exact=bits_of_cpu(scan, x.dtype))


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.int32, torch.int64, torch.uint8], ids=str
)
@pytest.mark.parametrize("scan", SUMS, ids=lambda f: f.__name__)
def test_named_dtypes(scan, dtype):
    for of in (torch.float32, torch.int16, torch.bool):
        x = numbers((12, 30), of)
        if not dtype.is_floating_point and of.is_floating_point:
            x = x.abs() * 2
        check(lambda t: scan(t, 1, dtype=dtype), x)


@pytest.mark.parametrize("scan", SUMS, ids=lambda f: f.__name__)
def test_out_and_in_place(scan):
    for of, into in [
        (torch.float32, torch.float32),
        (torch.float16, torch.float32),
        (torch.int32, torch.float32),
        (torch.bool, torch.int64),
    ]:
        x = numbers((40, 30), of)
        check(lambda t, d=into: scan(t, 0, out=torch.empty(0, dtype=d, device=t.device)), x)
        check(
            lambda t: scan(t, 1, out=torch.ones(60, 80, dtype=into, device=t.device)[::2, ::2].t()),
            x,
        )
    for dtype in (torch.float32, torch.bfloat16, torch.int32, torch.int64):
        x = numbers((40, 30), dtype)
        name = scan.__name__ + "_"
        check(lambda t: getattr(t.clone(), name)(1), x)

        def part(t):
            whole = t.clone()
            getattr(whole[3:, ::2], name)(0)
            return whole

        check(part, x)


@pytest.mark.parametrize("scan", EXTREMES, ids=lambda f: f.__name__)
def test_ties_take_the_later_index(scan):
    nan = math.nan
    rows = [
        [1, 1, 0, 1, 2, 2],
        [0.0, -0.0, 0.0, -0.0, 0, 0],
        [nan, 1, nan, 2, 3, nan],
        [3, 2, nan, 9, 9, 1],
    ]
    rows += [[math.inf, math.inf, -math.inf, -math.inf, nan, 0], [-math.inf] * 6]
    x = torch.tensor(rows)
    for axis in (0, 1):
        check(lambda t, a=axis: scan(t, a), x)
        values = scan(x.to(D), axis).values.cpu()
        assert torch.equal(
            values.signbit(), scan(x, axis).values.signbit() | values.isnan() & values.signbit()
        )
    check(
        lambda t: tuple(
            scan(
                t, 0, out=(torch.empty(0, device=t.device), torch.empty(0, device=t.device).long())
            )
        ),
        x,
    )


@pytest.mark.parametrize("scan", SCANS, ids=lambda f: f.__name__)
def test_no_dimensions(scan):
    check(lambda t: scan(t, 0), torch.tensor(-2.5))
    check(lambda t: scan(t, -1), torch.tensor(-0.0))


def messages(call, kind):
    result = []
    for device in ("cpu", D):
        with pytest.raises(kind) as error:
            call(device)
        result.append(str(error.value))
    return result


@pytest.mark.parametrize("scan", SCANS, ids=lambda f: f.__name__)
def test_errors_are_the_cpus(scan):
    for shape, axis in [((3, 4), 2), ((3, 4), -3), ((), 1), ((), -2)]:
        cpu, ours = messages(lambda d: scan(torch.ones(shape, device=d), axis), IndexError)  # noqa: B023
        assert cpu == ours


@pytest.mark.parametrize("scan", SUMS, ids=lambda f: f.__name__)
def test_errors_of_dtypes_are_the_cpus(scan):
    def into(d):
        scan(torch.ones(3, device=d), 0, dtype=torch.float64, out=torch.empty(3, device=d))

    def in_place(d):
        getattr(torch.ones(3, device=d), scan.__name__ + "_")(0, dtype=torch.float64)

    cpu, ours = messages(into, RuntimeError)
    assert cpu == ours
    messages(in_place, RuntimeError)
    cpu, ours = messages(
        lambda d: scan(torch.ones(3, device=d), 0, dtype=torch.bool), NotImplementedError
    )
    assert cpu == ours


# ---- what PyTorch makes of them

COMPOSED = {
    "diff": lambda x: torch.diff(x, dim=1),
    "trapezoid": lambda x: torch.trapezoid(x, dim=0),
    "cumulative_trapezoid": lambda x: torch.cumulative_trapezoid(x, dx=0.5, dim=1),
    "reverse": lambda x: x.flip(1).cumsum(1).flip(1),
    "cumsum 0": lambda x: x.cumsum(0),
    "cumsum 1": lambda x: x.cumsum(1) * x,
    "cumprod": lambda x: (x * 0.3 + 1).cumprod(1),
    "cumprod with zeros": lambda x: (x * (x > -1)).cumprod(0),
    "cummax": lambda x: x.cummax(1).values,
    "cummin": lambda x: x.cummin(0).values,
    "logcumsumexp": lambda x: x.logcumsumexp(1),
}
# Transcendental functions of f64, of which its gradient is made, are PyTorch's CPU kernels'.
EXTERN = {("logcumsumexp", torch.float64)}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", COMPOSED)
def test_gradients(name, dtype):
    """Halves op by op, as the CPU rounds them."""
    x = (torch.randn(19, 35) * 0.8).to(dtype)
    gradients = []
    halves = torch_opaque.unfused() if dtype.itemsize == 2 else contextlib.nullcontext()
    strict = contextlib.nullcontext() if (name, dtype) in EXTERN else torch_opaque.strict()
    with halves, strict:
        for device in ("cpu", D):
            leaf = x.to(device, copy=True).requires_grad_()
            out = COMPOSED[name](leaf)
            out.backward(torch.ones_like(out) * 0.5)
            gradients.append((out.detach().cpu(), leaf.grad.cpu()))
    for want, got in zip(*gradients, strict=True):
        torch.testing.assert_close(got, want)


# ---- kernels


def kernels(f, *tensors):
    moved = [t.to(D) for t in tensors]
    torch.opaque.synchronize()
    result = torch_opaque.explain(f, *moved, show=False)
    return [kernel["kind"] for kernel in result.kernels]


FUSED = {
    "before and behind": lambda x: torch.cumsum(x * x, 1) / 7,
    "outer axis": lambda x: torch.exp(torch.cumsum(x + 1, 0)) * x,
    "backwards": lambda x: torch.cumsum((x * 2).flip(1), 1).flip(1) + x,
    "values and indices": lambda x: torch.cummax(x, 1),
    "two scans": lambda x: torch.cumsum(torch.cumprod(x, 1), 1),
    "side by side": lambda x: torch.cumsum(x, 0) + torch.cumprod(x, 0),
    "gathered rows": lambda x: torch.cumsum(x[torch.arange(9, device=x.device).flip(0)], 1),
    "a row more": lambda x: torch.cumsum(x, 1) + x[:1],
    "permuted": lambda x: torch.cumsum(x.t(), 0) * 2,
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("shape", [(40, 100), (9, 3), (33, 16)], ids=str)
@pytest.mark.parametrize("name", FUSED)
def test_one_kernel_gives_the_bits_of_many(name, shape):
    f, x = FUSED[name], torch.randn(shape)
    assert kernels(f, x) == ["scan"]
    fused = results(f(x.to(D)))
    with torch_opaque.unfused():
        apart = [t.cpu() for t in results(f(x.to(D)))]
    for a, b, c in zip(fused, apart, results(f(x)), strict=True):
        assert torch.equal(a.cpu(), b)
        torch.testing.assert_close(a.cpu(), c)


def test_one_kernel_of_one_row():
    x = torch.randn(3, 5000)
    f = FUSED["before and behind"]
    assert kernels(f, x) == ["scan"]
    assert torch.equal(f(x.to(D)).cpu(), f(x))
    x = torch.randn(100_003)
    check(lambda t: (t * 2).cumsum(0) - t, x)


def test_what_is_read_elsewhere_is_stored():
    x = torch.randn(20, 40)
    assert kernels(lambda t: t.cumsum(1)[:, 20:] * 2, x) == ["scan", "map"]
    assert kernels(lambda t: t.cumsum(1).sum(1), x) == ["scan", "row"]
    assert kernels(lambda t: t.cumsum(1).cumsum(0), x) == ["scan", "scan"]
    check(lambda t: t.cumsum(1)[:, 20:] * 2, x)
    check(lambda t: t.cumsum(1).cumsum(0), x)
    check(lambda t: t.cumsum(1) + t.cumsum(1).flip(1), x)


def test_threads_divide_rows():
    x = torch.randn(300, 257)
    want = [t.cumsum(a) for t in (x, x[:3]) for a in (0, 1)]
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            got = [t.to(D).cumsum(a).cpu() for t in (x, x[:3]) for a in (0, 1)]
            assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    finally:
        torch.set_num_threads(threads)
