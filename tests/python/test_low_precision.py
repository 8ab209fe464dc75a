"""Products of int8: exact sums, and weights that the product's kernel widens, natively; against exact sums and the CPU."""

import pytest
import torch
import torch.nn.functional as F
import torch_opaque

D = "opaque"
SIZES = (1, 3, 17, 63, 65)
SHAPES = [(m, k, SIZES[(i + j) % 5]) for i, m in enumerate(SIZES) for j, k in enumerate(SIZES)]
SHAPES += [(16, 640, 70), (130, 2101, 33), (2, 4100, 300), (1, 300, 1100)]
FLOATS = {torch.float32: 2**-24, torch.float16: 2**-11, torch.bfloat16: 2**-8}


def whole(*shape):
    """Any int8; the least and the largest more often than others."""
    numbers = torch.randint(-150, 150, shape)
    return numbers.clamp(-128, 127).to(torch.int8)


@pytest.mark.parametrize("m, k, n", SHAPES)
def test_sums_of_int8_are_exact(m, k, n):
    a, b, w = whole(m, k), whole(k, n), whole(n, k)
    with torch_opaque.strict():
        for left in (a.to(D), a.t().contiguous().to(D).t(), whole(2 * m, k).to(D)[::2]):
            for right in (b.to(D), w.to(D).t(), whole(k, 3 * n).to(D)[:, 1::3]):
                got = torch._int_mm(left, right)
                assert got.dtype == torch.int32
                assert torch.equal(got.cpu().long(), left.cpu().long() @ right.cpu().long())


@pytest.mark.parametrize("left, right", [(-128, -128), (-128, 127), (127, -128), (127, 127)])
@pytest.mark.parametrize("k", [1, 2, 4, 7, 515, 2600])
def test_sums_of_extremes(left, right, k):
    a = torch.full((19, k), left, dtype=torch.int8, device=D)
    b = torch.full((k, 35), right, dtype=torch.int8, device=D)
    for _ in range(3):  # from the second run on it may be packed
        assert (torch._int_mm(a, b).cpu() == left * right * k).all()


def test_sums_of_nothing():
    with torch_opaque.strict():
        for m, k, n in ((0, 4, 5), (3, 0, 5), (3, 4, 0)):
            got = torch._int_mm(whole(m, k).to(D), whole(k, n).to(D))
            assert torch.equal(got.cpu(), torch.zeros(m, n, dtype=torch.int32))
            scaled = torch._weight_int8pack_mm(
                torch.ones(m, k).to(D), whole(n, k).to(D), torch.ones(n).to(D)
            )
            assert torch.equal(scaled.cpu(), torch.zeros(m, n))


def dequantized(a, w, row, column, bias):
    return torch._int_mm(a, w.t()).float() * row * column + bias


def test_dequantization_is_the_epilogue():
    args = [whole(33, 70), whole(90, 70), torch.rand(33, 1), torch.rand(90), torch.randn(90)]
    on = [t.to(D) for t in args]
    text = str(torch_opaque.graph(lambda: dequantized(*on), stage="fused"))
    assert text.count("kernel ") == 1 and "matmul i32[33,90] %0, %1 {transpose_b=1}" in text
    want = dequantized(*args)
    with torch_opaque.strict():
        for _ in range(4):
            assert torch.equal(dequantized(*on).cpu(), want)
    with torch_opaque.unfused():
        assert torch.equal(dequantized(*on).cpu(), want)


def bound(x, w, scales, places):
    """Of a sum in float32, in any order of which it is one chain, and of what is rounded behind it."""
    exact = (x.double() @ w.double().t()) * scales.double()
    sums = (x.double().abs() @ w.double().abs().t()) * scales.double()
    return exact, sums * (x.shape[1] + 2) * 2**-24 + exact.abs() * 3 * places + 2**-24


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("m, k, n", SHAPES)
def test_weights_of_int8(m, k, n, dtype):
    x, w, scales = torch.randn(m, k).to(dtype), whole(n, k), (torch.rand(n) / 128).to(dtype)
    exact, most = bound(x, w, scales, FLOATS[dtype])
    on = x.to(D), w.to(D), scales.to(D)
    with torch_opaque.strict():
        for _ in range(3):
            got = torch._weight_int8pack_mm(*on)
            assert got.dtype == dtype and ((got.cpu().double() - exact).abs() <= most).all()
        plain = F.linear(on[0], on[1].to(dtype)) * on[2]
        assert ((plain.cpu().double() - exact).abs() <= most).all()


def scaled(x, w, scales):
    return F.linear(x, w.to(x.dtype)) * scales


def scaled_transposed(x, w, scales):
    return (x @ w.t().to(x.dtype)) * scales


@pytest.mark.parametrize("f", [scaled, scaled_transposed, torch._weight_int8pack_mm])
@pytest.mark.parametrize("m, k, n", [(1, 65, 63), (4, 300, 70), (17, 129, 1), (40, 64, 200)])
def test_widening_has_the_bits_of_a_cast(m, k, n, f):
    x, w, s = torch.randn(m, k).to(D), whole(n, k).to(D), torch.rand(n).to(D)
    wide = w.float()
    torch.opaque.synchronize()
    with torch_opaque.unfused():
        want, turned = (F.linear(x, wide) * s).cpu(), (wide @ x.t()).cpu()
    for _ in range(3):
        assert torch.equal(f(x, w, s).cpu(), want)
        assert torch.equal((w.float() @ x.t()).cpu(), turned)


