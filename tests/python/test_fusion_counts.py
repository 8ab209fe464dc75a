"""How many kernels run and how many bytes they move, for the patterns fusion promises to take whole."""

import itertools
import math
import os
import random
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
import torch_opaque

pytestmark = pytest.mark.usefixtures("planned")

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
    assert stats["bytes_read"] <= sum(t.numel() * 4 for t in tensors)


def test_a_chain_cut_by_views_runs_over_what_is_left():
    """Views inside the chain: what a slice leaves out is not computed."""
    x, y = ready(torch.randn(64, 48), torch.randn(48, 64))
    for f in (
        lambda x, y: (x * 2)[:, ::2] + 1,
        lambda x, y: (x.exp().t() + y) * 2,
        lambda x, y: y * 2 + x.t() * 2,
        lambda x, y: ((x + 1).view(8, 8, 48) * 2).permute(1, 0, 2).reshape(64, 48) - x,
        lambda x, y: (x.t() * 3)[4:40, 1:60:3].relu() + y[4:40, 1:60:3].sigmoid(),
        lambda x, y: (x * 2).flatten() + (y * 3).t().flatten(),
        lambda x, y: (x[:1] * 2).expand(64, 48) + x,
        lambda x, y: (x * 2).unsqueeze(1).squeeze(1).view(-1) + 1,
    ):
        result, _ = assert_one_kernel(f, x, y)
        assert torch.allclose(result, f(x.cpu(), y.cpu()), rtol=1e-5, atol=1e-5)


def test_values_that_stay_alive_are_further_outputs_of_the_kernel():
    (x,) = ready(torch.randn(31, 45))

    torch_opaque.reset_stats()
    y = x * 2 + 1
    z = torch.tanh(y)
    w = z * y - x
    torch.opaque.synchronize()
    stats = torch_opaque.stats()
    assert stats["kernels_run"] == 1
    assert stats["bytes_read"] == x.numel() * 4 and stats["bytes_written"] == 3 * x.numel() * 4
    assert torch.equal((z * y - x).cpu(), w.cpu())


def test_what_is_summed_by_other_rows_is_stored_as_they_come():
    """Batch and sequence changed places before a bias's gradient was summed: values are computed once, where they were twice, of elements apart."""
    x, w = ready(torch.randn(6, 10, 40), torch.randn(40))

    def layer():
        y = torch.tanh(x * w)
        return y, y.transpose(0, 1).reshape(60, 40).sum(0)

    y, total = layer()
    kernels = str(torch_opaque.graph([y, total], stage="kernels"))
    assert kernels.count("kernel @") == 1
    assert kernels.count("tanh f32") == 1
    fused = [y.cpu(), total.cpu()]
    with torch_opaque.unfused():
        assert all(map(torch.equal, fused, [t.cpu() for t in layer()]))


@pytest.mark.parametrize("dims", [(0,), (1,), (0, 1), (2,), (0, 2), (0, 1, 2)], ids=str)
def test_a_reduction_takes_the_chain_before_it(dims):
    (x,) = ready(torch.randn(9, 33, 65))
    result, stats = assert_one_kernel(lambda x: (torch.relu(x) * 2 + x).sum(dims), x)
    assert stats["bytes_read"] == x.numel() * 4 and stats["bytes_written"] == result.numel() * 4
    want = (torch.relu(x.cpu()) * 2 + x.cpu()).double().sum(dims).float()
    assert torch.allclose(result, want, rtol=1e-5, atol=1e-3)


# ---- rows


def softmax_parts(x, maximum):
    e = torch.exp(x - maximum)
    return e / e.sum(-1, keepdim=True)


def layer_norm(x, w, b, mean, variance, scale):
    return (x - mean) * scale(variance + 1e-5) * w + b


