"""What functions of the runtime compute over whole buffers, and what else training needs, natively: against the CPU, under strict(),
so that no CPU kernel is called."""

import math
import random

import pytest
import torch
import torch.nn.functional as F
import torch_opaque
from moving import DTYPES

D = "opaque"


@pytest.fixture(autouse=True)
def native():
    with torch_opaque.strict():
        yield


def both(f, *tensors, rtol=1e-5, atol=1e-6):
    """Values, dtypes and gradients of the tensors that have one."""
    sides = []
    for device in ("cpu", D):
        leaves = [t.detach().clone().to(device).requires_grad_(t.requires_grad) for t in tensors]
        out = f(*leaves)
        outs = list(out) if isinstance(out, (tuple, list)) else [out]
        slopes = [t for t in leaves if t.requires_grad]
        if slopes:
            real = [o for o in outs if o.requires_grad]
            numbers = torch.Generator().manual_seed(1)
            weights = [torch.randn(o.shape, generator=numbers).to(o.dtype).to(device) for o in real]
            outs += torch.autograd.grad(real, slopes, weights)
        sides.append([o.detach().cpu() for o in outs])
    for want, got in zip(*sides, strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)


# ---- products by groups


def loop(a, b, ends):
    """One product for each group."""
    ends = ends.tolist()
    starts = [0, *ends[:-1]]
    if a.dim() == 2 and b.dim() == 3:
        parts = [a[i:j] @ b[g] for g, (i, j) in enumerate(zip(starts, ends, strict=True))]
        return torch.cat([*parts, a.new_zeros(len(a) - ends[-1], b.shape[-1])])
    if a.dim() == 3:
        parts = [a[g] @ b[:, i:j] for g, (i, j) in enumerate(zip(starts, ends, strict=True))]
        return torch.cat([*parts, a.new_zeros(a.shape[1], b.shape[1] - ends[-1])], 1)
    return torch.stack([a[:, i:j] @ b[i:j] for i, j in zip(starts, ends, strict=True)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", ["rows", "columns", "sums"])
@pytest.mark.parametrize("turned", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_grouped_mm_is_a_loop_of_products(dtype, form, turned):
    """Bit for bit, empty groups and rows behind the last one included."""
    torch.manual_seed(0)
    m, k, n = 24, 40, 72
    shapes = {"rows": ((m, k), (4, k, n)), "columns": ((4, m, k), (k, n)), "sums": ((m, k), (k, n))}
    ends = torch.tensor([3, 3, 20, 22], dtype=torch.int32)
    a, b = (
        torch.randn(s).to(dtype) if not t else torch.randn(*s[:-2], s[-1], s[-2]).to(dtype).mT
        for s, t in zip(shapes[form], turned, strict=True)
    )
    got = torch._grouped_mm(a.to(D), b.to(D), offs=ends.to(D))
    with torch_opaque.unfused():
        want = loop(a.to(D), b.to(D), ends)
        assert torch.equal(torch._grouped_mm(a.to(D), b.to(D), offs=ends.to(D)).cpu(), got.cpu())
    assert torch.equal(got.cpu(), want.cpu())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_grouped_mm(dtype):
    torch.manual_seed(0)
    x, w = torch.randn(12, 16).to(dtype), torch.randn(3, 16, 8).to(dtype)
    ends = torch.tensor([4, 4, 12], dtype=torch.int32)
    tolerance = (
        {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    )
    f = torch.nn.functional.grouped_mm
    both(lambda x, w, e: f(x, w, offs=e), x.requires_grad_(), w.requires_grad_(), ends, **tolerance)
    both(
        lambda x, w: f(x, w),
        torch.randn(3, 8, 16).requires_grad_(),
        torch.randn(3, 16, 8).requires_grad_(),
        atol=1e-5,
    )


@pytest.mark.parametrize(
    "words, call",
    [
        ("int32", lambda a, b, e: torch._grouped_mm(a, b, offs=e.long())),
        ("contraction", lambda a, b, e: torch._grouped_mm(a[:, :3], b, offs=e)),
        ("provide offsets", lambda a, b, e: torch._grouped_mm(a, b)),
        ("Float32, BFloat16", lambda a, b, e: torch._grouped_mm(a.double(), b.double(), offs=e)),
        ("batch sizes", lambda a, b, e: torch._grouped_mm(a, b[:1], offs=e)),
        ("Bias", lambda a, b, e: torch._grouped_mm(a, b, offs=e, bias=a)),
    ],
)
def test_errors_of_grouped_mm(words, call):
    operands = torch.randn(8, 4), torch.randn(2, 4, 4), torch.tensor([3, 8], dtype=torch.int32)
    for device in ("cpu", D):
        with pytest.raises(RuntimeError, match=words):
            call(*(t.to(device) for t in operands))


@pytest.mark.parametrize("ends", [[3, 2], [-1, 2], [3, 9]])
def test_offsets_that_are_none(ends):
    a, b = torch.randn(8, 4, device=D), torch.randn(2, 4, 4, device=D)
    y = torch._grouped_mm(a, b, offs=torch.tensor(ends, dtype=torch.int32, device=D))
    with pytest.raises(RuntimeError, match="offsets must ascend.*test_routines.py"):
        y.cpu()


# ---- order


@pytest.mark.parametrize("dtype", DTYPES[:-1])
@pytest.mark.parametrize("n", [7, 8, 9, 16, 17, 24, 33, 64, 73, 97, 193, 300])
def test_sort_of_rows_of_any_length(dtype, n):
    """By insertion, by merging, by digits; numbers of all magnitudes, many of them equal."""
    torch.manual_seed(n)
    x = torch.randn(5, n) * 10.0 ** torch.randint(-4, 5, (5, n))
    x = torch.where(torch.rand(5, n) < 0.3, torch.randint(-3, 4, (5, n)), x)
    x = x.clamp(0, 255).to(dtype) if dtype == torch.uint8 else x.clamp(-120, 120).to(dtype)
    for descending in (False, True):
        both(lambda x, down=descending: x.argsort(dim=1, descending=down, stable=True), x)


@pytest.mark.parametrize("dtype", DTYPES[:-1])
@pytest.mark.parametrize(
    "shape, dim", [((), 0), ((1,), 0), ((50,), 0), ((3, 40), 1), ((33, 4), 0), ((2, 9, 3), 1)]
)
def test_sort(dtype, shape, dim):
    """Values and, where equal elements keep their order, indices; NaN is the largest."""
    torch.manual_seed(0)
    x = (torch.randn(shape) * 4).to(dtype)
    if dtype.is_floating_point and x.dim():
        x.view(-1)[::7], x.view(-1)[1::9], x.view(-1)[2::11] = math.nan, -0.0, 0.0
        x.view(-1)[-1] = -math.inf
    for descending in (False, True):
        both(lambda x, down=descending: x.sort(dim=dim, descending=down, stable=True), x)
        both(lambda x, down=descending: x.argsort(dim=dim, descending=down, stable=True), x)
    if x.dim() and dtype != torch.float16:
        k = max(1, x.shape[dim] // 3)
        for largest in (False, True):
            both(lambda x, most=largest: x.topk(k, dim, most).values, x)
        both(lambda x: x.kthvalue(k, dim).values, x)
        both(lambda x: x.median(dim, True).values, x)
        both(lambda x: x.nanmedian(dim).values, x)


def test_gradients_of_order():
    x = torch.randn(4, 9).requires_grad_()
    for f in (
        lambda x: x.sort(1).values,
        lambda x: x.topk(3).values.exp(),
        lambda x: x.median(1).values,
        lambda x: x.kthvalue(2, 0).values,
    ):
        both(f, x)


# ---- elements combined at indices


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.int64, torch.int32, torch.bfloat16]
)
@pytest.mark.parametrize("reduce", ["sum", "mean", "prod", "amax", "amin"])
def test_scatter_reduce(reduce, dtype):
    rng = random.Random(0)
    torch.manual_seed(0)
    for _ in range(6):
        shape = [rng.choice([1, 3, 8]) for _ in range(rng.randint(1, 3))]
        axis = rng.randrange(len(shape))
        index_shape = [s if d == axis else rng.randint(1, s) for d, s in enumerate(shape)]
        index_shape[axis] = rng.choice([1, 4, 19])
        index = torch.randint(shape[axis], index_shape)
        x = (torch.randn(shape) * 3).to(dtype)
        source = (torch.randn([s + (dtype != torch.float32) for s in index_shape]) * 3).to(dtype)
        close = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {}
        for own in (True, False):
            x.requires_grad_(dtype == torch.float32), source.requires_grad_(dtype == torch.float32)
            both(
                lambda x, i, s, own=own: x.scatter_reduce(axis, i, s, reduce, include_self=own),
                x,
                index,
                source,
                **close,
            )
        flat = torch.randint(shape[axis], (5,))
        whole = (torch.randn([*shape[:axis], 5, *shape[axis + 1 :]]) * 3).to(dtype)
        if reduce != "sum" and dtype != torch.bfloat16:
            both(lambda x, i, s: x.index_reduce(axis, i, s, reduce), x.detach(), flat, whole)


def test_scatter_reduce_with_a_wrong_index():
    x, index = torch.zeros(3, 4, device=D), torch.tensor([[0, 1, 7, 9]], device=D)
    for reduce in ("sum", "prod", "amax"):
        y = x.scatter_reduce(0, index, torch.ones(1, 4, device=D), reduce)
        with pytest.raises(
            RuntimeError, match="index 7 is out of bounds for dimension 0 with size 3"
        ):
            y.cpu()


# ---- counting


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8])
def test_histc_of_integers(dtype):
    """As CUDA has it; the CPU, which takes floats alone, has the same counts of them."""
    torch.manual_seed(0)
    x = torch.randint(0, 20, (300,)).to(dtype)
    for bins, low, high in ((8, 0, 7), (20, 0, 19), (5, 0, 20), (4, 3, 18), (7, 0, 0), (3, 5, 5)):
        got = torch.histc(x.to(D), bins, low, high)
        assert got.dtype == dtype
        assert torch.equal(got.cpu().float(), torch.histc(x.float(), bins, low, high)), (
            bins,
            low,
            high,
        )
    assert torch.histc(torch.full((4,), 3, dtype=dtype, device=D), 4).tolist() == [0, 0, 4, 0]
    with pytest.raises(RuntimeError, match="bins must be > 0"):
        torch.histc(x.to(D), 0)
    with pytest.raises(RuntimeError, match="max must be larger than min"):
        torch.histc(x.to(D), 3, 5, 2)


def test_bincount():
    x = torch.randint(0, 9, (50,))
    weights = torch.randn(50)
    for f in (
        lambda x, w: torch.bincount(x),
        lambda x, w: torch.bincount(x.int(), minlength=20),
        lambda x, w: torch.bincount(x, w),
        lambda x, w: torch.bincount(x, w.double()),
        lambda x, w: torch.bincount(x, x),
    ):
        both(f, x, weights)


# ---- random numbers


@pytest.mark.parametrize(
    "low, high, dtype",
    [
        (0, 2, None),
        (-5, 11, None),
        (0, 256, torch.uint8),
        (-128, 128, torch.int8),
        (0, 1 << 40, None),
        (-(1 << 62), 1 << 62, None),
        (0, 100, torch.float32),
        (0, 3, torch.bfloat16),
    ],
)
def test_randint(low, high, dtype):
    torch.manual_seed(3)
    x = torch.randint(low, high, (20000,), device=D, dtype=dtype).cpu()
    torch.manual_seed(3)
    assert torch.equal(x, torch.randint(low, high, (20000,), device=D, dtype=dtype).cpu())
    x = x.long() if dtype in (torch.uint8, torch.int8) else x
    assert x.min() >= low and x.max() < high
    place = (x.double() - low) / (high - low)
    if high - low > 1000:
        assert abs(place.mean() - 0.5) < 0.02 and abs(place.std() - 12**-0.5) < 0.02
    else:
        counts = torch.bincount((x.long() - low), minlength=high - low)
        expected = 20000 / (high - low)
        assert ((counts - expected) ** 2 / expected).sum() < 2 * (high - low) + 20


def test_random_of_every_dtype():
    for dtype, most in (
        (torch.bool, 1),
        (torch.uint8, 255),
        (torch.int64, (1 << 63) - 1),
        (torch.float32, 1 << 24),
        (torch.float16, 2048),
    ):
        x = torch.empty(4000, dtype=dtype, device=D).random_().cpu().double()
        assert x.min() >= 0 and x.max() <= most and abs(x.mean() / most - 0.5) < 0.05
    assert torch.empty(100, dtype=torch.int32, device=D).random_(5, 7).cpu().unique().tolist() == [
        5,
        6,
    ]


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_multinomial(again, dtype):
    p = torch.tensor([[0.1, 0.0, 0.3, 0.6], [5.0, 1.0, 0.0, 2.0]]).to(dtype)
    torch.manual_seed(5)
    once = torch.multinomial(p.to(D), 2, again).cpu()
    torch.manual_seed(5)
    assert torch.equal(once, torch.multinomial(p.to(D), 2, again).cpu())
    assert once.dtype == torch.int64 and once.shape == (2, 2)
    draws = torch.multinomial(p[1].to(D).expand(4000, 4), 2 if not again else 3, again).cpu()
    assert (draws != 2).all() and (again or (draws[:, 0] != draws[:, 1]).all())
    seen = torch.bincount(draws[:, 0], minlength=4) / len(draws)
    assert (seen - p[1].float() / p[1].float().sum()).abs().max() < 0.04
    many = torch.rand(5, 300)
    many[:, ::3] = 0
    drawn = torch.multinomial(many.to(D), 200, again).cpu()
    assert (many.gather(1, drawn) > 0).all()
    if not again:
        assert all(len(set(row.tolist())) == 200 for row in drawn)


# ---- evenly spaced


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32])
@pytest.mark.parametrize("steps", [0, 1, 2, 7, 100])
def test_linspace(dtype, steps):
    for start, end in ((0, 1), (-3, 7), (5.5, -2.25)):
        want = torch.linspace(start, end, steps, dtype=dtype)
        got = torch.linspace(start, end, steps, dtype=dtype, device=D)
        assert got.dtype == dtype
        torch.testing.assert_close(got.cpu(), want, rtol=1e-6, atol=1e-6)
    if dtype == torch.float32:
        want = torch.logspace(-2, 3, steps, base=2)
        torch.testing.assert_close(torch.logspace(-2, 3, steps, base=2, device=D).cpu(), want)
    with pytest.raises(RuntimeError, match="number of steps must be non-negative"):
        torch.linspace(0, 1, -1, device=D)


