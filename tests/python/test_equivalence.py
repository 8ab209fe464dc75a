"""Fused, unfused, on one thread or two, run from a dump without PyTorch: the same bits for native f32, f64 and integers."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch_opaque
from torch import nn

pytestmark = pytest.mark.usefixtures("planned")

D = "opaque"


def bits(results):
    """The results' bytes and shapes."""
    return [(tuple(t.shape), t.detach().cpu().contiguous().numpy().tobytes()) for t in results]


def flat(result):
    return [result] if isinstance(result, torch.Tensor) else list(result)


# ---- models: a function that makes (step function, state tensors) the same way each time


class Block(nn.Module):
    """A transformer block from primitives: pre-norm with causal attention (GPT-2) or post-norm (BERT, MiniLM)."""

    def __init__(self, width, heads, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def attention(self, x):
        b, n, width = x.shape
        q, k, v = (
            t.view(b, n, self.heads, -1).transpose(1, 2) for t in self.qkv(x).split(width, 2)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if self.causal:
            index = torch.arange(n, device=x.device)
            scores = scores.masked_fill(index > index[:, None], float("-inf"))
        return self.out((torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(b, n, width))

    def forward(self, x):
        if self.causal:
            x = x + self.attention(self.norm1(x))
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


def trained(model, loss, kind=torch.optim.AdamW, steps=2, **options):
    """A function that trains a copy for some steps and returns losses, parameters, gradients and moments."""

    def f():
        m = copy.deepcopy(model)
        optimizer = kind(m.parameters(), lr=0.01, **options)
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            value = loss(m)
            value.backward()
            optimizer.step()
            losses.append(value.detach())
        states = [
            t for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor)
        ]
        return [*losses, *m.parameters(), *[p.grad for p in m.parameters()], *states, *m.buffers()]

    return f


def mlp():
    model = nn.Sequential(nn.Linear(33, 65), nn.GELU(), nn.LayerNorm(65), nn.Linear(65, 10)).to(D)
    x, labels = torch.randn(37, 33).to(D), torch.randint(10, (37,)).to(D)
    return trained(model, lambda m: F.cross_entropy(m(x), labels))


def convolutions():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 81, 5),
    ).to(D)
    x = torch.randn(4, 3, 9, 9).to(D)
    return trained(model, lambda m: m(x).square().mean(), torch.optim.SGD, momentum=0.9)


def norms_without_convolution():
    model = nn.Sequential(
        nn.BatchNorm1d(20),
        nn.Linear(20, 30),
        nn.SiLU(),
        nn.BatchNorm1d(30),
        nn.Linear(30, 20),
        nn.Softmax(-1),
    ).to(D)
    x = torch.randn(50, 20).to(D)
    return trained(model, lambda m: (m(x) * x).sum())


def blocks(causal):
    def make():
        model = nn.Sequential(Block(48, 3, causal), Block(48, 3, causal)).to(D)
        x = torch.randn(2, 19, 48).to(D)
        return trained(model, lambda m: m(x).square().mean())

    return make


def layer():
    """A MiniLM layer: hidden size 384, 12 heads."""
    model, x = Block(384, 12, False).to(D).eval(), torch.randn(2, 24, 384).to(D)

    def f():
        with torch.no_grad():
            return model(x)

    return f


def language_model():
    embedding, positions, block = (
        nn.Embedding(101, 48).to(D),
        nn.Embedding(16, 48).to(D),
        Block(48, 4, True).to(D),
    )
    model = nn.ModuleList([embedding, positions, block])
    ids = torch.randint(101, (3, 16)).to(D)

    def loss(m):
        hidden = m[2](m[0](ids) + m[1](torch.arange(16, device=D)))
        return F.cross_entropy(
            (hidden @ m[0].weight.t())[:, :-1].flatten(0, 1), ids[:, 1:].flatten()
        )

    return trained(model, loss, torch.optim.Adam)


