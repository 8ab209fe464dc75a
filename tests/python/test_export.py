"""torch_opaque.export(): what a function computes as a library for C, run here through ctypes, with the bits of the device."""

import ctypes
import itertools
import os
import shutil
import subprocess

import numpy as np
import pytest
import torch
import torch_opaque
from conftest import ROOT
from torch import nn
from torch.export import Dim

D = "opaque"
OPQ_RUN = os.path.join(ROOT, "build", "opq-run")
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="a C compiler links models")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


class Model:
    """An exported library, opened."""

    def __init__(self, library, weights=None, threads=1):
        self.name = os.path.basename(str(library)).removesuffix(".so")
        self.library = ctypes.CDLL(str(library))
        self.handle = ctypes.c_void_p()
        self.function("error").restype = ctypes.c_char_p
        path = None if weights is None else os.fsencode(weights)
        self.code = self.function("open")(path, threads, ctypes.byref(self.handle))

    def function(self, what):
        return getattr(self.library, f"{self.name}_{what}")

    def error(self):
        return self.function("error")().decode()

    def run(self, inputs, outputs, sizes=()):
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (*inputs, *outputs)]
        return self.function("run")(self.handle, *map(ctypes.c_int64, sizes), *pointers)

    def shape(self, sizes, output):
        made = (ctypes.c_int64 * 16)(*[-1] * 16)
        if self.function("shape")(*map(ctypes.c_int64, sizes), output, made) != 0:
            raise ValueError(self.error())
        return torch.Size(list(made)[: list(made).index(-1)])

    def __enter__(self):
        assert self.code == 0, self.error()
        return self

    def __exit__(self, *_):
        self.function("close")(self.handle)


def tensors(result):
    leaves = torch.utils._pytree.tree_leaves(result)
    return [x.detach().cpu().contiguous() for x in leaves if isinstance(x, torch.Tensor)]


def check(fn, args, folder, calls=3, **options):
    """Exported and on the device, the same bits, call after call. `args`: CPU tensors."""
    made = torch_opaque.export(fn, args, folder / "model.so", **options)
    on = fn.to(D) if isinstance(fn, nn.Module) else fn
    with Model(made.library) as model:
        for _ in range(calls):
            args = [torch.randn_like(a) if a.is_floating_point() else a for a in args]
            with torch.set_grad_enabled(not isinstance(fn, nn.Module)):
                wanted = tensors(on(*(a.to(D) for a in args)))
            got = [torch.full_like(w, 7) for w in wanted]
            assert model.run([a.contiguous() for a in args], got) == 0, model.error()
            for w, g in zip(wanted, got, strict=True):
                assert torch.equal(w.flatten().view(torch.uint8), g.flatten().view(torch.uint8))
                g.zero_()
    return made


class Attention(nn.Module):
    def __init__(self, causal=True):
        super().__init__()
        self.qkv, self.out, self.causal = nn.Linear(64, 192), nn.Linear(64, 64), causal

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (4, 16)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).flatten(2))


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1, stride=2),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1, groups=16),
            nn.Conv2d(16, 32, 1),
            nn.GELU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.LazyLinear(10),
        ).eval()

    def forward(self, x):
        return self.body(x)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.out = nn.LSTM(16, 32, 2, batch_first=True), nn.Linear(32, 5)

    def forward(self, x):
        y, (h, _) = self.lstm(x)
        return {"scores": self.out(y), "state": h}