ROWS = {
    "softmax": lambda x, w, b: torch.softmax(x, -1),
    "softmax max": lambda x, w, b: softmax_parts(x, x.max(dim=-1, keepdim=True).values),
    "softmax amax": lambda x, w, b: softmax_parts(x, x.amax(-1, keepdim=True)),
    "softmax unsqueeze": lambda x, w, b: softmax_parts(x, x.amax(-1).unsqueeze(-1)),
    "softmax max unsqueeze": lambda x, w, b: softmax_parts(x, x.max(-1)[0].unsqueeze(-1)),
    "softmax scaled": lambda x, w, b: torch.softmax(x * 0.125 + b, -1),
    "softmax pow": lambda x, w, b: torch.exp(x) / torch.exp(x).sum(-1, keepdim=True),
    "log_softmax": lambda x, w, b: torch.log_softmax(x, -1),
    "log_softmax parts": lambda x, w, b: x - torch.logsumexp(x, -1, keepdim=True),
    "log_softmax stable": lambda x, w, b: (
        (x - x.amax(-1, keepdim=True))
        - (x - x.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True).log()
    ),
    "layer_norm": lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
    "layer_norm var": lambda x, w, b: layer_norm(
        x, w, b, x.mean(-1, keepdim=True), x.var(-1, keepdim=True, correction=0), torch.rsqrt
    ),
    "layer_norm var_mean": lambda x, w, b: layer_norm(
        x, w, b, *reversed(torch.var_mean(x, -1, keepdim=True, correction=0)), torch.rsqrt
    ),
    "layer_norm squares": lambda x, w, b: layer_norm(
        x,
        w,
        b,
        x.mean(-1, keepdim=True),
        (x - x.mean(-1, keepdim=True)).pow(2).mean(-1, keepdim=True),
        lambda v: 1 / torch.sqrt(v),
    ),
    "layer_norm mean of squares": lambda x, w, b: layer_norm(
        x,
        w,
        b,
        x.mean(-1, keepdim=True),
        x.square().mean(-1, keepdim=True) - x.mean(-1, keepdim=True) ** 2,
        torch.rsqrt,
    ),
    "layer_norm std": lambda x, w, b: (
        (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True, unbiased=False) + 1e-5) * w + b
    ),
    "layer_norm unsqueeze": lambda x, w, b: (
        (x - x.mean(-1).unsqueeze(-1))
        / torch.sqrt(x.var(-1, unbiased=False).unsqueeze(-1) + 1e-5)
        * w
        + b
    ),
    "layer_norm sums": lambda x, w, b: layer_norm(
        x,
        w,
        b,
        x.sum(-1, keepdim=True) / x.shape[-1],
        ((x - x.sum(-1, keepdim=True) / x.shape[-1]) ** 2).sum(-1, keepdim=True) / x.shape[-1],
        torch.rsqrt,
    ),
    "layer_norm of a residual": lambda x, w, b: F.layer_norm(x + torch.tanh(x), x.shape[-1:], w, b),
    "rms_norm": lambda x, w, b: F.rms_norm(x, x.shape[-1:], w, 1e-6),
    "rms_norm pow": lambda x, w, b: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w,
    "rms_norm square": lambda x, w, b: x / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w,
    "rms_norm x * x": lambda x, w, b: w * (x * (1 / torch.sqrt((x * x).mean(-1, True) + 1e-6))),
    "rms_norm norm": lambda x, w, b: x / (x.norm(dim=-1, keepdim=True) * x.shape[-1] ** -0.5) * w,
    "rms_norm float": lambda x, w, b: (
        (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x) * w
    ),
    "normalize": lambda x, w, b: F.normalize(x, dim=-1),
    "standardize": lambda x, w, b: (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True),
    "min max": lambda x, w, b: (
        (x - x.amin(-1, keepdim=True)) / (x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True) + 1)
    ),
}
SHAPES = [
    (5, 1),
    (3, 7),
    (4, 64),
    (2, 3, 64),
    (3, 1000),
    (2, 2, 1000),
    (2, 4096),
    (1, 64),
    (2, 1, 7),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ROWS)
def test_a_row_pattern_is_one_kernel(name, shape):
    f = ROWS[name]
    n = shape[-1]
    inputs = torch.randn(shape), torch.rand(n) + 0.5, torch.randn(n)
    args = ready(*inputs)
    result, stats = assert_one_kernel(f, *args)
    want = f(*[t.double() for t in inputs]).float()
    if n > 1:  # the deviation of one number is noise over epsilon
        assert torch.allclose(result, want, rtol=1e-4, atol=1e-4, equal_nan=True)
    with torch_opaque.unfused():
        assert torch.equal(f(*args).cpu().view(torch.int32), result.view(torch.int32))
    rows = args[0].numel() * 4
    assert stats["bytes_written"] == rows
    assert stats["bytes_read"] <= rows + 2 * n * 4


