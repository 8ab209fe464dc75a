"""Attention: one kernel, the numbers of the CPU in f64, the same bits fused and unfused, on one thread and on two."""

import contextlib
import itertools

import pytest
import torch
import torch.nn.functional as F
import torch_opaque

SHAPES = [  # batch, heads, heads of keys, rows, columns, depth, width
    (2, 4, 4, 17, 17, 8, 8),
    (1, 4, 2, 33, 40, 16, 24),
    (2, 2, 1, 300, 300, 8, 8),
    (1, 1, 1, 1, 5, 4, 4),
    (1, 3, 3, 129, 65, 64, 32),
    (1, 1, 1, 200, 5000, 4, 4),
]
MASKS = ["none", "causal", "bool", "float", "a row sees nothing", "one row for all"]


RULES = {"f32": torch.float32, "pairs": torch.bfloat16, "pairs16": torch.bfloat16}


@pytest.fixture(params=RULES)
def numbers(request):
    """The dtype, of bf16 with either rule of products."""
    rule = "auto" if request.param == "f32" else request.param
    with torch.backends.opaque.flags(bf16_products=rule):
        yield RULES[request.param]


def mask_of(kind, shape):
    batch, heads, _, rows, columns, *_ = shape
    if kind == "bool":
        return torch.rand(rows, columns) > 0.3
    if kind == "float":
        return torch.randn(batch, 1, rows, columns)
    if kind == "a row sees nothing":
        mask = torch.rand(batch, heads, rows, columns) > 0.5
        mask[:, :, 0] = False
        return mask
    return torch.randn(batch, heads, 1, columns) if kind == "one row for all" else None


def tensors(shape):
    batch, heads, groups, rows, columns, depth, width = shape
    torch.manual_seed(sum(shape))
    sizes = (
        (batch, heads, rows, depth),
        (batch, groups, columns, depth),
        (batch, groups, columns, width),
    )
    return [torch.randn(size) for size in sizes]


def run(shape, kind, device, dtype, rounded=None):
    """The result and the gradients of all floating arguments, which are numbers of the dtype `rounded`."""
    rounded = rounded or dtype
    leaves = [x.to(rounded).to(dtype).to(device).requires_grad_() for x in tensors(shape)]
    mask = mask_of(kind, shape)
    if mask is not None:
        mask = (mask if mask.dtype == torch.bool else mask.to(rounded).to(dtype)).to(device)
    if mask is not None and mask.dtype != torch.bool:
        leaves.append(mask.requires_grad_())
    out = F.scaled_dot_product_attention(
        *leaves[:3], attn_mask=mask, is_causal=kind == "causal", enable_gqa=shape[1] != shape[2]
    )
    weight = torch.arange(out.numel(), dtype=torch.float64).reshape(out.shape).sin()
    weight = weight.to(rounded).to(dtype).to(device)
    return [x.cpu() for x in (out.detach(), *torch.autograd.grad(out, leaves, weight))]


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_gradients(shape, kind):
    want, got = run(shape, kind, "cpu", torch.float64), run(shape, kind, "opaque", torch.float32)
    for x, y in zip(want, got, strict=True):
        torch.testing.assert_close(
            y.double(), x, rtol=2e-5, atol=2e-5 * max(float(x.abs().max()), 0.01)
        )
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            again = run(shape, kind, "opaque", torch.float32)
            with torch_opaque.unfused():
                unfused = run(shape, kind, "opaque", torch.float32)
            for x, y, z in zip(got, again, unfused, strict=True):
                assert torch.equal(x, y) and torch.equal(x, z)
    finally:
        torch.set_num_threads(threads)


def kernels(f, *arguments):
    explanation = torch_opaque.explain(lambda: f(*arguments), show=False)
    return [kernel["kind"] for kernel in explanation.kernels], explanation


def on_device(shape):
    return [x.to("opaque") for x in tensors(shape)]


