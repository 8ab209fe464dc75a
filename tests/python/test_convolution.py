"""Convolutions and pooling, against the CPU: values, gradients, layouts, and that no CPU kernel is called."""

import copy
import itertools
import random

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch_opaque

D = "opaque"
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-11, torch.bfloat16: 3e-2, torch.float16: 4e-3}


def formatted(x, last):
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.contiguous(memory_format=formats[x.dim()]) if last and x.dim() in formats else x


def results(device, fn, tensors, last):
    """fn(*tensors), the gradients of `tensors`, and the strides of the first result."""
    inputs = [None if t is None else t.detach().clone().to(device) for t in tensors]
    inputs[0] = formatted(inputs[0], last)
    for t in inputs:
        if t is not None:
            t.requires_grad_(True)
    out = fn(*inputs)
    out, *others = out if isinstance(out, tuple) else (out,)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    out.backward(grad.to(out.dtype).to(device))
    found = [out.detach(), *others, *(t.grad for t in inputs if t is not None)]
    return [f.cpu() for f in found], out.stride()


def check(fn, *tensors, last=False, native=True):
    dtype = tensors[0].dtype
    expect, strides = results("cpu", fn, tensors, last)
    torch_opaque.reset_stats()
    found, found_strides = results(D, fn, tensors, last)
    assert not native or torch_opaque.stats()["extern_calls"] == 0
    assert strides == found_strides
    for e, f in zip(expect, found, strict=True):
        assert e.dtype == f.dtype
        if e.dtype == torch.int64:
            assert torch.equal(e, f)
            continue
        scale = max(1.0, float(e.abs().max())) if e.numel() else 1.0
        torch.testing.assert_close(f, e, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * scale)


# ---- convolutions


def convolution(rng, dtype):
    dims, groups = rng.choice([1, 2, 2, 2, 3]), rng.choice([1, 1, 2, 3])
    inner, outer = rng.randint(1, 5), rng.randint(1, 5)
    transposed = rng.random() < 0.4
    if rng.random() < 0.3:
        groups, inner, outer = 9, 1, rng.choice([1, 1, 2])
    sizes, taps = (
        [rng.randint(5, 20) for _ in range(dims)],
        [rng.randint(1, 3) for _ in range(dims)],
    )
    stride, dilation = (
        [rng.randint(1, 3) for _ in range(dims)],
        [rng.randint(1, 2) for _ in range(dims)],
    )
    options = {
        "stride": stride,
        "padding": [rng.randint(0, 3) for _ in range(dims)],
        "dilation": dilation,
        "groups": groups,
    }
    if transposed:
        options["output_padding"] = [
            rng.randint(0, max(s, d) - 1) for s, d in zip(stride, dilation, strict=True)
        ]
    x = torch.randn(rng.randint(1, 3), inner * groups, *sizes).to(dtype)
    shape = (inner * groups, outer) if transposed else (outer * groups, inner)
    w, b = torch.randn(*shape, *taps).to(dtype), torch.randn(outer * groups).to(dtype)
    name = f"conv_transpose{dims}d" if transposed else f"conv{dims}d"
    return name, options, x, w, b if rng.random() < 0.5 else None


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(60))
def test_random_convolutions(seed):
    torch.manual_seed(seed)
    rng = random.Random(seed)
    dtype = rng.choice([torch.float32, torch.float32, torch.float64])
    name, options, x, w, b = convolution(rng, dtype)
    last = rng.random() < 0.4
    try:
        getattr(F, name)(x, w, b, **options)
    except RuntimeError:
        with pytest.raises(RuntimeError):
            getattr(F, name)(x.to(D), w.to(D), None if b is None else b.to(D), **options)
        return
    check(lambda x, w, b: getattr(F, name)(x, w, b, **options), x, w, b, last=last)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("groups", [1, 8])
