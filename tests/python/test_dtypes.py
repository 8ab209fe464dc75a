"""Every dtype of PyTorch: what holds elements is moved, viewed, copied and printed; what computes gives the CPU's result or error."""

import contextlib
import itertools
import random
import re
import warnings

import pytest
import torch
import torch_opaque
from torch import nn

D = "opaque"
PLAIN = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex32, torch.complex64, torch.complex128),
]
SMALL = [
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
    *(torch.float8_e8m0fnu, torch.float4_e2m1fn_x2),
]
BITS = [torch.bits8, torch.bits16, torch.bits1x8, torch.bits2x4, torch.bits4x2]
ALL = [*PLAIN, *SMALL, *BITS]


def raw(dtype, *shape):
    """A tensor of any bits."""
    count = torch.Size(shape).numel() * dtype.itemsize
    data = torch.arange(count, dtype=torch.uint8)
    if dtype is torch.bool:
        return (data % 2 == 1).view(shape)
    return data.view(dtype).view(shape)


def bits(x):
    x = x.contiguous().view(-1)
    return x.view(torch.uint8) if x.numel() else x


MOVES = {
    "to and back": lambda x: x,
    "clone": lambda x: x.clone(),
    "reshape": lambda x: x.reshape(2, 6),
    "view": lambda x: x.view(4, 3),
    "transpose": lambda x: x.t(),
    "contiguous": lambda x: x.t().contiguous(),
    "slice": lambda x: x[1:, ::2],
    "slice clone": lambda x: x[1:, ::2].clone(),
    "select": lambda x: x[1],
    "expand": lambda x: x[:1].expand(3, 4),
    "flatten": lambda x: x.t().reshape(-1),
    "as_strided": lambda x: x.as_strided((2, 2), (4, 1), 3),
    "unfold": lambda x: x.unfold(1, 2, 1),
    "bytes": lambda x: x.view(torch.uint8),
    "copy_": lambda x: torch.empty_like(x).copy_(x),
    "copy_ part": lambda x: torch.empty_strided(
        x.shape, (1, 5), dtype=x.dtype, device=x.device
    ).copy_(x),
    "empty": lambda x: torch.empty(3, 4, dtype=x.dtype, device=x.device).copy_(x),
    "detach": lambda x: x.detach(),
    "zeros": lambda x: torch.zeros(2, 3, dtype=x.dtype, device=x.device),
    "zeros_like": lambda x: torch.zeros_like(x),
    "zero_": lambda x: x.clone().zero_(),
    "ones": lambda x: torch.ones(2, dtype=x.dtype, device=x.device),
    "full": lambda x: torch.full((2,), 1, dtype=x.dtype, device=x.device),
    "fill_": lambda x: x.clone().fill_(2),
    "cat": lambda x: torch.cat([x, x]),
    "stack": lambda x: torch.stack([x, x]),
    "index": lambda x: x[torch.tensor([0, 2], device=x.device)],
    "setitem": lambda x: x.clone().index_copy_(0, torch.tensor([0], device=x.device), x[1:2]),
    "where": lambda x: torch.where(torch.tensor(True, device=x.device), x, x),
    "equal": lambda x: torch.equal(x, x.clone()),
    "eq": lambda x: x == x,
    "item": lambda x: x[0, 1].item(),
    "tolist": lambda x: x.tolist(),
    "repeat": lambda x: x.repeat(2, 1),
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1),
    "resize_": lambda x: x.clone().resize_(2, 3),
    "deepcopy": lambda x: __import__("copy").deepcopy(x),
}


def outcome(f, *arguments):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = f(*arguments)
            return result.cpu() if isinstance(result, torch.Tensor) else result
    except Exception as error:
        return type(error).__name__, str(error).splitlines()[0]


def equal(got, want, loose=False):
    """loose: an operand was of 16 bits, to which a fused result is not rounded on its way to a wider one."""
    if not isinstance(want, torch.Tensor) or not isinstance(got, torch.Tensor):
        return repr(got) == repr(want)
    if got.dtype != want.dtype or got.shape != want.shape:
        return False
    if want.dtype.is_floating_point and want.dtype.itemsize > 1 or want.dtype.is_complex:
        pair = (want, got)
        if want.dtype.is_complex:
            pair = [torch.view_as_real(t.resolve_conj().to(torch.complex128)) for t in pair]
        narrow = want.dtype in (torch.float16, torch.bfloat16, torch.complex32)
        tolerance = 2e-2 if loose or narrow else 1e-4
        want, got = (t.double() for t in pair)
        return torch.allclose(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)
    return torch.equal(bits(got), bits(want))