def gathered(x, labels):
    return torch.logsumexp(x, -1) - x.gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def one_hot(x, labels):
    hot = labels.unsqueeze(-1) == torch.arange(x.shape[-1], device=x.device)
    return torch.logsumexp(x, -1) - torch.where(hot, x, 0.0).sum(-1)


LOSSES = {
    "gather": gathered,
    "one hot": one_hot,
    "one hot product": lambda x, y: (
        -(
            torch.log_softmax(x, -1)
            * (y.unsqueeze(-1) == torch.arange(x.shape[-1], device=x.device))
        ).sum(-1)
    ),
    "log_softmax gather": lambda x, y: (
        -torch.log_softmax(x, -1).gather(-1, y.unsqueeze(-1)).squeeze(-1)
    ),
    "stable": lambda x, y: gathered(x - x.max(-1, keepdim=True).values, y),
    "parts": lambda x, y: (
        torch.log(torch.exp(x - x.amax(-1, keepdim=True)).sum(-1))
        + x.amax(-1)
        - x.gather(-1, y[..., None])[..., 0]
    ),
    "built in": lambda x, y: F.cross_entropy(x.flatten(0, -2), y.flatten(), reduction="none").view(
        y.shape
    ),
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_cross_entropy_per_row_is_one_kernel(name, shape):
    x, labels = torch.randn(shape), torch.randint(shape[-1], shape[:-1])
    result, _ = assert_one_kernel(LOSSES[name], *ready(x, labels))
    assert torch.allclose(result, gathered(x.double(), labels).float(), rtol=1e-5, atol=1e-5)


# ---- matmuls with what follows them

EPILOGUES = {
    "gelu": lambda y, r: F.gelu(y) + r,
    "gelu tanh": lambda y, r: F.gelu(y, approximate="tanh") + r,
    "residual first": lambda y, r: r + F.gelu(y),
    "relu": lambda y, r: torch.relu(y) + r,
    "silu gate": lambda y, r: F.silu(y) * r,
    "dropout mask": lambda y, r: torch.where(r > 0, y, 0.0) * 2,
    "scaled residual": lambda y, r: torch.add(r, y, alpha=0.5),
    "none": lambda y, r: y,
}
LINEARS = {
    "linear": lambda x, w, b: F.linear(x, w, b),
    "addmm": lambda x, w, b: torch.addmm(b, x.flatten(0, -2), w.t()).view(
        *x.shape[:-1], w.shape[0]
    ),
    "matmul": lambda x, w, b: x @ w.t() + b,
    "primitives": lambda x, w, b: torch.matmul(x, w.transpose(0, 1)).add(b),
}


@pytest.mark.parametrize("shape", [(5, 16), (1, 16), (2, 7, 33), (64, 128)], ids=str)
@pytest.mark.parametrize("linear", LINEARS)
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_a_linear_layer_with_its_epilogue_is_one_kernel(epilogue, linear, shape):
    n = 24
    x, w, b, r = (
        torch.randn(shape),
        torch.randn(n, shape[-1]),
        torch.randn(n),
        torch.randn(*shape[:-1], n),
    )

    def f(x, w, b, r):
        return EPILOGUES[epilogue](LINEARS[linear](x, w, b), r)

    args = ready(x, w, b, r)
    result, _ = assert_one_kernel(f, *args)
    assert torch.allclose(
        result, f(x.double(), w.double(), b.double(), r.double()).float(), rtol=1e-4, atol=1e-4
    )
    with torch_opaque.unfused():
        assert torch.equal(f(*args).cpu(), result)


PROJECTIONS = {
    "equal": (48, 48, 48),
    "grouped queries": (48, 16, 16),
    "odd": (33, 7, 1),
    "many": (16,) * 8,
    "two": (24, 40),
}


def projections(x, ws, bs, act=lambda y: y):
    return [act(F.linear(x, w, b)) for w, b in zip(ws, bs, strict=True)]


@pytest.mark.parametrize("shape", [(5, 16), (1, 300), (2, 7, 33), (64, 128), (150, 1100)], ids=str)
@pytest.mark.parametrize("name", PROJECTIONS)
def test_linear_layers_of_one_input_are_one_kernel(name, shape):
    """Also in a forward pass that autograd records, with and without what follows, on one thread and on two."""
    widths = PROJECTIONS[name]
    (x,) = ready(torch.randn(shape))
    ws = [torch.nn.Parameter(w) for w in ready(*[torch.randn(n, shape[-1]) for n in widths])]
    bs = ready(*[torch.randn(n) for n in widths])
    for act, biases in ((F.gelu, bs), (lambda y: y, bs), (lambda y: y, [None] * len(ws))):
        projections(x, ws, biases, act)
        torch.opaque.synchronize()
        torch_opaque.reset_stats()
        results = projections(x, ws, biases, act)
        torch.opaque.synchronize()
        stats = torch_opaque.stats()
        assert stats["kernels_run"] == 1
        read = (
            x.numel() + sum(w.numel() for w in ws) + sum(b.numel() for b in biases if b is not None)
        )
        assert stats["bytes_read"] == 4 * read
        values = [r.detach().cpu() for r in results]
        args = (
            x.cpu(),
            [w.detach().cpu() for w in ws],
            [b if b is None else b.cpu() for b in biases],
        )
        for got, want in zip(values, projections(*args, act), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)
        with torch_opaque.unfused():
            for got, alone in zip(values, projections(x, ws, biases, act), strict=True):
                assert torch.equal(got.view(torch.int32), alone.detach().cpu().view(torch.int32))
        threads = torch.get_num_threads()
        torch.set_num_threads(1 if threads > 1 else 2)
        again = projections(x, ws, biases, act)
        torch.opaque.synchronize()
        torch.set_num_threads(threads)
        assert all(torch.equal(a.detach().cpu(), v) for a, v in zip(again, values, strict=True))


def test_transposed_products_of_one_input_are_one_kernel():
    """Each part stores where a permutation has it."""
    x, *ws = ready(torch.randn(2, 10, 32), *[torch.randn(32, n) for n in (32, 8, 8)])

    def transposed(x, ws):
        return [(x @ w).transpose(1, 2).contiguous() for w in ws]

    torch_opaque.reset_stats()
    results = transposed(x, ws)
    torch.opaque.synchronize()
    assert torch_opaque.stats()["kernels_run"] == 1
    for got, want in zip(results, transposed(x.cpu(), [w.cpu() for w in ws]), strict=True):
        torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4)