@pytest.mark.parametrize("kind", MASKS)
def test_it_is_one_kernel_that_reads_its_operands_and_writes_its_result(kind):
    shape = (2, 4, 4, 128, 128, 64, 64)
    q, k, v = on_device(shape)
    mask = mask_of(kind, shape)
    mask = (
        None
        if mask is None
        else (torch.where(mask, 0.0, -torch.inf) if mask.dtype == torch.bool else mask).to("opaque")
    )
    torch.opaque.synchronize()
    kinds, explanation = kernels(
        lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=kind == "causal")
    )
    assert kinds == ["block"]
    moved = sum(kernel["bytes_read"] + kernel["bytes_written"] for kernel in explanation.kernels)
    assert moved == 4 * (4 * q.numel() + (0 if mask is None else mask.numel()))


@pytest.mark.parametrize("dtype", ["chain", "pairs", "pairs16", "f16"])
@pytest.mark.parametrize("kind", MASKS)
def test_halves_go_the_same_way(kind, dtype):
    rule = "auto" if dtype == "f16" else dtype
    dtype, place = (torch.float16, 2**-10) if dtype == "f16" else (torch.bfloat16, 2**-7)
    with torch.backends.opaque.flags(bf16_products=rule):
        check_halves(kind, dtype, place, rule)


def check_halves(kind, dtype, place, rule):
    for shape in SHAPES[:5]:
        want = run(shape, kind, "cpu", torch.float64, dtype)
        got = run(shape, kind, "opaque", dtype)
        with torch_opaque.unfused():
            unfused = run(shape, kind, "opaque", dtype)
        for x, y, z in zip(want, got, unfused, strict=True):
            assert y.dtype == dtype and torch.equal(y, z)
            most = max(float(x.abs().max()), 0.01)
            torch.testing.assert_close(y.double(), x, rtol=place, atol=place * most)
    q, k, v = (x.to(dtype).to("opaque") for x in tensors((2, 4, 4, 256, 256, 16, 16)))
    torch.opaque.synchronize()
    kinds, explanation = kernels(
        lambda: F.scaled_dot_product_attention(q, k, v, is_causal=kind == "causal")
    )
    assert kinds == ["block"]  # no cast before it
    moved = sum(kernel["bytes_read"] + kernel["bytes_written"] for kernel in explanation.kernels)
    assert moved < 2 * 4 * 256 * 256 * 4  # the scores were not
    out = F.scaled_dot_product_attention(q, k, v)
    assert rule.startswith("pairs") == ("pairs=" in str(torch_opaque.graph(out)))


COMPOSED = {
    "softmax": lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1) @ v,
    "by hand": lambda q, k, v: (
        (lambda e: e / e.sum(-1, keepdim=True))(torch.exp(q @ k.transpose(-1, -2))) @ v
    ),
    "epilogue": lambda q, k, v: torch.relu(torch.softmax(q @ k.transpose(-1, -2), -1) @ v + 1),
    "two results": lambda q, k, v: (lambda s: (torch.softmax(s, -1) @ v, s.amax(-1)))(
        q @ k.transpose(-1, -2)
    ),
    "heads aside": lambda q, k, v: (
        (torch.softmax(q @ k.transpose(-1, -2), -1) @ v).transpose(1, 2).reshape(2, 128, -1)
    ),
}


@pytest.mark.parametrize("name", COMPOSED)
def test_composed(name):
    arguments = tensors((2, 4, 4, 128, 128, 64, 64))
    moved = [x.to("opaque") for x in arguments]
    f = COMPOSED[name]
    flat = lambda x: x if isinstance(x, tuple) else (x,)  # noqa: E731
    want, got = flat(f(*[x.double() for x in arguments])), flat(f(*moved))
    with torch_opaque.unfused():
        unfused = [x.cpu() for x in flat(f(*moved))]
    for x, y, z in zip(want, got, unfused, strict=True):
        torch.testing.assert_close(y.cpu().double(), x, rtol=1e-4, atol=1e-5)
        assert torch.equal(y.cpu(), z)
    assert kernels(f, *moved)[0] == ["block"]