MODELS = {
    "mlp": mlp,
    "convolutions": convolutions,
    "norms": norms_without_convolution,
    "gpt-2 blocks": blocks(True),
    "bert blocks": blocks(False),
    "minilm layer": layer,
    "language model": language_model,
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_gives_the_same_bits_fused_unfused_and_on_any_number_of_threads(name):
    f = MODELS[name]()
    torch.opaque.synchronize()
    runs = {}
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            runs[f"fused {count}"] = bits(flat(f()))
            with torch_opaque.unfused():
                runs[f"unfused {count}"] = bits(flat(f()))
        with torch_opaque.eager():
            runs["eager 2"] = bits(flat(f()))
    finally:
        torch.set_num_threads(threads)
    # A convolution is the CPU kernel's: it may add in another order on another number of threads.
    native = torch_opaque.fallback_counts() == {}
    assert native or name == "convolutions"
    for mode, got in runs.items():
        want = runs["fused 1" if native else "fused " + mode[-1]]
        assert [a == b for a, b in zip(want, got, strict=True)] == [True] * len(want), mode


def test_unfused_runs_more_kernels():
    f = mlp()
    counts = []
    for context in (torch_opaque.unfused(), torch_opaque.strict()):
        with context:
            f()
            torch_opaque.reset_stats()
            f()
            torch.opaque.synchronize()
            counts.append(torch_opaque.stats()["kernels_run"])
    assert counts[0] > 2 * counts[1]


# ---- reductions: every set of axes of shapes around the vector width, with what comes before and after

SHAPES = [
    (1,),
    (7,),
    (64,),
    (1000,),
    (3, 5),
    (17, 33),
    (1, 130),
    (130, 1),
    (4, 3, 65),
    (2, 3, 4, 5),
    (65, 2, 31),
    (0, 3),
    (3, 0),
]
FOLDS = {
    "sum": lambda x, dims: (x * 2 + 1).sum(dims),
    "mean": lambda x, dims: x.mean(dims, keepdim=True) - x,
    "amax": lambda x, dims: torch.exp(x - x.amax(dims, keepdim=True)),
    "prod": lambda x, dims: x.prod(dims[0]),
    "var": lambda x, dims: (
        (x - x.mean(dims, keepdim=True)) * torch.rsqrt(x.var(dims, correction=0, keepdim=True) + 1)
    ),
    "softmax": lambda x, dims: torch.softmax(x * 3, dims[-1]) + 1,
    "logsumexp": lambda x, dims: torch.logsumexp(x, dims),
    "argmax": lambda x, dims: x.argmax(dims[0]),
    "norm": lambda x, dims: x / (torch.linalg.vector_norm(x, dim=dims, keepdim=True) + 1),
    "any": lambda x, dims: (x > 1).any(dims[0]),
}


# Of the other dtypes: the exponential of f64 is the CPU kernel's, whose bits depend on the layout.
NATIVE = {
    torch.float64: ("sum", "mean", "prod", "var", "argmax", "norm", "any"),
    torch.int32: ("sum", "prod", "argmax", "any"),
}


def axis_sets(rank):
    return [tuple(d for d in range(rank) if mask >> d & 1) for mask in range(1, 1 << rank)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_reductions_have_one_order(shape, dtype):
    numbers = (torch.randn(shape) * 3).to(dtype)
    straight = numbers.to(D)
    turned = (
        numbers.permute(*reversed(range(numbers.dim())))
        .contiguous()
        .to(D)
        .permute(*reversed(range(numbers.dim())))
    )
    torch.opaque.synchronize()
    for name, fold in FOLDS.items():
        if name not in NATIVE.get(dtype, FOLDS):
            continue
        for dims in axis_sets(len(shape)):
            if 0 in [shape[d] for d in dims] and name in ("amax", "argmax"):
                continue
            fused = bits([fold(straight, dims)])
            with torch_opaque.unfused():
                assert bits([fold(straight, dims)]) == fused, (name, dims)
            with torch_opaque.eager():
                assert bits([fold(straight, dims)]) == fused, (name, dims)
            assert bits([fold(turned, dims)]) == fused, (name, dims, "another layout")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32], ids=str)
@pytest.mark.parametrize("rows", [1, 5, 8, 16, 17, 33, 70])
def test_products_of_a_matrix_that_is_new_each_time(rows, dtype):
    """It lies across the lanes, so that tiles of it are turned."""
    for terms in (2, 3, 8, 15, 16, 33, 50):
        matrix, row = (torch.randn(*s, terms).mul(4).to(dtype).to(D) for s in ((3, rows), ()))

        def results(all=matrix, x=row):
            one = all[1] * 2
            yield from (one @ x + 1, x @ one.t() - 1, x[None] @ (one + 1).t() * 3)
            yield torch.einsum("bij,bj->bi", all, all[:, 0]) + 1
            yield torch.einsum("bij,bij->b", all, all) + 1

        fused = bits(list(results()))
        with torch_opaque.unfused():
            assert bits(list(results())) == fused, terms


def test_a_matrix_just_made_is_read_across_its_rows_in_tiles():
    """A lane for each row, and turns side by side. One that was given is the engine's, which makes all products of a row at once."""
    matrix, row = torch.randn(24, 20).to(D), torch.randn(20).to(D)
    made = str(torch_opaque.graph((matrix + 1) @ row, stage="kernels"))
    assert "  vector i < d0 {\n    chain j < d1 {\n      %2 = load f32 b0[d2 + i*d3 + j]" in made
    given = str(torch_opaque.graph(matrix @ row + 1, stage="kernels"))
    assert "  parallel i < d0 {\n    vector j < d1 {\n      chain k < d2 {" in given