# ---- moved elements

INDEX = torch.tensor([[3], [0], [5], [5]])
MOVED = {
    "flip": lambda x: (x * 2).flip(1, 3).relu() + 1,
    "rot90": lambda x: (x * 2).rot90(1, (2, 3)) + 1,
    "roll": lambda x: x.roll((1, -2), (2, 3)).relu() + 1,
    "tril": lambda x: (x * 2).tril(1) * 2,
    "causal mask": lambda x: x.masked_fill(
        torch.ones(6, 6, device=x.device).triu(1) == 1, -math.inf
    ).softmax(-1),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1), value=0.5).relu() + 1,
    "reflect": lambda x: (F.pad(x, (1, 2, 3, 1), mode="reflect") + 1).relu(),
    "replicate": lambda x: (F.pad(x, (1, 2, 3, 1), mode="replicate") + 1).relu(),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x * 2, 2).relu() + 1,
    "channel_shuffle": lambda x: F.channel_shuffle(x * 2, 2).relu() + 1,
    "nearest": lambda x: F.interpolate(x * 2, scale_factor=2).relu() + 1,
    "one_hot": lambda x: F.one_hot(INDEX.to(x.device), 6) * x[0, 0, 0] * 2,
    "scatter": lambda x: (
        (x * 2).scatter(2, INDEX.to(x.device).view(4, 1, 1, 1).expand(4, 8, 1, 6), x[:, :, :1]) + 1
    ),
    "index_fill": lambda x: (x * 2).index_fill(1, INDEX[:, 0].to(x.device), 3.0) + 1,
    "glu": lambda x: F.glu(x * 2, 1) + 1,
    "diff": lambda x: (x * 2).diff() + 1,
    "group_norm": lambda x: F.group_norm(x * 2, 4),
}