class Experts(nn.Module):
    """Sorting, indexing, scatters: routines and values of integers."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)

    def forward(self, ids):
        x = self.embed(ids)
        best, at = x.topk(3, -1)
        order = x.sum(-1).argsort(-1)
        return (
            best,
            at,
            order,
            torch.zeros(50).to(D).scatter_add(0, ids.flatten(), x.sum(-1).flatten()),
        )


MODELS = {
    "mlp": lambda: (
        nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 7), nn.Softmax(-1)),
        (torch.randn(9, 32),),
    ),
    "attention": lambda: (Attention(), (torch.randn(2, 40, 64),)),
    "attention_long": lambda: (Attention(False), (torch.randn(1, 300, 64),)),
    "convolutions": lambda: (Convolutions(), (torch.randn(2, 3, 32, 32),)),
    "recurrent": lambda: (Recurrent(), (torch.randn(3, 11, 16),)),
    "experts": lambda: (Experts(), (torch.randint(0, 50, (4, 6)),)),
    "encoder": lambda: (
        nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval(),
        (torch.randn(2, 24, 64),),
    ),
    "f64": lambda: (
        nn.Sequential(nn.Linear(40, 90), nn.Tanh()).double(),
        (torch.randn(70, 40).double(),),
    ),
    "bf16": lambda: (
        nn.Sequential(nn.Linear(64, 64), nn.SiLU()).bfloat16(),
        (torch.randn(8, 64).bfloat16(),),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_models(name, tmp_path):
    model, args = MODELS[name]()
    with torch.no_grad():
        model(*args) if name == "convolutions" else None  # its lazy layer
    check(model, args, tmp_path)


def test_products_of_many_shapes(tmp_path):
    """Tiles, packed operands and tiny products, all of them."""
    weights = [torch.randn(k, n, device=D) for k, n in ((3, 5), (64, 64), (200, 17), (96, 300))]
    rows = [torch.randn(m, w.shape[0]) for m, w in zip((1, 7, 65, 130), weights, strict=True)]

    def fn(*xs):
        return [x @ w for x, w in zip(xs, weights, strict=True)] + [
            xs[0].T @ xs[0],
            xs[1] @ xs[1].T,
        ]

    check(fn, rows, tmp_path)


@pytest.mark.parametrize("cpu", [None, "avx2"])
def test_products_of_bf16(cpu, tmp_path):
    """By the device's rule, whichever processors the library is for."""
    model = nn.Sequential(nn.Linear(97, 128), nn.ReLU(), nn.Linear(128, 50, bias=False))
    with torch.backends.opaque.flags(bf16_products="pairs"):
        check(
            model.bfloat16(),
            (torch.randn(33, 97).bfloat16(),),
            tmp_path,
            **({"cpu": cpu} if cpu else {}),
        )


@pytest.mark.parametrize("cpu", [None, "avx2"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rule", ["pairs", "pairs16"])
def test_attention_of_bf16(rule, causal, cpu, tmp_path):
    """Blocks of rows, several for each matrix, whose products go by the device's rule."""

    def fn(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    heads = tuple(torch.randn(1, 2, 300, 64).bfloat16() for _ in range(3))
    with torch.backends.opaque.flags(bf16_products=rule):
        check(fn, heads, tmp_path, **({"cpu": cpu} if cpu else {}))


def test_an_operator_of_one_line(tmp_path):
    softcap = torch_opaque.define_op(
        "test_export::softcap(Tensor x, float c) -> Tensor", "c * tanh(x / c)"
    )
    check(lambda x: softcap(x @ x.T, 3.0) + 1, (torch.randn(5, 70),), tmp_path)


def test_what_results_are(tmp_path):
    """Arguments, weights, views, twice the same, constants, nothing at all."""
    kept = torch.arange(6.0, device=D)

    def fn(x, y):
        z = x + kept[1:5]
        return (
            x,
            kept,
            z,
            z,
            z[1:3],
            z.T if z.dim() > 1 else z,
            torch.ones(3, device=D),
            y[:0],
            (x * 0).sum(),
        )

    check(fn, (torch.randn(2, 4), torch.randn(3)), tmp_path)


def test_names_in_the_header(tmp_path):
    def fn(first, *, second):
        return {"sum": first + second, "first": first * 2}

    made = torch_opaque.export(
        fn,
        (torch.randn(2, 3),),
        tmp_path / "my-model.so",
        kwargs={"second": torch.ones(3, dtype=torch.int64)},
    )
    header = made.header.read_text()
    line = "int my_model_run(opaque_model *model, const float *first, const int64_t *second, float *sum, float *first_out);"
    assert line in header
    assert "first float32[2, 3]" in header
    assert repr(made).endswith(
        "(first float32[2, 3], second int64[3]) -> (sum float32[2, 3], first_out float32[2, 3])>"
    )


# ---- training


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.Adam(p, lr=0.01, capturable=True),
    ],
    ids=["sgd", "momentum", "adam"],
)
def test_a_training_step(optimizer, tmp_path):
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.BatchNorm1d(32), nn.Linear(32, 4)).to(D)
    steps = optimizer(model.parameters())

    def step(x, y):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        steps.step()
        steps.zero_grad()
        return loss

    batches = [(torch.randn(8, 16), torch.randint(0, 4, (8,))) for _ in range(5)]
    step(*(t.to(D) for t in batches[0]))  # the state of an optimizer comes with its first step
    before = {k: v.cpu().clone() for k, v in model.state_dict().items()}
    made = torch_opaque.export(step, batches[0], tmp_path / "train.so")
    after = model.state_dict()
    assert all(torch.equal(after[k].cpu(), v) for k, v in before.items()), (
        "exporting trains nothing"
    )
    assert all(p.grad is None for p in model.parameters())
    with Model(made.library) as one, Model(made.library, threads=2) as other:
        for x, y in batches:
            wanted = step(x.to(D), y.to(D)).detach().cpu()
            for opened in (one, other):  # each has a state of its own
                loss = torch.zeros(())
                assert opened.run((x, y), (loss,)) == 0, opened.error()
                assert torch.equal(loss, wanted)