def test_a_row_does_not_depend_on_its_batch():
    x, w = torch.randn(9, 70).to(D), torch.randn(40, 70).to(D)
    for f in (
        lambda x: F.gelu(F.linear(x, w)),
        lambda x: torch.softmax(x, -1),
        lambda x: F.layer_norm(x, (70,)),
        lambda x: torch.logsumexp(x, -1),
    ):
        whole = f(x).cpu()
        for rows in (slice(0, 1), slice(3, 5), slice(8, 9)):
            assert torch.equal(f(x[rows]).cpu(), whole[rows])


# ---- what a dump gives


def run_dump(opq_opt, f, *args, directory):
    torch_opaque.dump(f, *args, dir=directory)
    opq_opt("--run", directory)
    paths = sorted(directory.glob("out*.npy"), key=lambda p: int(p.stem[3:]))
    return [np.load(p) for p in paths]


def minilm_forward():
    """Embeddings, one layer, mean pooling, normalisation: the sentence encoder with its sizes."""
    words, places, norm = (
        nn.Embedding(500, 384).to(D),
        nn.Embedding(32, 384).to(D),
        nn.LayerNorm(384).to(D),
    )
    block = Block(384, 12, False).to(D)
    ids, mask = (
        torch.randint(500, (2, 20)).to(D),
        (torch.arange(20) < torch.tensor([[20], [13]])).float().to(D),
    )

    def f():
        with torch.no_grad():
            x = block(norm(words(ids) + places(torch.arange(20, device=D))))
            pooled = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            return F.normalize(pooled, dim=-1)

    return f


def mlp_step():
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 4)).to(D)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x, labels = torch.randn(16, 20).to(D), torch.randint(4, (16,)).to(D)

    def f():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        return [loss, *[p.grad for p in model.parameters()]]

    return f


def gpt2_block():
    block, x = Block(64, 4, True).to(D), torch.randn(2, 17, 64).to(D)
    return lambda: block(x)


@pytest.mark.parametrize("make", [minilm_forward, mlp_step, gpt2_block], ids=lambda f: f.__name__)
def test_a_dump_gives_the_bits_of_the_device(make, tmp_path, opq_opt):
    f = make()
    torch.opaque.synchronize()
    ran = run_dump(opq_opt, f, directory=tmp_path)
    want = flat(f())
    assert torch_opaque.fallback_counts() == {}
    assert len(ran) >= len(want)
    for a, b in zip(ran, want, strict=False):
        assert a.tobytes() == b.detach().cpu().contiguous().numpy().tobytes()


def test_large_tensors_on_one_thread_and_on_two():
    x, long, w = (
        torch.randn(700, 1300).to(D),
        torch.randn(2_000_003).to(D),
        torch.randn(300, 1300).to(D),
    )
    threads = torch.get_num_threads()

    def f():
        return [
            x.sum(),
            x.sum(0),
            x.sum(1),
            x.var(),
            long.sum(),
            (long * long).mean(),
            long.argmax(),
            torch.softmax(x, 0),
            torch.softmax(x, 1),
            F.layer_norm(x, (1300,)),
            F.gelu(F.linear(x, w)) * 2,
            torch.exp(long) + 1,
            F.cross_entropy(x, torch.arange(700, device=D)),
        ]

    try:
        torch.set_num_threads(1)
        want = bits(f())
        torch.set_num_threads(2)
        got = bits(f())
        with torch_opaque.unfused():
            unfused = bits(f())
    finally:
        torch.set_num_threads(threads)
    assert [a == b == c for a, b, c in zip(want, got, unfused, strict=True)] == [True] * len(want)


@pytest.mark.parametrize("shape", [(3, 1, 4), (5, 3, 4), (30, 1, 70, 1), (2, 5, 7), (1, 33, 1, 3)])
def test_two_reductions_of_a_kernel_have_their_own_order(shape):
    """Which elements a partial result takes follows from a reduction's shape and axes, not from its neighbours in the kernel."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(D)
    others = tuple(d for d in range(x.dim()) if d != 1)

    def centred():
        return (x - x.mean(others, keepdim=True)).sum()

    def transposed():
        return x.sum(others) + x.transpose(0, 1).flatten(1).sum(1)

    def all_at_once():
        return x.sum(others).sum() * x.sum() - (x * x).transpose(0, 1).sum()

    for program in (centred, transposed, all_at_once):
        fused = bits(flat(program()))
        with torch_opaque.unfused():
            assert bits(flat(program())) == fused