@pytest.mark.parametrize("name", MOVED)
def test_moved_elements_are_part_of_the_kernel(name):
    x = torch.randn(4, 8, 6, 6)
    result, _ = assert_one_kernel(MOVED[name], *ready(x))
    assert torch.allclose(result, MOVED[name](x), rtol=1e-5, atol=1e-5)


# ---- siblings: what only shares an input

SIBLINGS = {
    "sum and sum of squares": lambda x, y: (x.sum(-1), (x * x).sum(-1)),
    "of all": lambda x, y: (x.sum(), (x * x).sum(), x.amax()),
    "of columns": lambda x, y: (x.sum(0), (x * y).sum(0)),
    "max": lambda x, y: tuple(torch.max(x, -1)),
    "max of columns": lambda x, y: tuple(torch.max(x, 0)),
    "aminmax": lambda x, y: tuple(torch.aminmax(x, dim=-1)),
    "aminmax of all": lambda x, y: tuple(torch.aminmax(x)),
    "mean and var": lambda x, y: (x.mean(-1), x.var(-1)),
    "sin and cos": lambda x, y: (torch.sin(x), torch.cos(x)),
    "rows and elements": lambda x, y: (x * 2, x.sum(-1), x - y),
    "windows": lambda x, y: (x[1:, 2:].amax(-1), x[1:, 2:].amin(-1)),
    "of a product": lambda x, y: (lambda z: (z.sum(-1), z.relu()))((x.t() @ y).detach()),
}


@pytest.mark.parametrize("shape", [(7, 5), (64, 33), (3, 5000), (700, 40)], ids=str)
@pytest.mark.parametrize("name", SIBLINGS)
def test_siblings_are_one_kernel(name, shape):
    f = SIBLINGS[name]
    x, y = ready(torch.randn(shape), torch.randn(shape))
    first = 1 if name == "of a product" else 0
    torch_opaque.reset_stats()
    results = f(x, y)
    torch.opaque.synchronize()
    stats = torch_opaque.stats()
    assert stats["kernels_run"] == 1 + first
    for result, want in zip(results, f(x.cpu(), y.cpu()), strict=True):
        torch.testing.assert_close(result.cpu(), want, rtol=1e-4, atol=1e-3)
    with torch_opaque.unfused():
        for result, alone in zip(results, f(x, y), strict=True):
            assert torch.equal(result.cpu(), alone.cpu())


def test_what_shares_little_stays_apart():
    """A row among matrices, other parts of one, other orders of one."""
    x, y, row = ready(torch.randn(64, 64), torch.randn(64, 64), torch.randn(64))
    for f in (
        lambda: (x + row, (y * row).sum(-1)),
        lambda: (x[:32].sin(), x[32:].cos()),
        lambda: (x.sin(), x.t().contiguous()),
        lambda: (x.sum(0), x.sum(1)),
        lambda: (x * 2, x.sum(0)),
    ):
        torch_opaque.reset_stats()
        results = f()
        torch.opaque.synchronize()
        assert torch_opaque.stats()["kernels_run"] == 2
        del results


# ---- optimizers

OPTIMIZERS = {
    "SGD": (torch.optim.SGD, {"lr": 0.1}),
    "SGD momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "SGD nesterov decay": (
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    ),
    "Adam": (torch.optim.Adam, {"lr": 0.1}),
    "Adam decay": (torch.optim.Adam, {"lr": 0.1, "weight_decay": 0.01}),
    "Adam amsgrad": (torch.optim.Adam, {"lr": 0.1, "amsgrad": True}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.1}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 0.1}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.1}),
}


OPTIMIZER_FORMS = [
    (name, form)
    for name, (kind, _) in OPTIMIZERS.items()
    for form in ({"foreach": False}, {"foreach": True}, {"fused": True})
    if "fused" not in form or kind not in (torch.optim.RMSprop, torch.optim.Adagrad)
]