@pytest.mark.parametrize("dtype", ALL)
def test_moved_and_viewed(dtype):
    x, wrong = raw(dtype, 3, 4), []
    for name, f in MOVES.items():
        if name in ("full", "fill_", "ones", "eq") and dtype in BITS:
            continue  # covered by test_errors_of_bits
        want, got = outcome(f, x.clone()), outcome(f, x.clone().to(D))
        if isinstance(want, list) or isinstance(got, list):
            want, got = repr(want), repr(got)
        exact = not isinstance(want, torch.Tensor) or not isinstance(got, torch.Tensor)
        same = (
            equal(got, want)
            if exact
            else got.dtype == want.dtype and torch.equal(bits(got), bits(want))
        )
        if not same:
            wrong.append(f"{name}: {got}, the CPU gives {want}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("dtype", BITS)
def test_errors_of_bits(dtype):
    x = raw(dtype, 3, 4)
    for name in ("full", "fill_", "ones", "eq"):
        want, got = outcome(MOVES[name], x.clone()), outcome(MOVES[name], x.clone().to(D))
        assert isinstance(want, tuple) == isinstance(got, tuple), (name, got, want)


@pytest.mark.parametrize("dtype", ALL)
def test_viewed_as_another(dtype):
    x = raw(dtype, 4, 16)
    for other in ALL:
        if torch.bool in (dtype, other) and dtype is not other:
            continue  # bytes other than 0 and 1 are no truth values
        want, got = outcome(x.view, other), outcome(x.to(D).view, other)
        assert equal(got, want) or torch.equal(bits(got), bits(want)), (other, got, want)


@pytest.mark.parametrize("dtype", ALL)
def test_converted(dtype):
    x = torch.tensor([[0, 1, 2], [3, 4, 100]])
    have = outcome(x.to, dtype)
    for other in ALL:
        if not isinstance(have, torch.Tensor):
            break
        want, got = outcome(have.to, other), outcome(have.to(D).to, other)
        assert equal(got, want), (other, got, want)
        want, got = outcome(have.to, "cpu", other), outcome(have.to(D).to, "cpu", other)
        assert equal(got, want), (other, got, want)


@pytest.mark.parametrize("dtype", ALL)
def test_printed(dtype):
    x = raw(dtype, 2, 3)
    want, got = outcome(repr, x), outcome(repr, x.to(D))
    if isinstance(want, tuple):
        assert isinstance(got, tuple) and got[0] == want[0]
    else:
        got = got.replace("device='opaque:0'", "")
        plain = [re.sub(r"[\s,]+", " ", text).replace(" )", ")") for text in (got, want)]
        assert plain[0] == plain[1]  # but for the place of line breaks


def test_quantised_tensors_are_refused():
    q = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    with pytest.raises((NotImplementedError, RuntimeError)):
        q.to(D)


# ---- pairs of dtypes

BINARY = [
    *("add", "sub", "mul", "div", "floor_divide", "remainder", "fmod", "pow", "atan2", "hypot"),
    *(
        "maximum",
        "minimum",
        "fmax",
        "eq",
        "lt",
        "logical_and",
        "bitwise_and",
        "bitwise_or",
        "copysign",
    ),
    *(
        "logaddexp",
        "xlogy",
        "ldexp",
        "complex",
        "polar",
        "heaviside",
        "nextafter",
        "gcd",
        "true_divide",
    ),
    *("bitwise_left_shift", "float_power", "isclose", "matmul", "dot", "outer"),
]
INPLACE = [
    *(
        "add_",
        "sub_",
        "mul_",
        "div_",
        "floor_divide_",
        "remainder_",
        "fmod_",
        "pow_",
        "atan2_",
        "copy_",
    ),
    *("eq_", "lt_", "logical_and_", "bitwise_and_", "copysign_", "xlogy_", "ldexp_", "heaviside_"),
    *("masked_fill_", "masked_scatter_", "index_put_"),
]
OUT = ["add", "mul", "div", "pow", "complex", "maximum", "eq", "atan2", "bitwise_and", "matmul"]


# The CPU has a kernel of its own, which lacks some exponents; other devices compute a * 2**b, and so have all.
MORE = {"ldexp", "ldexp_"}


def small(dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 4, (3,), generator=generator).to(dtype)


def apply(kind, name, device, dtypes):
    a, b, *rest = (small(d, i).to(device) for i, d in enumerate(dtypes))
    if kind == "function":
        return getattr(torch, name)(a, b)
    if kind == "out":
        return getattr(torch, name)(a, b, out=rest[0])
    mask = torch.tensor([True, False, True], device=device)
    if name == "masked_fill_":
        return a.masked_fill_(mask, b[0])
    if name == "masked_scatter_":
        return a.masked_scatter_(mask, b)
    if name == "index_put_":
        return a.index_put_((torch.tensor([0, 2, 1], device=device),), b)
    return getattr(a, name)(b)


def cases():
    for name in BINARY:
        yield "function", name
    for name in INPLACE:
        yield "inplace", name
    for name in OUT:
        yield "out", name


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind, name", cases())
def test_pairs(kind, name):
    dtypes = [*PLAIN, torch.float8_e4m3fn, torch.float8_e5m2]
    if kind == "out":
        picked = random.Random(name).sample(list(itertools.product(dtypes, repeat=3)), 200)
    else:
        picked = list(itertools.product(dtypes, repeat=2))
    wrong = []
    for pair in picked:
        want = outcome(apply, kind, name, "cpu", pair)
        got = outcome(apply, kind, name, D, pair)
        if name in MORE and isinstance(want, tuple) and want[0] == "NotImplementedError":
            continue
        if not equal(got, want, any(d in (torch.float16, torch.bfloat16) for d in pair)):
            wrong.append(f"{[str(d)[6:] for d in pair]}: {got}, the CPU gives {want}")
    assert not wrong, f"{len(wrong)} of {len(picked)} differ:\n" + "\n".join(wrong[:30])


# ---- reductions that name a dtype, write into one, or both


def reduced(name, device, dtype, named, into):
    x = (torch.arange(12).reshape(4, 3) % 5 / 3).to(device, dtype)
    given = {} if named is None else {"dtype": named}
    if into is not None:
        given["out"] = torch.empty(3, device=device, dtype=into)
    return getattr(torch, name)(x, 0, **given)


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "any", "all", "argmax", "argmin"])
def test_reductions_into_another_dtype(name):
    names = [None, torch.float32, torch.float64, torch.int64, torch.bool]
    named = names if name in ("sum", "mean", "prod") else [None]
    own = [torch.float32, torch.float64, torch.int64, torch.int32, torch.bool, torch.uint8]
    wrong = []
    for triple in itertools.product(own, named, [*own, None]):
        want, got = (outcome(reduced, name, d, *triple) for d in ("cpu", D))
        refused = isinstance(want, tuple) and isinstance(got, tuple) and want[0] == got[0]
        if not refused and not equal(got, want, False):
            wrong.append(f"{triple}: {got}, the CPU gives {want}")
    assert not wrong, "\n".join(wrong[:30])