# ---- losses and activations


def test_probabilities_that_are_none():
    for p, words in (
        ([0.5, -0.1], "probability tensor contains either"),
        ([0.5, math.nan], "probability tensor contains either"),
        ([0.5, math.inf], "probability tensor contains either"),
        ([0.0, 0.0], "sum of probabilities <= 0"),
    ):
        for again in (False, True):
            with pytest.raises(RuntimeError, match=words):
                torch.multinomial(torch.tensor(p, device=D), 2, again).cpu()
    for p in (1.5, -0.5, math.nan):
        loss = F.binary_cross_entropy(torch.tensor([0.5, p], device=D), torch.ones(2, device=D))
        with pytest.raises(RuntimeError, match="all elements of input should be between 0 and 1"):
            loss.item()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_binary_cross_entropy(reduction, weighted):
    torch.manual_seed(0)
    p, target, weight = torch.rand(5, 6), torch.rand(5, 6), torch.rand(6)
    p.view(-1)[:3] = torch.tensor([0.0, 1.0, 1e-30])
    both(
        lambda p, t, w: F.binary_cross_entropy(p, t, w if weighted else None, reduction=reduction),
        p.requires_grad_(),
        target,
        weight,
        rtol=1e-4,
    )


@pytest.mark.parametrize("f", ["leaky_relu_", "elu_", "celu_", "selu_"])
def test_activations_in_place(f):
    x = torch.randn(7, 5).requires_grad_()
    both(lambda x: getattr(F, f)(x * 1.5) * 2, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nextafter(dtype):
    finest = torch.finfo(dtype)
    some = [
        0.0,
        -0.0,
        1,
        -1,
        math.inf,
        -math.inf,
        math.nan,
        finest.max,
        -finest.max,
        finest.tiny,
        finest.smallest_normal / 2,
        -finest.smallest_normal / 2,
    ]
    x = torch.tensor(some, dtype=dtype)
    whole = {torch.float32: torch.int32, torch.float64: torch.int64}[dtype]
    a, b = x.repeat_interleave(len(x)), x.repeat(len(x))
    got, want = torch.nextafter(a.to(D), b.to(D)).cpu(), torch.nextafter(a, b)
    nan = want.isnan()
    assert torch.equal(got.isnan(), nan) and torch.equal(
        got[~nan].view(whole), want[~nan].view(whole)
    )


# ---- all of it


@pytest.mark.parametrize("name", ["Mixtral", "Qwen2Moe", "Qwen3Moe"])
def test_mixtures_of_experts_of_transformers(name):
    """Values and gradients of a small model on its default path, on which devices other than the CPU count integers."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=40,
        moe_intermediate_size=24,
        shared_expert_intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_experts=4,
        num_local_experts=4,
        head_dim=8,
        num_experts_per_tok=2,
        decoder_sparse_step=1,
        max_position_embeddings=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    words = torch.randint(3, 50, (2, 9))
    sides = []
    for device in ("cpu", D):
        model = model.to(device)
        model.zero_grad()
        out = model(words.to(device), labels=words.to(device))
        out.loss.backward()
        sides.append(
            [out.loss, out.logits, *(p.grad for p in model.parameters() if p.grad is not None)]
        )
    for want, got in zip(*([t.detach().cpu() for t in side] for side in sides), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5)