@pytest.mark.parametrize(("name", "form"), OPTIMIZER_FORMS, ids=str)
def test_an_optimizer_step_on_a_tensor_is_one_kernel(name, form):
    """Besides its step counter, where that lives on the device."""
    kind, options = OPTIMIZERS[name]
    (p, g) = ready(torch.randn(33, 65), torch.randn(33, 65))
    p.requires_grad_()
    p.grad = g
    optimizer = kind([p], **options, **form)
    twin = p.detach().cpu().requires_grad_()
    twin.grad = g.cpu()
    other = kind([twin], **options, **form)
    for _ in range(3):
        optimizer.step()
        other.step()
    torch.opaque.synchronize()
    counts = []
    for _ in range(3):
        torch_opaque.reset_stats()
        optimizer.step()
        other.step()
        torch.opaque.synchronize()
        counts.append(torch_opaque.stats()["kernels_run"])
    counters = sum(
        1
        for s in optimizer.state.values()
        for k, v in s.items()
        if k == "step" and v.device.type == D
    )
    assert torch_opaque.fallback_counts() == {}
    assert max(counts) <= 1 + counters, counts
    stats = torch_opaque.stats()
    assert stats["kernels_compiled"] == 0
    # The parameter and each moment read and written, the gradient read; a step counter is 4 bytes.
    size = p.numel() * 4
    moments = sum(
        1
        for s in optimizer.state.values()
        for t in s.values()
        if torch.is_tensor(t) and t.dim() > 0
    )
    assert 0 <= stats["bytes_read"] - (moments + 2) * size <= 64 * counters
    assert 0 <= stats["bytes_written"] - (moments + 1) * size <= 64 * counters
    assert torch.allclose(p.detach().cpu(), twin.detach(), rtol=1e-5, atol=1e-6)


# ---- a long row alone

LONG = {
    "sum": lambda x: x.sum(),
    "sum of squares": lambda x: (x * x).sum(),
    "mean": lambda x: (x + 1).mean(),
    "largest": lambda x: x.abs().amax(),
    "any": lambda x: (x > 3).any(),
    "norm": lambda x: x.norm(),
    "several": lambda x: x.sum() / x.amax() + (x * x).sum(),
}


LONG_CASES = [
    *itertools.product(LONG, [torch.float32, torch.float16]),
    *((name, torch.int64) for name in ("sum", "sum of squares", "largest", "any")),
]


@pytest.mark.parametrize(("name", "dtype"), LONG_CASES)
def test_a_long_row_is_one_kernel_of_two_phases(name, dtype):
    """Blocks of the row on all threads, then what they give."""
    x = torch.randint(-50, 50, (257, 300)).to(dtype)
    if dtype == torch.float16:
        x = x / 512
    f = LONG[name]
    result, _ = assert_one_kernel(f, *ready(x))
    want = f(x.double() if dtype.is_floating_point else x)
    torch.testing.assert_close(
        result, want.to(result.dtype), rtol=2e-3 if dtype == torch.float16 else 1e-5, atol=1e-5
    )
    text = str(torch_opaque.graph(f, *ready(x), stage="kernels"))
    assert " in i {" in text and ": own " in text


def test_a_short_row_and_many_rows_are_not_cut():
    for shape, axis in (((65, 1000), None), ((2, 70000), 1)):
        graph = torch_opaque.graph(
            lambda x, axis=axis: x.sum(axis) if axis is not None else x.sum(),
            *ready(torch.ones(shape)),
            stage="kernels",
        )
        text = str(graph)
        assert " in i {" not in text and ": own " not in text


# ---- all of a product whose elements do not lie as those of its operands

PRODUCTS = {
    "transposed": lambda a, b: (a * b.t()).sum(),
    "both transposed": lambda a, b: (a.t() + b).sum(),
    "row": lambda a, b: (a * b[:, 0]).sum((0, 1)),
    "column": lambda a, b: (a * b[:1].t()).mean(),
    "outer": lambda a, b: (a[:, 0, None] * b[None, :, 0]).amax(),
    "part": lambda a, b: a[:, :-1].sum() + 1,
    "backwards": lambda a, b: (a.flip(1) * b.t().flip(0)).norm(),
    "one dim of 1": lambda a, b: (a[:, None] * b.t()[:, None]).sum((0, 2), keepdim=True),
    "several": lambda a, b: (a * b.t()).sum() - (a * b.t()).square().amax() + b.t().amin(),
    "counted": lambda a, b: ((a > 0) & (b.t() > 0)).sum(),
    "any": lambda a, b: (a + b.t() > 7.5).any(),
}
PRODUCT_SHAPES = [
    (3, 5),
    (2, 2),
    (7, 3000),
    (3000, 3),
    (3000, 7),
    (1000, 77),
    (40, 4096),
    (9, 5000),
]