def test_weights_that_somebody_keeps_are_in_memory():
    q, k, v = on_device((1, 2, 2, 40, 40, 8, 8))
    weights = torch.softmax(q @ k.transpose(-1, -2), -1)
    out = weights @ v
    torch.testing.assert_close(out.cpu(), weights.cpu() @ v.cpu())


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("where", itertools.product(["q", "k", "v"], [0, 100, 199]), ids=str)
def test_what_is_not_finite_goes_the_same_ways(numbers, value, where):
    arguments = tensors((1, 2, 2, 200, 200, 8, 8))
    dict(zip("qkv", arguments, strict=True))[where[0]][0, 1, where[1], 3] = value
    results = []
    for fused in (True, False):
        with contextlib.nullcontext() if fused else torch_opaque.unfused():
            moved = [x.to(numbers).to("opaque") for x in arguments]
            results.append(F.scaled_dot_product_attention(*moved, is_causal=True).cpu())
    assert torch.equal(results[0].isnan(), results[1].isnan())
    assert torch.equal(results[0].nan_to_num(), results[1].nan_to_num())


LAYOUTS = {
    "rows": lambda x: x,
    "columns": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    "every second": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "every second of columns": lambda x: LAYOUTS["every second"](x.mT).mT,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("at", [(0, 0), (60, 17), (99, 41), (99, 71)], ids=str)
def test_an_infinite_value_right_of_the_diagonal_is_seen(numbers, at, layout):
    """It spoils its column of each row: 0 times infinity is NaN."""
    q, k, v = tensors((1, 2, 2, 100, 100, 8, 72))
    v[0, 1, at[0], at[1]] = torch.inf
    q, k, v = (x.to(numbers).to("opaque") for x in (q, k, v))
    moved = q, k, LAYOUTS[layout](v)
    out = F.scaled_dot_product_attention(*moved, is_causal=True).cpu()
    spoiled = torch.zeros_like(out, dtype=torch.bool)
    spoiled[0, 1, :, at[1]] = True
    assert torch.equal(~out.isfinite(), spoiled)


def test_strided_heads_are_read_where_they_lie():
    x = torch.randn(2, 64, 3 * 4 * 16)
    f = lambda x: F.scaled_dot_product_attention(  # noqa: E731
        *(part.view(2, 64, 4, 16).transpose(1, 2) for part in x.chunk(3, -1))
    )
    moved = x.to("opaque")
    torch.testing.assert_close(f(moved).cpu(), f(x))
    assert kernels(f, moved)[0] == ["block"]


def test_an_encoder_layer_has_seven_kernels():
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval()
    x = torch.randn(2, 32, 64)
    with torch.no_grad():
        want = layer(x)
        layer, moved = layer.to("opaque"), x.to("opaque")
        torch.testing.assert_close(layer(moved).cpu(), want, rtol=1e-4, atol=1e-5)
        assert len(kernels(layer, moved)[0]) == 7


def test_layers_have_a_mask_each():
    """Made of indices where it is needed: one in memory for all would be read, and what it hides would be computed."""

    def layers(q, k, v):
        below = (
            torch.arange(64, device="opaque")[None] <= torch.arange(64, device="opaque")[:, None]
        )
        for _ in range(3):
            q = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        for _ in range(2):
            q = torch.softmax(torch.where(below, q @ k.mT, -torch.inf), -1) @ v
        return q

    moved = on_device((1, 2, 2, 64, 64, 16, 16))
    torch.opaque.synchronize()
    assert kernels(layers, *moved)[0] == ["block"] * 5
    got = layers(*moved).cpu()
    with torch_opaque.unfused():
        assert torch.equal(got, layers(*moved).cpu())


def test_indices_that_are_no_mask_are_computed_once():
    def powers():
        x = torch.arange(100, device="opaque").float()
        return x * x + x, (x + 1) * x

    assert kernels(powers)[0] == ["map"]
    assert [n.op for n in torch_opaque.graph(powers, stage="fused").nodes].count("cast") == 1


def test_what_a_causal_block_gives_out_besides_has_all_columns():
    def attend(q, k, v):
        below = (
            torch.arange(130, device=q.device)[None] <= torch.arange(70, device=q.device)[:, None]
        )
        scores = torch.where(below, q @ k.T, -torch.inf)
        return torch.softmax(scores, -1) @ v, below

    arguments = [torch.randn(70, 8), torch.randn(130, 8), torch.randn(130, 8)]
    moved = [x.to("opaque") for x in arguments]
    used_before = torch.ones(70, 130, device="opaque") > 0
    torch.opaque.synchronize()
    del used_before
    want, below = attend(*[x.double() for x in arguments])
    got = attend(*moved)
    assert torch.equal(got[1].cpu(), below)
    torch.testing.assert_close(got[0].cpu().double(), want, rtol=1e-5, atol=1e-6)
    assert kernels(attend, *moved)[0] == ["block"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["none", "causal", "bool", "one row for all, fixed"])
@pytest.mark.parametrize("groups", [4, 2, 1])
def test_gradients_are_one_kernel(kind, groups):
    """Nothing of rows times columns goes to memory, and nothing but a product with the scale and the mean of each row stays outside."""
    q, k, v = [x.to("opaque").requires_grad_() for x in tensors((2, 4, groups, 96, 96, 32, 32))]
    mask = {"bool": torch.rand(96, 96) > 0.3, "one row for all, fixed": torch.randn(96)}.get(kind)
    mask = mask if mask is None else mask.to("opaque")
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=kind == "causal", enable_gqa=groups < 4
    )
    grad = torch.randn(out.shape).to("opaque")
    torch.opaque.synchronize()
    kinds, explanation = kernels(
        lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)
    )
    assert kinds.count("block") == 1 and "matmul" not in kinds
    largest = 4 * max(x.numel() for x in (q, k, v))
    assert all(
        kernel["bytes_written"] <= 3 * largest * 4 // groups for kernel in explanation.kernels
    )


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan, 1e38, -0.0])
@pytest.mark.parametrize("where", ["query", "key", "value", "gradient"])
def test_causal_gradients_of_what_is_not_finite(numbers, where, value):
    """Elements right of the diagonal are left out only where they are 0: 0 times infinity is not."""
    arguments = [*tensors((1, 2, 2, 80, 80, 16, 16)), torch.randn(1, 2, 80, 16)]
    arguments[["query", "key", "value", "gradient"].index(where)][0, 0, 60, 3] = value

    def gradients():
        q, k, v, grad = [x.to(numbers).to("opaque") for x in arguments]
        leaves = [x.requires_grad_() for x in (q, k, v)]
        out = F.scaled_dot_product_attention(*leaves, is_causal=True)
        return [x.cpu() for x in torch.autograd.grad(out, leaves, grad)]

    got = gradients()
    with torch_opaque.unfused():
        want = gradients()
    for x, y in zip(got, want, strict=True):
        assert torch.equal(x.isnan(), y.isnan()) and torch.equal(x.nan_to_num(), y.nan_to_num())