def test_state_of_a_module(tmp_path):
    """In-place writes to buffers: a counter, and two of which old contents are read, of one a part."""

    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(3))
            self.register_buffer("last", torch.zeros(3))
            self.register_buffer("lately", torch.zeros(4, 3))

        def forward(self, x):
            old, before = self.last.clone(), self.lately[1:3].clone()
            self.last.copy_(x)
            self.lately.copy_(torch.cat([x[None], self.lately[:-1]]))
            self.count.add_(1)
            return old, self.count, before

    made = torch_opaque.export(Counter(), (torch.zeros(3),), tmp_path / "counter.so")
    with Model(made.library) as model:
        last, lately = torch.zeros(3), [torch.zeros(3)] * 4
        for i in range(4):
            x, got = torch.randn(3), [torch.zeros(3), torch.zeros(3), torch.zeros(2, 3)]
            assert model.run((x,), got) == 0
            assert torch.equal(got[0], last) and torch.equal(got[1], torch.full((3,), i + 1.0))
            assert torch.equal(got[2], torch.stack(lately[1:3]))
            got[1].fill_(-1)
            last = x.clone()
            lately = [last, *lately[:3]]
            x.fill_(-1)  # the state is the model's own


def test_a_cache_that_is_written_at_a_place(tmp_path):
    """The model's own; a place that does not exist is an error that leaves it as it was."""

    class Cache(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("kept", torch.zeros(4, 64, 8))

        def forward(self, row, place):
            self.kept.index_copy_(1, place, row)
            return self.kept.sum(1)

    cache = Cache()
    made = torch_opaque.export(
        cache, (torch.zeros(4, 1, 8), torch.tensor([0])), tmp_path / "cache.so"
    )
    with Model(made.library) as model:
        for place in (3, 63, 64, 3, -1, 0):
            row, at, got = torch.randn(4, 1, 8), torch.tensor([place]), torch.zeros(4, 8)
            code = model.run((row, at), (got,))
            if 0 <= place < 64:
                assert code == 0 and torch.allclose(got, cache(row, at).detach().cpu(), atol=1e-5)
            else:
                assert code != 0 and f"index {place} is out of bounds" in model.error()


def test_random_numbers(tmp_path):
    """The stream goes on from where the device's stood; a seed is that of torch.manual_seed."""

    def fn(x):
        return nn.functional.dropout(x, 0.5), torch.randn_like(x)

    torch.manual_seed(5)
    fn(torch.ones(7, device=D))
    made = torch_opaque.export(fn, (torch.ones(50),), tmp_path / "model.so")
    x, got = torch.randn(50), [torch.zeros(50), torch.zeros(50)]
    with Model(made.library) as model:

        def check():
            for _ in range(3):
                wanted = tensors(fn(x.to(D)))
                assert model.run((x,), got) == 0
                assert all(map(torch.equal, wanted, got))

        check()
        torch.manual_seed(11)
        model.function("seed")(model.handle, ctypes.c_uint64(11))
        check()


# ---- sizes


def test_dynamic_sizes(tmp_path):
    model = Recurrent().eval()
    made = torch_opaque.export(
        model,
        (torch.randn(2, 4, 16, device=D),),
        tmp_path / "model.so",
        dynamic_shapes=({0: Dim("B", min=1, max=3), 1: Dim("T", min=1, max=6)},),
    )
    assert (
        "int model_run(opaque_model *model, int64_t B, int64_t T, const float *x"
        in made.header.read_text()
    )
    model.to(D)
    with Model(made.library) as opened, torch.no_grad():
        for b in (3, 1, 2):
            for t in (1, 6, 3):
                x = torch.randn(b, t, 16)
                wanted = tensors(model(x.to(D)))
                got = [torch.zeros_like(w) for w in wanted]
                assert opened.run((x,), got, (b, t)) == 0, opened.error()
                assert all(map(torch.equal, wanted, got))
        assert opened.run((x,), got, (4, 1)) == 2
        assert opened.error() == "model was not exported for these sizes"


def test_many_sizes_share_their_steps(tmp_path):
    """With tables for each plan it would be some 10 MB."""
    model = Recurrent().eval()
    made = torch_opaque.export(
        model,
        (torch.randn(1, 4, 16),),
        tmp_path / "model.so",
        dynamic_shapes=({1: Dim("T", min=1, max=40)},),
    )
    assert made.library.stat().st_size < 2_000_000
    model.to(D)
    with Model(made.library) as opened, torch.no_grad():
        for t in (40, 1, 17, 33, 32, 40):
            x = torch.randn(1, t, 16)
            wanted = tensors(model(x.to(D)))
            got = [torch.zeros_like(w) for w in wanted]
            assert opened.run((x,), got, (t,)) == 0, opened.error()
            assert all(map(torch.equal, wanted, got))


def test_sizes_of_nothing(tmp_path):
    made = torch_opaque.export(
        lambda x: (x * 2, x.sum()),
        (torch.ones(0),),
        tmp_path / "model.so",
        dynamic_shapes=({0: Dim("N", min=0, max=2)},),
    )
    with Model(made.library) as opened:
        for n in (2, 0, 1):
            got = [torch.zeros(n), torch.zeros(())]
            assert opened.run((torch.ones(n),), got, (n,)) == 0, opened.error()
            assert torch.equal(got[0], torch.full((n,), 2.0)) and got[1] == n


def test_sizes_that_cannot_be():
    x = torch.randn(2, 4)
    with pytest.raises(ValueError, match="the size T needs a least and a largest value"):
        torch_opaque.export(torch.sin, (x,), "m.so", dynamic_shapes=({0: Dim("T")},))
    with pytest.raises(
        torch_opaque.ExportError, match="40000 combinations of sizes, of which 4096"
    ):
        sizes = {0: Dim("T", min=1, max=200), 1: Dim("S", min=1, max=200)}
        torch_opaque.export(torch.sin, (x,), "m.so", dynamic_shapes=(sizes,))


def test_sizes_of_results_that_follow_from_others(tmp_path):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(3, 4, 5, stride=2)

        def forward(self, x, y):
            joined = torch.cat([x, x, y], 1)
            return joined, self.conv(y), x.flatten(), x.transpose(0, 1), y.sum(1)

    B, T = Dim("B", min=1, max=3), Dim("T", min=5, max=9)
    model = Both().eval()
    made = torch_opaque.export(
        model,
        (torch.randn(2, 3, 6), torch.randn(2, 3, 6)),
        tmp_path / "m.so",
        dynamic_shapes=({0: B, 2: T}, {0: B, 2: T}),
    )
    text = made.header.read_text()
    for line in (
        "output_0 float32[B, 9, T]",
        "output_1 float32[B, 4, ?]",
        "output_2 float32[3*B*T]",
        "output_3 float32[3, B, T]",
        "int m_shape(int64_t B, int64_t T, int output_number, int64_t *out_sizes);",
    ):
        assert line in text
    model.to(D)
    with Model(made.library) as opened, torch.no_grad():
        for b, t in itertools.product((1, 3), (5, 6, 9)):
            x, y = torch.randn(b, 3, t), torch.randn(b, 3, t)
            wanted = tensors(model(x.to(D), y.to(D)))
            assert [opened.shape((b, t), k) for k in range(5)] == [w.shape for w in wanted]
            got = [torch.zeros_like(w) for w in wanted]
            assert opened.run((x, y), got, (b, t)) == 0, opened.error()
            assert all(map(torch.equal, wanted, got))
        with pytest.raises(ValueError, match="was not exported for these sizes"):
            opened.shape((4, 5), 0)
        with pytest.raises(ValueError, match="m has no output 5"):
            opened.shape((3, 5), 5)


def test_formulas():
    from torch_opaque.exporting import _following

    sizes = list(itertools.product(range(1, 4), range(2, 6)))
    for text, of in {
        "2*T": lambda b, t: 2 * t,
        "B - 1": lambda b, t: b - 1,
        "B*T + 3": lambda b, t: b * t + 3,
        "5*B*T": lambda b, t: 5 * b * t,
        "?": lambda b, t: b + t,
        1: lambda b, t: t,
    }.items():
        assert _following({key: (4, of(*key)) for key in sizes}, ["B", "T"]) == {1: text}


def test_names_that_are_words_of_c(tmp_path):
    def fn(int, model, T, class_, class__0):  # noqa: A002
        return {"int": int + model, "return": T * 2, "T": class_ + class__0}

    made = torch_opaque.export(
        fn,
        [torch.ones(2, 3)] * 5,
        tmp_path / "m.so",
        dynamic_shapes=[{0: Dim("T", min=1, max=2)}] * 5,
    )
    line = (
        "int m_run(opaque_model *model, int64_t T, const float *int_1, const float *model_1, const float *T_1, const float *class_1, "
        "const float *class__0, float *int_out, float *return_out, float *T_out);"
    )
    assert line in made.header.read_text()


def test_tensors_that_sizes_reach_in_another_order(tmp_path):
    one, two = torch.full((4,), 1.0, device=D), torch.full((4,), 2.0, device=D)

    def fn(x):
        return (x[:1] - two) * one if x.shape[0] % 2 else (x[:1] * one) - two

    made = torch_opaque.export(
        fn, (torch.ones(2, 4),), tmp_path / "m.so", dynamic_shapes=({0: Dim("N", min=1, max=4)},)
    )
    with Model(made.library) as opened:
        for n in (1, 2, 3, 4):
            got = torch.zeros(1, 4)
            assert opened.run((torch.full((n, 4), 5.0),), (got,), (n,)) == 0, opened.error()
            assert torch.equal(got, torch.full((1, 4), 3.0))


def test_a_state_that_some_sizes_write(tmp_path):
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(64, 64))

        def forward(self, x):
            if x.shape[0] == 3:
                self.seen.add_(1)
            return x @ self.seen

    made = torch_opaque.export(
        Counter(),
        (torch.ones(2, 64),),
        tmp_path / "m.so",
        dynamic_shapes=({0: Dim("N", min=1, max=3)},),
    )
    with Model(made.library) as opened:
        seen = 0
        for n in (1, 3, 2, 3, 3, 1, 2, 2, 3, 1):
            seen += n == 3
            got = torch.full((n, 64), 7.0)
            assert opened.run((torch.ones(n, 64),), (got,), (n,)) == 0, opened.error()
            assert torch.equal(got, torch.full((n, 64), 64.0 * seen))