def assert_all_bits(f, *args):
    """Fused as unfused, in one kernel."""
    result, stats = assert_one_kernel(f, *args)
    with torch_opaque.unfused():
        apart = f(*args).cpu()
    assert torch.equal(result, apart)
    return stats


@pytest.mark.parametrize("shape", PRODUCT_SHAPES, ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_all_of_a_product_is_one_kernel(name, shape):
    a, b = ready(torch.randn(shape), torch.randn(shape[::-1]))
    f = PRODUCTS[name]
    stats = assert_all_bits(f, a, b)
    want = f(a.cpu().double(), b.cpu().double())
    torch.testing.assert_close(f(a, b).cpu().double(), want.double(), rtol=1e-4, atol=1e-2)
    assert stats["bytes_written"] <= 8 + 4 * 3 * math.ceil(a.numel() / 4096)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.uint8])
@pytest.mark.parametrize("shape", PRODUCT_SHAPES, ids=str)
def test_all_of_a_product_in_each_dtype(shape, dtype):
    a, b = (torch.randint(0, 5, s).to(dtype) for s in (shape, shape[::-1]))

    def f(a, b):
        return (a * b.t()).amax() + (a + b.t()).sum()

    assert_one_kernel(f, *ready(a, b))
    if dtype != torch.bfloat16:  # which is rounded between kernels
        assert_all_bits(f, *ready(a, b))
    assert f(*ready(a, b)).item() == pytest.approx(f(a, b).item(), rel=1e-2)


@pytest.mark.parametrize("sizes", [(2, 3, 4), (16, 40, 64), (33, 3, 50), (70, 2, 300)], ids=str)
@pytest.mark.parametrize("dims", list(itertools.permutations(range(3))), ids=str)
def test_all_of_a_permuted_product_is_one_kernel(dims, sizes):
    x, y = ready(torch.randn(sizes), torch.randn([sizes[d] for d in dims]))
    assert_all_bits(lambda x, y: (x.permute(dims) * y).sum(), x, y)
    assert_all_bits(lambda x, y: (x.permute(dims)[None] + y[:, :, :1]).mean((0, 1, 2, 3)), x, y)


def test_all_of_a_product_has_its_bits_on_any_number_of_threads():
    a, b = ready(torch.randn(700, 333), torch.randn(333, 700))
    before, results = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append((a * b.t()).sum().item())
    torch.set_num_threads(before)
    assert results[0] == results[1] == results[2]


def test_a_dear_row_is_computed_once_before_all_of_a_product():
    x, row = ready(torch.randn(300, 200), torch.randn(200))
    _, stats = run(lambda x, row: (x * torch.exp(row)).sum(), x, row)
    assert stats["kernels_run"] == 2 and stats["bytes_written"] < 4 * x.numel()


# ---- all pairs


def gravity(place, mass):
    apart = place[None] - place[:, None]
    near = torch.rsqrt((apart * apart).sum(-1) + 1e-3)
    return (apart * (mass * near * near * near)[..., None]).sum(1)


def centred(place, mass):
    apart = (place[None] - place[:, None]) * 0.5
    return (apart - apart.mean(1, keepdim=True)).square().sum(-1) * mass


def three_ways(place, mass):
    apart = place[:, None] + place[None]
    return apart.sum(0), apart.amax(1), (apart * mass[:, None, None]).sum(1)