# ---- what a half cannot hold on the way


HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


@HALVES
@pytest.mark.parametrize("mode", ["fused", "unfused", "eager"])
def test_halves_are_computed_in_float(dtype, mode):
    """A variance beyond float16, an eps below it, and factors that are no halves."""
    torch.manual_seed(0)
    x = (torch.randn(4, 64) * 1000).to(dtype)
    a, b, c = (torch.randn(8, 8).to(dtype) for _ in range(3))

    def results(x, a, b, c):
        yield x.std(1)
        yield torch.std_mean(x, 1)[0]
        yield nn.functional.layer_norm(x * 0 + 3, (64,), eps=1e-12)
        yield nn.functional.batch_norm(x, x[0] * 0, x[0].abs(), x[1] / 9, x[2] / 9)
        yield torch.addmm(a, b, c, beta=0.2, alpha=0.6)

    def wide(t):
        return t.double()

    def on_device(t):
        return t.to("opaque")

    with contextlib.nullcontext() if mode == "fused" else getattr(torch_opaque, mode)():
        got = [t.cpu() for t in results(*map(on_device, (x, a, b, c)))]
    for g, w in zip(got, results(*map(wide, (x, a, b, c))), strict=True):
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(g.double(), w, rtol=eps, atol=eps * w.abs().mean().item())