# ---- what cannot be exported


def test_an_operator_without_a_kernel(tmp_path):
    def fn(x):
        return torch.linalg.svdvals(x + 1)

    with pytest.raises(
        RuntimeError,
        match=r"linalg_svd.*, recorded at test_export.py:\d+, has no kernel of its own",
    ):
        torch_opaque.export(fn, (torch.randn(4, 4),), tmp_path / "m.so")
    assert not list(tmp_path.iterdir())


def test_python_that_looks(tmp_path):
    with pytest.raises(RuntimeError, match=r"test_export.py:\d+ needs a value"):
        torch_opaque.export(lambda x: x * x.sum().item(), (torch.ones(3),), tmp_path / "m.so")
    with pytest.raises(torch_opaque.ExportError, match="the result output is on cpu"):
        torch_opaque.export(lambda x: torch.ones(3), (torch.ones(3),), tmp_path / "m.so")
    with pytest.raises(RuntimeError, match="draws from 2 generators"):
        other = torch.Generator(D)
        torch_opaque.export(
            lambda x: torch.rand_like(x) + torch.rand(3, device=D, generator=other),
            (torch.ones(3),),
            tmp_path / "m.so",
        )
    with pytest.raises(RuntimeError, match="it writes to argument 0"):
        torch_opaque.export(lambda x: x.add_(1), (torch.ones(3),), tmp_path / "m.so")