@pytest.mark.parametrize("program", [gravity, centred, three_ways], ids=lambda p: p.__name__)
@pytest.mark.parametrize("dims", [2, 3, 7, 20])
def test_values_of_all_pairs_are_computed_again_and_not_stored(program, dims):
    points = 700
    torch.manual_seed(dims)
    place, mass = torch.randn(points, dims), torch.rand(points)
    expected = program(place, mass)
    moved = ready(place, mass)
    results = {}
    for name, mode in {"fused": nullcontext, "unfused": torch_opaque.unfused}.items():
        with mode():
            results[name] = program(*moved)
            torch.opaque.synchronize()
    torch_opaque.reset_stats()
    again = program(*moved)
    torch.opaque.synchronize()
    stats = torch_opaque.stats()
    all_pairs = points * points * dims * 4
    assert stats["bytes_read"] + stats["bytes_written"] < 2.1 * all_pairs
    one = isinstance(expected, torch.Tensor)
    for cpu, fused, unfused, last in zip(
        *([x] if one else x for x in (expected, results["fused"], results["unfused"], again)),
        strict=True,
    ):
        assert torch.equal(fused.cpu(), unfused.cpu()) and torch.equal(fused.cpu(), last.cpu())
        torch.testing.assert_close(fused.cpu(), cpu, rtol=2e-4, atol=2e-3)


# ---- offsets of views are no part of a plan


def plans_built(fn):
    torch_opaque.reset_stats()
    found = fn()
    return found, torch_opaque.stats()["plans_built"], torch_opaque.stats()["kernels_run"]


def test_looking_at_elements_needs_no_plan():
    y = torch.arange(120, device=D).view(4, 30)
    torch.opaque.synchronize()
    for view, expect in (
        (y, torch.arange(120).view(4, 30)),
        (y.t()[3:, 1:4:2], torch.arange(120).view(4, 30).t()[3:, 1:4:2]),
    ):
        found, plans, kernels = plans_built(
            lambda view=view: [[int(e) for e in row] for row in view]
        )
        assert found == expect.tolist() and (plans, kernels) == (0, 0)
    (y * 2)[1, 2].item()
    found, plans, _ = plans_built(lambda: [(y * 2)[1, i].item() for i in range(30)])
    assert (
        found == [2 * (30 + i) for i in range(30)] and plans == 0
    )  # all of what is pending, then one element
    y[1, 3] = -1
    assert y[1, 3].item() == -1 and y[1, 4].item() == 34


def test_any_offset_has_the_same_plan():
    """The first offsets of a graph have a plan that shows them, all others one together."""
    x = torch.randn(3, 64, 80)
    there = x.to(D)
    places = [(i * 7 % 33, i * 11 % 40) for i in range(100)]

    def crops(x):
        return [(x[:, i : i + 32, j : j + 40 : 2] * 2).flip(2).cpu() for i, j in places]

    found, plans, _ = plans_built(lambda: crops(there))
    assert plans == 2
    assert all(map(torch.equal, found, crops(x)))
    with torch_opaque.unfused():
        found, plans, _ = plans_built(lambda: crops(there))
    assert plans == 2 and all(map(torch.equal, found, crops(x)))

    def pairs(x):  # two views of one tensor, which overlap or not, and all of it
        return [
            (F.pad(x[:, i : i + 9], (1, -1)) + x[:, 50 - i : 59 - i] * x.sum()).cpu()
            for i in range(50)
        ]

    found, plans, _ = plans_built(lambda: pairs(there))
    assert plans == 2
    for f, e in zip(found, pairs(x), strict=True):
        torch.testing.assert_close(f, e)


def test_offsets_of_what_is_written():
    """What is read of a tensor that the same graph writes is what it was before, whichever memory the result takes."""

    def steps(device):
        a = torch.arange(200.0).view(50, 4).to(device)
        seen = []
        for i in range(48):
            before = a[i + 1] * 2
            a[i] += a[i + 1]
            a[i, 1:3] *= a[i + 2, 2:]
            seen.append(before.cpu())
        return [*seen, a.cpu()]

    assert all(map(torch.equal, steps(D), steps("cpu")))


def test_gradients_of_parts_are_one_kernel():
    """Of queries, keys and values that are selected from one tensor: no zeros are written to be added to."""
    x, g = ready(torch.randn(3, 8, 64), torch.randn(8, 64))
    x.requires_grad_()

    def step(g):
        q, k, v = x[0], x[1], x[2]
        return torch.autograd.grad(q * k - v, x, g)[0]

    result, stats = assert_one_kernel(step, g)
    own = x.detach().cpu()
    assert torch.equal(result, g.cpu() * torch.stack([own[1], own[0], -torch.ones_like(own[2])]))
    assert stats["bytes_read"] + stats["bytes_written"] <= 4 * 64 * 8 * (1 + 2 + 3)