UNUSUAL = {
    "usual": lambda grad, value, out, total: None,
    "a row whose total is -inf": lambda grad, value, out, total: total[..., 20].fill_(-torch.inf),
    "a row whose total is nan": lambda grad, value, out, total: total[..., 20].fill_(torch.nan),
    "a row whose mean is inf": lambda grad, value, out, total: out[..., 20, :].fill_(torch.inf),
    "products that overflow": lambda grad, value, out, total: (
        grad[..., 20, :].fill_(1e25),
        value[..., 70, :].fill_(1e15),
    ),
    "products that overflow when the mean is taken off": lambda grad, value, out, total: (
        grad[..., 20, :].fill_(1e18),
        value[..., 70, :].fill_(1e19),
        out[..., 20, :].fill_(-1.9e19),
    ),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_causal_gradients_of_unusual_rows(name):
    """What is right of the diagonal is 0 only where its row is finite, and products far from overflow."""
    q, k, v, grad, out = [torch.randn(1, 2, n, 16) for n in (80, 96, 96, 80, 80)]
    total, none = torch.randn(1, 2, 80).abs() + 5, torch.empty(0)
    UNUSUAL[name](grad, v, out, total)
    moved = [x.to("opaque") for x in (grad, q, k, v, none, out, total, none, none)]
    grad, q, k, v, none, out, total, *_ = moved

    def gradients():
        return torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward(
            *(grad, q, k, v, None, [True, True, True, False], out, total, none, none),
            *(80, 96, 0.0, True, none, none),
        )[:3]

    got = [x.cpu() for x in gradients()]
    with torch_opaque.unfused():
        want = [x.cpu() for x in gradients()]
    for x, y in zip(got, want, strict=True):
        assert torch.equal(x.isnan(), y.isnan()) and torch.equal(x.nan_to_num(), y.nan_to_num())
    assert "block" in kernels(gradients)[0]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flexible_attention():
    """Of which PyTorch says that it is for the devices it lists; it computes, with gradients, which the CPU has none of."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    slope = torch.rand(2)

    def score(scores, batch, head, row, column):
        return scores + slope.to(scores.device)[head] * (column - row)

    torch.manual_seed(3)
    q, k, v = (torch.randn(2, 2, 16, 8, device="opaque", requires_grad=True) for _ in range(3))
    mask = create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 16, 16, device="opaque")
    result = flex_attention(q, k, v, score_mod=score, block_mask=mask)
    result.square().sum().backward()

    places = torch.arange(16)
    bias = slope[:, None, None] * (places[None] - places[:, None])
    bias = bias.masked_fill(places[None] > places[:, None], -torch.inf)
    copies = [t.detach().cpu().requires_grad_() for t in (q, k, v)]
    wanted = F.scaled_dot_product_attention(*copies, attn_mask=bias)
    wanted.square().sum().backward()
    torch.testing.assert_close(result.cpu(), wanted)
    for ours, theirs in zip((q, k, v), copies, strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


@pytest.mark.parametrize("right", ["each", "shared", "expanded"])
@pytest.mark.parametrize("rows", ["exp", "softmax", "mul"])
@pytest.mark.parametrize("products", [1, 2])
def test_products_that_sum_over_rows(rows, right, products):
    """Of what is made of each matrix of a product, by rows or not; with a right operand for each matrix or for all of them."""
    make = {"exp": torch.exp, "softmax": lambda x: x.softmax(-1), "mul": lambda x: x * x}[rows]
    torch.manual_seed(0)

    def run(a, b, *others):
        middle = make(a @ b).transpose(-1, -2)
        return [
            middle @ (c.expand(*middle.shape[:-2], *c.shape) if right == "expanded" else c)
            for c in others
        ]

    for batch, m, k, n, p in [
        (6, 17, 57, 18, 29),
        (4, 32, 16, 32, 8),
        (2, 64, 64, 64, 64),
        (3, 16, 5, 300, 1),
    ]:
        lead = (batch,) if right == "each" else ()
        inputs = [torch.randn(batch, m, k) * 0.1, torch.randn(batch, k, n)]
        inputs += [torch.randn(*lead, m, p + i) for i in range(products)]
        moved = [t.to("opaque") for t in inputs]
        want = run(*(t.double() for t in inputs))
        fused = [t.cpu() for t in run(*moved)]
        with torch_opaque.unfused():
            unfused = [t.cpu() for t in run(*moved)]
        for f, u, w in zip(fused, unfused, want, strict=True):
            assert torch.equal(f, u)
            torch.testing.assert_close(f, w.float(), rtol=1e-4, atol=1e-4)


def test_a_product_of_what_one_kernel_makes():
    """Both operands are made of one product's rows: the right one has to be in memory before."""
    torch.manual_seed(0)
    a, b = torch.randn(2, 24, 33), torch.randn(2, 33, 16)

    def run(a, b):
        weights = (a @ b).tanh().softmax(-1)
        return (weights.sigmoid() * 0.5) @ weights.transpose(-1, -2)

    torch.testing.assert_close(run(a.to("opaque"), b.to("opaque")).cpu(), run(a, b))