def test_no_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(
        torch_opaque.ExportError, match="needs a C compiler: CC is no-such-compiler"
    ):
        torch_opaque.export(torch.sin, (torch.ones(3),), tmp_path / "m.so")
    monkeypatch.delenv("CC")
    with pytest.raises(ValueError, match='the processor is "sse"; known are avx2 and avx512'):
        torch_opaque.export(torch.sin, (torch.ones(3),), tmp_path / "m.so", cpu="sse")


# ---- the files


@pytest.fixture(scope="module")
def mlp(tmp_path_factory):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("mlp")
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    x = torch.randn(100, 64)
    made = torch_opaque.export(model, (x,), folder / "mlp.so")
    with torch.no_grad():
        return made, model.to(D), x, model.to(D)(x.to(D)).cpu()


def test_two_builds_are_equal(tmp_path):
    model, x = nn.Sequential(nn.Linear(64, 80), nn.GELU()), torch.randn(70, 64)
    made = [
        torch_opaque.export(model, (x,), tmp_path / folder / "mlp.so") for folder in ("one", "two")
    ]
    for kind in ("library", "header", "weights"):
        one, two = (getattr(m, kind).read_bytes() for m in made)
        assert one == two, kind


def test_what_it_needs(mlp):
    made = mlp[0]
    needed = subprocess.run(
        ["readelf", "-d", made.library], capture_output=True, text=True, check=True
    ).stdout
    libraries = [
        line.split("[")[1].rstrip("]") for line in needed.splitlines() if "(NEEDED)" in line
    ]
    assert set(libraries) <= {"libc.so.6", "libm.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2"}
    assert made.library.stat().st_size < 600_000
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", made.library], capture_output=True, text=True, check=True
    )
    names = {line.split()[-1] for line in symbols.stdout.splitlines()}
    assert names == {
        "mlp_open",
        "mlp_run",
        "mlp_seed",
        "mlp_close",
        "mlp_error",
        "opaque_model_library",
    }