def test_halves(dtype, groups):
    torch.manual_seed(0)
    x, w = torch.randn(2, 8, 9, 9).to(dtype), torch.randn(8, 8 // groups, 3, 3).to(dtype)
    check(lambda x, w: F.conv2d(x, w, padding=1, groups=groups), x, w)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    "case",
    [
        (64, 64, 3, 1, 1),
        (3, 32, 7, 2, 1),
        (24, 24, 3, 2, 24),
        (96, 96, 5, 1, 96),
        (16, 40, 1, 2, 1),
    ],
)
def test_fused_is_unfused(case, last):
    inner, outer, taps, stride, groups = case
    torch.manual_seed(0)
    x = formatted(torch.randn(2, inner, 23, 37, device=D), last)
    w, b = torch.randn(outer, inner // groups, taps, taps, device=D), torch.randn(outer, device=D)

    def layer():
        return torch.relu(F.conv2d(x, w, b, stride, taps // 2, groups=groups)).cpu()

    fused = layer()
    with torch_opaque.unfused():
        assert torch.equal(layer(), fused)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert torch.equal(layer(), fused)
    finally:
        torch.set_num_threads(threads)


def test_one_order_of_additions():
    """k runs over channels and then the taps; channels-last, over the taps and then channels."""
    torch.manual_seed(0)
    x, w = torch.randn(1, 5, 6, 7), torch.randn(4, 5, 3, 3)
    for last in (False, True):
        dims = (0, 2, 3, 1) if last else (0, 1, 2, 3)
        kernel = w.permute(dims).reshape(4, -1).numpy()
        found = F.conv2d(formatted(x.to(D), last), w.to(D)).cpu()
        for place in [(0, 0), (2, 3), (3, 4)]:
            window = (
                x[:, :, place[0] : place[0] + 3, place[1] : place[1] + 3].permute(dims).reshape(-1)
            )
            for o in range(4):
                total = torch.zeros((), dtype=torch.float32)
                for a, b in zip(kernel[o].tolist(), window.tolist(), strict=True):
                    total = (torch.tensor(a, dtype=torch.float64) * b + total.double()).float()
                assert found[0, o, place[0], place[1]] == total


@pytest.mark.usefixtures("planned")
def test_kernels():
    x, w, b = (
        torch.randn(1, 16, 20, 20, device=D),
        torch.randn(32, 16, 3, 3, device=D),
        torch.randn(32, device=D),
    )
    norm = nn.BatchNorm2d(32).eval().to(D)
    deep = torch.randn(16, 1, 3, 3, device=D)

    def kernels(fn):
        with torch.no_grad():
            fn().cpu()
            torch_opaque.reset_stats()
            fn().cpu()
            return torch_opaque.stats()["kernels_run"]

    assert kernels(lambda: torch.relu(norm(F.conv2d(x, w, b)))) == 1
    assert (
        kernels(lambda: torch.relu(norm(F.conv2d(x, w, b, padding=1)))) == 1
    )  # and the padded operand
    assert kernels(lambda: torch.relu(F.conv2d(x, deep, padding=1, groups=16))) == 1
    assert kernels(lambda: F.max_pool2d(torch.relu(x), 3, 2, 1)) <= 2
    assert kernels(lambda: F.avg_pool2d(x, 2)) == 1


# ---- pooling


def pooling(rng, dtype):
    dims, lead = rng.choice([1, 2, 2, 3]), rng.choice([(2, 3), (4,), (1, 2)])
    sizes, kernel = (
        [rng.randint(3, 20) for _ in range(dims)],
        [rng.randint(1, 4) for _ in range(dims)],
    )
    stride, padding = (
        [rng.randint(1, 4) for _ in range(dims)],
        [rng.randint(0, k // 2) for k in kernel],
    )
    ceil, counts = rng.random() < 0.4, rng.random() < 0.5
    x = torch.randn(*lead, *sizes).to(dtype)
    x = torch.relu(x) if rng.random() < 0.2 else x
    output = [rng.choice([d for d in range(1, s + 1) if s % d == 0]) for s in sizes]
    if rng.random() < 0.6:
        output = [rng.randint(1, s + 2) for s in sizes]
    dilation = [rng.choice([1, 1, 2, 3]) for _ in sizes]
    kinds = {
        "max": lambda x: getattr(F, f"max_pool{dims}d")(
            x, kernel, stride, padding, dilation, ceil, return_indices=True
        ),
        "avg": lambda x: getattr(F, f"avg_pool{dims}d")(x, kernel, stride, padding, ceil, counts),
        "adaptive_max": lambda x: getattr(F, f"adaptive_max_pool{dims}d")(
            x, output, return_indices=True
        ),
        "adaptive_avg": lambda x: getattr(F, f"adaptive_avg_pool{dims}d")(x, output),
    }
    return kinds[rng.choice(list(kinds))], x, dims == 2 and len(lead) == 2 and rng.random() < 0.5


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(160))
def test_random_pooling(seed):
    torch.manual_seed(seed)
    rng = random.Random(seed)
    fn, x, last = pooling(rng, rng.choice([torch.float32, torch.float64, torch.bfloat16]))
    try:
        fn(formatted(x, last))
    except NotImplementedError:  # bfloat16 volumes
        x = x.float()
    except RuntimeError:
        with pytest.raises(RuntimeError):
            fn(formatted(x.to(D), last))
        return
    check(fn, x, last=last)


@pytest.mark.parametrize(
    "kernel, divides", [(2, False), (3, False), ((2, 2, 2), False), (9, True)], ids=str
)
def test_places_in_small_windows_need_no_division(kernel, divides):
    """Which 64-bit integers do lane by lane."""
    dims = 3 if isinstance(kernel, tuple) else 2
    pool = getattr(F, f"max_pool{dims}d")
    x = torch.randn(2, 3, *[18] * dims)
    text = torch_opaque.graph(
        lambda: pool(x.to(D), kernel, return_indices=True), stage="recorded"
    ).text
    assert ("div_floor" in text) == divides and "remainder" not in text
    assert torch.equal(
        pool(x.to(D), kernel, return_indices=True)[1].cpu(), pool(x, kernel, return_indices=True)[1]
    )


def test_maxima_of_nothing_but_infinity():
    x = torch.full((1, 2, 5, 6), -torch.inf)
    x[0, 1, 3, 3] = 1
    check(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), x)
    y, _ = F.max_pool2d(torch.full((1, 1, 4, 4), torch.nan, device=D), 2, return_indices=True)
    assert y.isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unfold(dtype):
    x = (torch.randn(2, 3, 7, 8) * 3).to(dtype)
    expect = F.unfold(x.float(), (3, 2), 2, (1, 0), (2, 1)).to(dtype)
    assert torch.equal(F.unfold(x.to(D), (3, 2), 2, (1, 0), (2, 1)).cpu(), expect)


@pytest.mark.parametrize("seed", range(40))
def test_fold(seed):
    torch.manual_seed(seed)
    rng = random.Random(seed)
    pair = lambda low, high: (rng.randint(low, high), rng.randint(low, high))  # noqa: E731
    kernel, dilation, padding, stride = pair(1, 3), pair(1, 2), pair(0, 2), pair(1, 3)
    size = tuple(rng.randint(d * (k - 1) + 1, 12) for k, d in zip(kernel, dilation, strict=True))
    numbers = (kernel, dilation, padding, stride)
    dtype = rng.choice([torch.float32, torch.float64, torch.bfloat16, torch.float16])
    x = torch.randn(*rng.choice([(2,), ()]), 3, *size)
    columns = torch.randn_like(F.unfold(x, *numbers)).to(dtype)
    check(lambda c: F.fold(c, size, *numbers), columns)
    check(lambda x: F.unfold(x, *numbers), x.to(dtype if x.dim() == 4 else torch.float32))


def test_batches_of_nothing():
    for name, numbers in {
        "adaptive_avg_pool2d": [(2, 3)],
        "adaptive_avg_pool3d": [(2, 4, 1)],
        "adaptive_max_pool2d": [(4, 2)],
        "unfold": [(2, 3), 1, 1, 2],
    }.items():
        shape = (0, 3, 4, 4, 4) if name.endswith("3d") else (0, 3, 4, 4)
        check(lambda x: getattr(F, name)(x, *numbers), torch.randn(shape))
    check(lambda x: F.fold(x, (4, 5), (2, 3)), torch.randn(0, 12, 9))


def test_averages_of_volumes_smaller_than_the_kernel():
    x = torch.randn(1, 2, 4, 5, 1)
    for tensor in (x, x.to(D)):
        with pytest.raises(RuntimeError, match="smaller than kernel size"):
            F.avg_pool3d(tensor, 3, padding=(1, 0, 0), ceil_mode=True)


def test_gradients_of_maxima_of_one_element():
    """PyTorch's kernels are asked whether they take a call, with indices made up for it: 1 would be outside here."""
    for dims in (1, 2, 3):
        x = torch.randn(2, 3, *[1] * dims)
        check(lambda x: getattr(F, f"max_pool{dims}d")(x, 3, 1, 1), x)
        check(lambda x: getattr(F, f"adaptive_max_pool{dims}d")(x, 2), x)


def test_paddings_around_paddings():
    x = torch.randn(3, 4)
    for pads in [
        ((0, 1), (0, 1)),
        ((2, 0, 1, 0), (1, 1, 0, 2)),
        ((-1, 3), (2, -4)),
        ((1, 1, 1, 1), (-2, 0, -2, 0), (0, 2)),
    ]:
        expect, found = x, x.to(D)
        for i, pad in enumerate(pads):
            expect, found = F.pad(expect, pad, value=i), F.pad(found, pad, value=i)
        assert torch.equal((found * 2).cpu(), expect * 2)


@pytest.mark.parametrize("pad", [(1, -1), (-1, 1), (-2, 2, 1, -1)])
def test_moved_results_of_rows(pad):
    """A row and what is made of it in one kernel: the row is reduced whole."""
    x = torch.randn(5, 40) + 1
    for fn in (
        lambda x: x - x.sum(-1, keepdim=True),
        lambda x: x.softmax(-1),
        lambda x: x / x.amax(0, keepdim=True),
    ):
        torch.testing.assert_close(F.pad(fn(x.to(D)), pad).cpu(), F.pad(fn(x), pad))


def test_dilated_maxima_have_gradients():
    check(
        lambda x: F.max_pool2d(x, 3, 2, 1, 2, return_indices=True),
        torch.randn(2, 3, 11, 12),
    )


# ---- networks


class Residual(nn.Module):
    def __init__(self, inner, outer, stride, groups=1):
        super().__init__()
        self.first = nn.Conv2d(inner, outer, 3, stride, 1, bias=False, groups=groups)
        self.norm = nn.BatchNorm2d(outer)
        self.second = nn.Conv2d(outer, outer, 3, 1, 1, groups=outer if groups > 1 else 1)
        self.shortcut = nn.Conv2d(inner, outer, 1, stride, bias=False)

    def forward(self, x):
        return F.relu6(self.second(F.relu(self.norm(self.first(x)))) + self.shortcut(x))


class Pyramid(nn.Module):
    """Down and up again, as a U-Net."""

    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, padding=1)
        self.deep = nn.Conv2d(8, 16, 3, padding=1)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.out = nn.Conv2d(16, 10, 1)

    def forward(self, x):
        wide = F.relu(self.down(x))
        deep = F.relu(self.deep(F.max_pool2d(wide, 2)))
        return self.out(torch.cat([wide, self.up(deep)], 1)).mean((2, 3))


NETWORKS = {
    "residual": lambda: nn.Sequential(
        nn.Conv2d(3, 16, 7, 2, 3, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        Residual(16, 16, 1),
        Residual(16, 32, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    ),
    "depthwise": lambda: nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1),
        Residual(16, 16, 1, 16),
        Residual(16, 32, 2, 16),
        nn.AvgPool2d(3, 2, 1),
        nn.Flatten(),
        nn.LazyLinear(10),
    ),
    "pyramid": Pyramid,
}


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name, last):
    """Two steps of training in float64, read in the middle."""
    torch.manual_seed(0)
    model, x = NETWORKS[name]().double(), torch.randn(3, 3, 32, 32, dtype=torch.float64)
    model(x)
    torch_opaque.reset_stats()
    outputs = []
    for device in ("cpu", D):
        net, data = copy.deepcopy(model).to(device), formatted(x.to(device), last)
        if last:
            net = net.to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        seen = []
        for _ in range(2):
            optimizer.zero_grad()
            out = net(data)
            loss = (out - 1).square().mean()
            seen.append(loss.item())
            loss.backward()
            optimizer.step()
        outputs.append(
            [
                torch.tensor(seen),
                net(data).detach().cpu(),
                *(p.detach().cpu() for p in net.parameters()),
            ]
        )
    assert torch_opaque.stats()["extern_calls"] == 0
    for e, f in zip(*outputs, strict=True):
        torch.testing.assert_close(f, e, rtol=1e-7, atol=1e-9)


# ---- depthwise windows: some rows at once, their edges, and rows that slide


def chained(x, w, stride, padding, dilation):
    """Depthwise: one chain of fused multiply-adds per element over the taps in row-major order (docs/ir.md). The product of two f32 is exact
    in f64, and rounding the sum twice gives what rounding it once does, but for one case in 2^29."""
    dims = x.dim() - 2
    x = F.pad(x.double(), [p for d in reversed(range(dims)) for p in (padding[d], padding[d])])
    sizes = [
        (x.shape[2 + d] - dilation[d] * (w.shape[2 + d] - 1) - 1) // stride[d] + 1
        for d in range(dims)
    ]
    acc = torch.zeros(x.shape[0], w.shape[0], *sizes)
    for tap in itertools.product(*map(range, w.shape[2:])):
        at = [
            slice(t * dilation[d], t * dilation[d] + stride[d] * (sizes[d] - 1) + 1, stride[d])
            for d, t in enumerate(tap)
        ]
        weight = w[(slice(None), 0, *tap)].double().reshape(1, -1, *[1] * dims)
        acc = (acc.double() + x[(..., *at)] * weight).float()
    return acc


def depthwise(x, w, stride, padding, dilation):
    conv = (F.conv1d, F.conv2d, F.conv3d)[x.dim() - 3]
    return conv(x, w, None, stride, padding, dilation, x.shape[1])


SIZES = [
    (1, 1),
    (1, 17),
    (2, 16),
    (3, 15),
    (4, 33),
    (5, 16),
    (7, 7),
    (8, 31),
    (9, 64),
    (12, 20),
    (17, 70),
    (23, 5),
]
WAYS = [  # taps, stride, padding, dilation
    ((3, 3), (1, 1), (1, 1), (1, 1)),
    ((3, 3), (1, 1), (0, 0), (1, 1)),
    ((3, 3), (1, 1), (2, 0), (1, 1)),
    ((3, 3), (1, 1), (3, 3), (1, 1)),
    ((3, 3), (2, 2), (1, 1), (1, 1)),
    ((3, 3), (1, 2), (1, 1), (1, 1)),
    ((3, 3), (2, 1), (1, 1), (1, 1)),
    ((3, 3), (1, 1), (2, 2), (2, 2)),
    ((3, 3), (2, 2), (2, 1), (2, 1)),
    ((3, 3), (3, 3), (1, 1), (1, 1)),
    ((1, 3), (1, 1), (0, 1), (1, 1)),
    ((3, 1), (1, 1), (1, 0), (1, 1)),
    ((5, 3), (1, 1), (2, 1), (1, 1)),
    ((5, 5), (1, 1), (2, 2), (1, 1)),
]


def fits(size, way):
    taps, _, padding, dilation = way
    return all(
        s + 2 * p > d * (t - 1) for s, t, p, d in zip(size, taps, padding, dilation, strict=True)
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("odd", [False, True])
def test_depthwise_rows(way, odd):
    taps, *rest = way
    for size in [size for size in SIZES if fits(size, way)]:
        x, w = torch.randn(2, 9, *size), torch.randn(9, 1, *taps)
        if odd:
            x[0, :, 0], x[1, :, :, -1], x[0, 3, -1, 0] = float("inf"), -0.0, float("nan")
            w[1], w[2, 0, 0, 0], w[3] = 0.0, float("inf"), -0.0
        found = depthwise(x.to(D), w.to(D), *rest).cpu()
        expect = chained(x, w, *rest)
        assert torch.equal(found.isnan(), expect.isnan()), size
        assert torch.equal(
            found.nan_to_num().view(torch.int32), expect.nan_to_num().view(torch.int32)
        ), size
        found = torch.relu(
            depthwise(x.to(D), w.to(D), *rest) + 1
        ).cpu()  # after it, on the same rows
        torch.testing.assert_close(found, torch.relu(expect + 1), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("size", [(40,), (3, 9, 18), (4, 4, 4)])
@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise_rows_of_other_ranks(size, stride):
    dims = len(size)
    rest = ((stride,) * dims, (1,) * dims, (1,) * dims)
    x, w = torch.randn(2, 9, *size), torch.randn(9, 1, *(3,) * dims)
    torch.testing.assert_close(
        depthwise(x.to(D), w.to(D), *rest).cpu(), chained(x, w, *rest), rtol=0, atol=0
    )


@pytest.mark.parametrize("channels", [1, 3])
def test_filters_of_few_channels(channels):
    """Of an image: the matrix engine would pack each window for a single row."""
    for taps in (3, 5):
        x, w = torch.randn(1, channels, 30, 41), torch.randn(channels, 1, taps, taps)
        rest = ((1, 1), (taps // 2,) * 2, (1, 1))
        found = depthwise(x.to(D), w.to(D), *rest)
        assert "chain" in str(torch_opaque.graph(found, stage="kernels"))
        assert [k["kind"] for k in torch_opaque.explain(found).kernels] == ["matmul"]
        torch.testing.assert_close(found.cpu(), chained(x, w, *rest), rtol=0, atol=0)
    x, w = torch.randn(2, 8, 19, 21), torch.randn(1, 8, 3, 3)
    found = F.conv2d(x.to(D), w.to(D), None, 1, 1).cpu()
    torch.testing.assert_close(found, F.conv2d(x, w, None, 1, 1), rtol=1e-5, atol=1e-5)


GRADIENTS = [  # taps, stride, padding, dilation, multiplier; what each reaches beyond the image, and more taps than registers
    ((3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((3, 3), (2, 2), (1, 1), (1, 1), 2),
    ((5, 5), (1, 1), (2, 2), (1, 1), 1),
    ((7, 7), (1, 1), (3, 3), (1, 1), 1),
    ((3, 5), (1, 2), (0, 4), (2, 1), 1),
]


@pytest.mark.parametrize("way", GRADIENTS)
@pytest.mark.parametrize("last", [False, True])
def test_gradients_of_depthwise_weights(way, last):
    """One kernel makes all taps, a sum for each in registers; fused and unfused give the same bits, also of what is not finite."""
    taps, stride, padding, dilation, more = way
    for batch, channels, height, width in ((2, 70, 14, 19), (3, 5, 25, 40)):
        x = formatted(torch.randn(batch, channels, height, width), last)
        x[0, 1, 2, 3], x[0, 2, 0, 0] = float("inf"), float("nan")
        w = torch.randn(channels * more, 1, *taps)
        g = torch.randn_like(F.conv2d(x, w, None, stride, padding, dilation, channels))

        def grad(g, x, w, rest=(stride, padding, dilation), channels=channels):
            rest = (None, *map(list, rest), False, [0, 0], channels, [False, True, False])
            return torch.ops.aten.convolution_backward(g, x, w, *rest)[1]

        on_device = [formatted(t.to(D), last and t is not w) for t in (g, x, w)]
        fused = grad(*on_device)
        trees = str(torch_opaque.graph(fused, stage="kernels"))
        assert "unroll" in trees and trees.count("chain") == 2
        assert len(torch_opaque.explain(fused).kernels) <= 3
        with torch_opaque.unfused():
            unfused = grad(*on_device).cpu()
        assert torch.equal(fused.cpu().view(torch.int32), unfused.view(torch.int32))
        expect = grad(g.double(), x.double(), w.double())
        assert torch.equal(unfused.isnan(), expect.isnan())
        torch.testing.assert_close(unfused.double(), expect, rtol=1e-3, atol=1e-3, equal_nan=True)


@pytest.mark.parametrize("threads", [1, 2])
def test_depthwise_rows_read_what_they_should(threads):
    """Neighbours of a part of a tensor are not read, views of it are followed, and threads take whole blocks of rows."""
    torch.set_num_threads(threads)
    base = torch.full((2, 12, 40, 50), float("nan"))
    base[:, 1:10, 4:30, 5:38] = torch.randn(2, 9, 26, 33)
    w, rest = torch.randn(9, 1, 3, 3), ((1, 1), (1, 1), (1, 1))
    for cut in (
        lambda t: t[:, 1:10, 4:30, 5:38],
        lambda t: t[:, 1:10, 4:30, 5:38].transpose(2, 3),
        lambda t: t[:, 1:10, 4:30, 5:38].flip(3),
    ):
        expect = chained(cut(base), w, *rest)
        torch.testing.assert_close(
            depthwise(cut(base.to(D)), w.to(D), *rest).cpu(), expect, rtol=0, atol=0
        )
    torch.set_num_threads(2)


@pytest.mark.parametrize("size", SIZES)
def test_pooling_rows(size):
    x = torch.randn(2, 5, *size)
    for pool in (
        lambda x: F.max_pool2d(x, 3, 1, 1),
        lambda x: F.max_pool2d(x, 3, 2, 1),
        lambda x: F.max_pool2d(x, (3, 5), 1, (1, 2)),
    ):
        assert torch.equal(pool(x.to(D)).cpu(), pool(x))
    ones = torch.ones(2, 5, *size)
    for pool in (
        lambda x: F.avg_pool2d(x, 3, 1, 1),
        lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
    ):
        torch.testing.assert_close(pool(x.to(D)).cpu(), pool(x))
        torch.testing.assert_close(pool(ones.to(D)).cpu(), pool(ones), rtol=1e-6, atol=0)


def test_overlapping_windows_leave_the_tile_its_epilogue():
    conv, norm = nn.Conv2d(8, 16, 3, padding=1).eval().to(D), nn.BatchNorm2d(16).eval().to(D)
    x = torch.randn(1, 8, 32, 32, device=D)
    torch.opaque.synchronize()
    with torch.no_grad():
        explanation = torch_opaque.explain(F.max_pool2d(torch.relu(norm(conv(x))), 3, 2, 1))
        assert [k["kind"] for k in explanation.kernels] == ["matmul", "column"]
        assert explanation.kernels[1]["name"].startswith("amax")
        alone = torch_opaque.explain(F.max_pool2d(torch.relu(x), 3, 2, 1))
        assert len(alone.kernels) == 1  # nothing to ride on: it is not stored


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_a_bias_gradient_is_added_as_it_lies(last):
    """Where channels come last rows are added, and not each channel's elements picked out of them."""
    layout = torch.channels_last if last else torch.contiguous_format
    grad, x, weight = (
        torch.randn(2, 6, 5, 4),
        torch.randn(2, 3, 5, 4),
        torch.randn(6, 3, 3, 3),
    )
    grad, x = grad.to(memory_format=layout), x.to(memory_format=layout)

    def gradient(grad, x, weight):
        return torch.ops.aten.convolution_backward(
            grad, x, weight, [6], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [False, False, True]
        )[2]

    there = [t.to("opaque") for t in (grad, x, weight)]
    text = torch_opaque.graph(lambda: gradient(*there), stage="fused").text
    assert ("tree=column" in text) == last
    torch.testing.assert_close(
        gradient(*there).cpu(), gradient(grad, x, weight), rtol=1e-5, atol=1e-5
    )