def test_weights_are_read_as_int8():
    on = torch.randn(1, 512).to(D), whole(2048, 512).to(D), torch.rand(2048).to(D)
    text = str(torch_opaque.graph(scaled, *on, stage="fused"))
    assert "cast" not in text and "i8[2048,512]" in text
    before = torch_opaque.stats()["bytes_packed"]
    for _ in range(6):
        scaled(*on).cpu()
    assert torch_opaque.stats()["bytes_packed"] - before <= 2048 * 512


def test_int4_is_what_the_cpu_makes_of_it():
    w = torch.randint(0, 16, (64, 128), dtype=torch.int32)
    packed = torch._convert_weight_to_int4pack_for_cpu(w, 1)
    zeros = torch.rand(4, 64, 2)
    for dtype in FLOATS:
        x, q = torch.randn(3, 128).to(dtype), zeros.to(dtype)
        want = torch._weight_int4pack_mm_for_cpu(x, packed, 32, q)
        got = torch._weight_int4pack_mm_for_cpu(x.to(D), packed.to(D), 32, q.to(D))
        assert torch.equal(got.cpu(), want)
    assert torch.equal(torch._convert_weight_to_int4pack_for_cpu(w.to(D), 1).cpu(), packed)


INT_MM = [
    lambda a, b: torch._int_mm(a[:, :3], b),
    lambda a, b: torch._int_mm(a.int(), b),
    lambda a, b: torch._int_mm(a[0], b),
    lambda a, b: torch._int_mm(a, b.float()),
]
SCALED = [
    lambda x, w, s: torch._weight_int8pack_mm(x.double(), w, s.double()),
    lambda x, w, s: torch._weight_int8pack_mm(x[:, ::2], w, s),
    lambda x, w, s: torch._weight_int8pack_mm(x[None], w, s),
    lambda x, w, s: torch._weight_int8pack_mm(x, w.int(), s),
    lambda x, w, s: torch._weight_int8pack_mm(x, w[:, :3], s),
    lambda x, w, s: torch._weight_int8pack_mm(x[:, :2], w, s),
    lambda x, w, s: torch._weight_int8pack_mm(x, w, s[:3]),
    lambda x, w, s: torch._weight_int8pack_mm(x, w, s[:, None]),
    lambda x, w, s: torch._weight_int8pack_mm(x, w, s.bfloat16()),
]


def words(call, tensors):
    with pytest.raises((RuntimeError, IndexError)) as error:
        call(*tensors).cpu()
    return str(error.value).splitlines()[0]


@pytest.mark.parametrize("call", INT_MM)
def test_errors_of_int_mm(call):
    tensors = whole(3, 4), whole(4, 5)
    assert words(call, tensors) == words(call, [t.to(D) for t in tensors])


@pytest.mark.parametrize("call", SCALED)
def test_errors_of_int8pack_mm(call):
    tensors = torch.randn(3, 4), whole(5, 4), torch.rand(5)
    assert words(call, tensors) == words(call, [t.to(D) for t in tensors])


@pytest.mark.parametrize(
    "product",
    [
        torch.mm,
        torch.matmul,
        lambda x, y: torch.einsum("ij,jk->ik", x, y),
        lambda x, y: torch.bmm(x[None], y[None]),
        lambda x, y: torch.nn.functional.linear(x, y.t()),
        lambda x, y: torch.mv(x, y[:, 0]),
        lambda x, y: torch.addmm(y[:1, :], x, y),
    ],
)
def test_other_products_of_int8_are_int8(product):
    """They wrap, as PyTorch's: sums of i32 are _int_mm's alone."""
    x = torch.randint(-128, 128, (5, 7), dtype=torch.int8)
    y = torch.randint(-128, 128, (7, 3), dtype=torch.int8)
    want, got = product(x, y), product(x.to("opaque"), y.to("opaque"))
    assert got.dtype == torch.int8
    assert torch.equal(got.cpu(), want)


def test_the_roof_of_products():
    """explain() knows that products of i8 and of bf16 have instructions of their own, where the processor has them."""
    x = torch.randint(-128, 128, (256, 256), dtype=torch.int8).to("opaque")
    y = torch.randn(256, 256, dtype=torch.bfloat16).to("opaque")
    for kind, product in {
        "i8": lambda: torch._int_mm(x, x),
        "pairs": lambda: y @ y,
        "pairs16": lambda: y @ y,
    }.items():
        rule = "chain" if kind == "i8" else kind
        with torch.backends.opaque.flags(bf16_products=rule):
            explanation = torch_opaque.explain(product, show=False)
        (kernel,) = explanation.kernels
        machine = explanation.machine
        assert machine["products"][kind] in (1, 2, 4, 16, 32)
        seconds = kernel["flops"] / machine["flops_per_second"] / machine["products"][kind]
        moved = kernel["bytes_read"] + kernel["bytes_written"]
        rate = next(r for size, r in machine["bandwidth"] if moved <= size)
        assert kernel["roof_seconds"] == max(seconds, moved / rate)