def test_other_weights(mlp, tmp_path):
    made = mlp[0]
    good = made.weights.read_bytes()
    for name, data, says in (
        ("short", good[:-1], "another size than the model's weights"),
        ("other", good[:-1] + b"?", "these are not the model's weights"),
        ("empty", b"", "another size"),
    ):
        path = tmp_path / name
        path.write_bytes(data)
        model = Model(made.library, path)
        assert model.code == 4 and says in model.error() and not model.handle
    model = Model(made.library, tmp_path / "none")
    assert model.code == 4 and "No such file" in model.error()
    assert Model(made.library, threads=0).code == 1


def test_an_index_out_of_range(tmp_path):
    made = torch_opaque.export(nn.Embedding(10, 4), (torch.tensor([1, 2]),), tmp_path / "embed.so")
    with Model(made.library) as model:
        got = torch.zeros(2, 4)
        assert model.run((torch.tensor([1, 10]),), (got,)) == 1
        assert model.error().startswith("aten::embedding (recorded at test_export.py:")
        assert "index 10 is out of bounds for dimension 0 with size 10" in model.error()
        assert model.run((torch.tensor([1, 9]),), (got,)) == 0
        assert model.function("run")(model.handle, None, ctypes.c_void_p(got.data_ptr())) == 1
        assert model.error() == "input input is missing"


def test_the_interface_of_any_model(mlp):
    """What dlsym() finds: info and six functions, as opaque_model.h has them."""
    find = ctypes.CDLL(str(mlp[0].library)).opaque_model_library
    find.restype = ctypes.POINTER(ctypes.c_void_p * 7)
    assert all(find().contents)


def test_threads(mlp, in_threads):
    """Several run one model at once, each on several threads of the model."""
    made, _, x, wanted = mlp
    for threads in (1, 3):
        with Model(made.library, threads=threads) as model:
            results = [[] for _ in range(4)]

            def body(found, model=model):
                for _ in range(20):
                    got = torch.zeros_like(wanted)
                    found.append(model.run((x,), (got,)) == 0 and torch.equal(got, wanted))

            in_threads(body, results)
            assert results == [[True] * 20] * 4


def test_other_processors(tmp_path):
    """Each level is linked on any host; the host's own gives the same bits."""
    model, x = nn.Sequential(nn.Linear(64, 80), nn.GELU()).to(D), torch.randn(70, 64)
    with torch.no_grad():
        wanted = model(x.to(D)).cpu()
    with open("/proc/cpuinfo") as file:
        flags = file.read()
    for level in ("avx2", "avx512"):
        made = torch_opaque.export(model, (x,), tmp_path / f"on_{level}.so", cpu=level)
        opened = Model(made.library)
        if level == "avx512" and not all(
            f"avx512{part}" in flags for part in ("f", "bw", "dq", "vl", "cd")
        ):
            assert opened.code == 2 and "for processors with avx512" in opened.error()
            continue
        with opened:
            got = torch.zeros_like(wanted)
            assert opened.run((x,), (got,)) == 0
            assert torch.equal(got, wanted)


def test_opq_run(mlp, tmp_path):
    made, _, x, wanted = mlp
    np.save(tmp_path / "x.npy", x.numpy())
    command = [OPQ_RUN, str(made.library), "--input", str(tmp_path / "x.npy"), "--threads", "2"]
    shown = subprocess.run(
        [*command, "--repeat", "3"], capture_output=True, text=True, check=True
    ).stdout
    assert "median of 3" in shown and "output f32[100,64]" in shown
    subprocess.run([*command, "--output", f"output={tmp_path / 'y.npy'}"], check=True)
    assert np.array_equal(np.load(tmp_path / "y.npy"), wanted.numpy())
    for wrong, says in (
        (["--input", "y=1"], "no such tensor"),
        (["--size", "T=1"], "no such size"),
        (["--nothing", "1"], "no such option"),
        (["--weights", "/nowhere"], "No such file"),
    ):
        failed = subprocess.run(
            [OPQ_RUN, str(made.library), *wrong], capture_output=True, text=True
        )
        assert failed.returncode == 2 and says in failed.stderr
    assert (
        "no file is given"
        in subprocess.run([OPQ_RUN, made.library], capture_output=True, text=True).stderr
    )
    assert subprocess.run([OPQ_RUN], capture_output=True).returncode == 2
    assert (
        "cannot open"
        in subprocess.run([OPQ_RUN, "/nowhere"], capture_output=True, text=True).stderr
    )


def test_an_exported_program(tmp_path):
    """Of torch.export, whose tensors are the CPU's."""
    model, x = (
        nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).eval(),
        torch.randn(3, 8),
    )
    made = torch_opaque.export(torch.export.export(model, (x,)), (x,), tmp_path / "program.so")
    with torch.no_grad():
        wanted = model.to(D)(x.to(D)).cpu()
    with Model(made.library) as opened:
        got = torch.zeros_like(wanted)
        assert opened.run((x,), (got,)) == 0
        assert torch.equal(got, wanted)


class Quantized(nn.Module):
    """A weight of int8 that a product widens, and a dynamically quantized layer, whose sums are of int8."""

    def __init__(self):
        super().__init__()
        for name, shape in (("up", (96, 64)), ("down", (64, 96))):
            self.register_buffer(name, torch.randint(-128, 128, shape, dtype=torch.int8))

    def forward(self, x):
        h = nn.functional.linear(x, self.up.to(x.dtype)) * 0.01
        scale = h.abs().amax(1, keepdim=True).clamp(min=1e-6) / 127
        return torch._int_mm((h / scale).round().to(torch.int8), self.down.t()).float() * scale


@pytest.mark.parametrize("level", [None, "avx2"])
@pytest.mark.parametrize("rows", [1, 40])
def test_products_of_int8(tmp_path, rows, level):
    check(Quantized(), [torch.randn(rows, 64)], tmp_path, cpu=level)
