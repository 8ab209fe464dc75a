"""Every row of the op table against CPU PyTorch: dtype x layout x special values, forward and gradient.

Rows that serve an operator are called through it, with arguments made from its schema; the others
have a function below that records them, which is checked in the recorded graph. A row without
either fails test_every_row_is_covered.
"""

import contextlib
import functools
import os
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch_opaque
from torch_opaque import _C

D = "opaque"
ROWS = {row["name"]: row for row in _C.op_table()}

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]


def overload(name):
    base, _, variant = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), variant or "default")


CALLED = [
    (row["name"], name)
    for row in ROWS.values()
    if row["signature"] != "NONE"
    for name in row["aten"].split()
]

# ---- values


def specials(dtype, huge=True):
    """Numbers at the borders of a dtype, and common ones; `huge`: also those that a product sends to infinity."""
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if dtype.is_floating_point:
        info = torch.finfo(dtype)
        edges = [info.tiny, info.tiny / 4, info.eps, *[info.max, info.max / 2] * huge]
        plain = [0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 10.0, 20.0, 21.0, 87.0, 89.0, 104.0]
        both = [v for x in edges + plain for v in (x, -x)]
        return torch.tensor(
            [*both, *[float("inf"), float("-inf")] * huge, float("nan")], dtype=dtype
        )
    info = torch.iinfo(dtype)
    return torch.tensor(
        [info.min, info.min + 1, 0, 1, 2, 3, 7, info.max - 1, info.max] + [-1] * (info.min < 0),
        dtype=dtype,
    )


# Products and sums of several numbers: where one is huge, what overflows first depends on the order,
# and the CPU kernels' order is that of their FMAs.
COMPOUND = [r for r in ROWS if r.endswith("_backward")] + ["lerp", "addcmul", "addcdiv"]


def combined(dtype, count, huge=True):
    """`count` tensors of one shape that hold all pairs of special values; a third follows at random."""
    values = specials(dtype, huge)
    n = len(values)
    if count == 1:
        return [values]
    a, b = values.repeat_interleave(n), values.repeat(n)
    return [a, b, *[values[torch.randperm(n * n) % n] for _ in range(count - 2)]]


# Scalar arguments by name; floats and the integers that stand for them with integer tensors.
SCALARS = {
    "alpha": 0.5, "beta": 1.5, "threshold": 1, "value": 3, "negative_slope": 0.125, "scale": 1.5,
    "input_scale": 0.5, "min_val": -1, "max_val": 2, "lambd": 0.5, "weight": 0.75, "min": -1, "max": 2,
    "other": 3, "exponent": 2, "eps": 0.5,
}  # fmt: skip


UNSIGNED = {"alpha": 1, "min": 1, "min_val": 1}


def arguments(op, tensors, scalars=SCALARS):
    """(positional, keyword) arguments: tensors in turn, scalars by name."""
    if not tensors[0].is_floating_point():
        scalars = {**scalars, **({"alpha": 2} if tensors[0].dtype.is_signed else UNSIGNED)}
    tensors = iter(tensors)
    positional, keyword = [], {}
    for argument in op._schema.arguments:
        kind = str(argument.type)
        value = (
            next(tensors)
            if kind == "Tensor"
            else False
            if kind == "bool"
            else scalars[argument.name]
        )
        if argument.kwarg_only:
            keyword[argument.name] = value
        else:
            positional.append(value)
    return positional, keyword


def tensor_count(op):
    return sum(str(a.type) == "Tensor" for a in op._schema.arguments)


# ---- comparing

PROMISED = {}  # (op, dtype): ULP, from docs/accuracy.md
with open(os.path.join(os.path.dirname(__file__), "../../docs/accuracy.md")) as text:
    of = torch.float32
    for line in text:
        of = (
            torch.float64 if line == "## f64\n" else torch.float32 if line.startswith("## ") else of
        )
        cells = [c.strip() for c in line.split("|")]
        if len(cells) > 5 and re.fullmatch(r"[\d.]+", cells[3]):
            for name in re.findall(r"`(\w+)`", cells[1]):
                PROMISED[name, of] = float(cells[3])

# What is one instruction, a choice or a comparison is the same number; of the rest a bound is known.
EXACT = {
    "add", "sub", "mul", "div", "neg", "abs", "sign", "maximum", "minimum", "fmax", "fmin",
    "reciprocal", "floor", "ceil", "trunc", "round", "frac", "copysign", "bitwise_and",
    "bitwise_or", "bitwise_xor", "bitwise_not", "logical_and", "logical_or", "logical_xor",
    "logical_not", "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isposinf", "isneginf",
    "signbit", "heaviside", "relu", "threshold", "threshold_backward", "hardtanh",
    "hardtanh_backward", "div_floor", "remainder", "fmod", "hardshrink", "shrink_backward",
    "where", "masked_fill", "clamp", "relu6", "square", "nan_to_num", "div_trunc", "rsub",
    "leaky_relu",
}  # fmt: skip
# The CPU multiplies by a sixth that it keeps in f32, also for f64.
LOOSE = {("hardsigmoid_backward", torch.float64): (1e-7, 1e-7)}
HALF = {
    torch.float32: (1e-5, 1e-6),
    torch.float64: (1e-12, 1e-12),
    torch.bfloat16: (2e-2, 1e-3),
    torch.float16: (2e-3, 1e-3),
}


def ulps(got, exact):
    """Distance in units of the last place of the f32 result."""
    near = exact.float()
    step = torch.nextafter(near.abs(), torch.tensor(float("inf"))) - near.abs()
    return ((got.double() - exact) / step.double()).abs()


def compare(row, got, want, what=""):
    got = got.detach().cpu()
    assert got.dtype == want.dtype and got.shape == want.shape, what
    if not want.dtype.is_floating_point or row in EXACT:
        torch.testing.assert_close(
            got, want, rtol=0, atol=0, equal_nan=True, msg=lambda m: f"{what}: {m}"
        )
        if want.dtype.is_floating_point and row not in (
            "fmax",
            "fmin",
        ):  # C leaves fmax(0, -0) open
            zero = want == 0
            assert torch.equal(got[zero].signbit(), want[zero].signbit()), f"{what}: sign of zero"
        return
    rtol, atol = LOOSE.get((row, want.dtype), HALF[want.dtype])
    torch.testing.assert_close(
        got, want, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{what}: {m}"
    )


def outcome(f):
    """("value", tensor) or ("error", its type)."""
    try:
        return "value", f().cpu()
    except Exception as error:
        return "error", type(error)


def unusable(row, tensors):
    """Places where the CPU has no answer to compare with: integer division by zero raises there, the
    least integer by -1 ends the process, and its vectors have no remainder for a quotient beyond the dtype."""
    if row in ("remainder", "fmod") and tensors[0].is_floating_point():
        a, b = tensors
        return a.isfinite() & b.isfinite() & (b != 0) & ~(a.double() / b.double()).to(
            a.dtype
        ).isfinite() | ((a / b).isinf() & (b != 0) & a.isfinite())
    if (
        row in ("div_floor", "div_trunc", "remainder", "fmod")
        and not tensors[0].is_floating_point()
    ):
        divisor = tensors[1]
        return (divisor == 0) | (
            divisor == -1 if divisor.dtype not in (torch.uint8, torch.bool) else False
        )
    if row in ("gcd", "lcm"):  # a quotient of the least integer by -1 ends the process, too
        dtype = tensors[0].dtype
        if dtype in INTEGERS and dtype.is_signed:
            least = torch.iinfo(dtype).min
            return (tensors[0] == least) | (tensors[1] == least)
    if row in COMPOUND:
        # With NaN in `self` the CPU's vectors and the scalar tail behind them give different answers.
        return tensors[1].isnan()
    return torch.zeros_like(tensors[0], dtype=torch.bool)


# ---- rows that an operator calls


@pytest.mark.sampled(3)
@pytest.mark.parametrize("row, name", CALLED, ids=lambda v: v)
def test_special_values_of_every_dtype(row, name):
    op = overload(name)
    answered = 0
    for dtype in FLOATS + INTEGERS:
        tensors = combined(dtype, tensor_count(op), row not in COMPOUND)
        if len(tensors) > 1:
            keep = ~unusable(row, tensors)
            tensors = [t[keep] for t in tensors]
        args, options = arguments(op, tensors)
        moved, _ = arguments(op, [t.to(D) for t in tensors])
        kind, want = outcome(lambda args=args, options=options: op(*args, **options))
        got_kind, got = outcome(lambda moved=moved, options=options: op(*moved, **options))
        if kind == "value":
            assert got_kind == kind, (name, dtype, got)
            compare(row, got, want, f"{name} {dtype}")
            answered += 1
        elif got_kind == "error":  # the device may know a dtype more than the CPU
            assert issubclass(got, want) or issubclass(want, got), (dtype, want, got)
    assert answered > 0


@pytest.mark.parametrize(
    "row",
    [
        r
        for r in ROWS
        if (r, torch.float32) in PROMISED
        and ROWS[r]["signature"] != "NONE"
        and ROWS[r]["arity"] == 1
    ],
)
def test_accuracy_is_what_the_documentation_promises(row):
    op = overload(ROWS[row]["aten"].split()[0])
    x = torch.cat(
        [torch.randn(4000) * scale for scale in (0.01, 1, 10)] + [specials(torch.float32)]
    )
    got, exact = op(x.to(D)).cpu(), op(x.double())
    finite = exact.float().isfinite() & (exact.abs() >= torch.finfo(torch.float32).tiny)
    assert ulps(got, exact)[finite].max() <= PROMISED[row, torch.float32]
    assert torch.equal(got.isnan(), exact.isnan())
    assert torch.equal(got.isinf(), exact.float().isinf())


@pytest.mark.parametrize(
    "row", [r for r, dtype in PROMISED if dtype == torch.float64 and r != "pow"]
)
def test_f64_is_as_near_the_cpu_as_both_promise(row):
    """Its kernels are off by one unit at most, ours by what the documentation says."""
    op = overload(ROWS[row]["aten"].split()[0])
    x = torch.cat(
        [torch.randn(4000).double() * scale for scale in (0.01, 1, 10)] + [specials(torch.float64)]
    )
    with torch_opaque.strict():
        got = op(x.to(D)).cpu()
    want = op(x)
    step = torch.nextafter(want.abs(), torch.tensor(float("inf"), dtype=torch.float64)) - want.abs()
    finite = want.isfinite()
    assert ((got - want) / step)[finite].abs().max() <= PROMISED[row, torch.float64] + 1
    assert torch.equal(got[~finite].nan_to_num(5.0), want[~finite].nan_to_num(5.0))


def layouts(shape, dtype, positive):
    """name: (memory, the view of it that is the operand)"""

    def numbers(*size):
        x = torch.rand(size) * 2 + 0.25 if positive else torch.randn(size) * 2
        return x.to(dtype)

    rows, columns = shape
    return {
        "contiguous": (numbers(rows, columns), lambda t: t),
        "transposed": (numbers(columns, rows), lambda t: t.t()),
        "sliced": (numbers(rows * 2 + 1, columns * 3), lambda t: t[1::2, ::3]),
        "expanded": (numbers(1, columns), lambda t: t.expand(rows, columns)),
        "column": (numbers(rows, 1), lambda t: t),
        "row": (numbers(columns), lambda t: t),
        "0-d": (numbers(), lambda t: t),
        "offset": (numbers(rows * columns + 5), lambda t: t[5:].view(rows, columns)),
    }


@pytest.mark.sampled(3)
@pytest.mark.parametrize("row, name", CALLED, ids=lambda v: v)
def test_layouts_and_gradients(row, name):
    op = overload(name)
    count = tensor_count(op)
    integers = bool(ROWS[row]["flags"] & 32)  # NOFLOAT
    # Away from where a derivative jumps or a function ends.
    positive = row not in ("acos", "asin", "atanh", "acosh")
    for position, (kind, (memory, view)) in enumerate(
        layouts((6, 35), torch.int32 if integers else torch.float32, positive).items()
    ):
        others = list(layouts((6, 35), memory.dtype, positive).values())
        chosen = [(memory, view)] + [
            others[(position + 3 * k) % len(others)] for k in range(1, count)
        ]
        if row == "acosh":
            chosen = [(m.abs() + 1.5, v) for m, v in chosen]
        if row in ("acos", "asin", "atanh"):
            chosen = [(m.tanh() * 0.9, v) for m, v in chosen]
        results = {}
        for device in ("cpu", D):
            leaves = [m.to(device).requires_grad_(m.is_floating_point()) for m, _ in chosen]
            args, options = arguments(
                op, [v(leaf) for leaf, (_, v) in zip(leaves, chosen, strict=True)]
            )
            try:
                out = op(*args, **options)
            except Exception as error:  # backward rows do not broadcast
                results[device] = type(error)
                continue
            gradients = []
            if out.requires_grad:
                weight = torch.linspace(-1, 2, out.numel()).view(out.shape).to(device)
                try:
                    gradients = torch.autograd.grad(out, leaves, weight, allow_unused=True)
                except RuntimeError as error:  # not differentiable
                    gradients = str(error)
            results[device] = out, gradients
        if isinstance(results["cpu"], type) or isinstance(results[D], type):
            assert results["cpu"] == results[D], (name, kind, results)
            continue
        (want, want_gradients), (got, got_gradients) = results["cpu"], results[D]
        compare(row, got, want.detach(), f"{name} {kind}")
        if isinstance(want_gradients, str):
            assert got_gradients == want_gradients
            continue
        for a, b in zip(got_gradients, want_gradients, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a.cpu(), b, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("row, name", CALLED, ids=lambda v: v)
def test_empty_operands(row, name):
    op = overload(name)
    dtype = torch.int32 if ROWS[row]["flags"] & 32 else torch.float32
    for shape in ((0,), (3, 0), (0, 5)):
        empty = [torch.zeros(shape, dtype=dtype)] * tensor_count(op)
        args, options = arguments(op, empty)
        moved, _ = arguments(op, [t.to(D) for t in empty])
        want, got = op(*args, **options), op(*moved, **options)
        assert got.shape == want.shape and got.dtype == want.dtype and got.cpu().numel() == 0


# ---- rows that have no operator of their own: (function, its operands as shapes or tensors)


def grad_of(f, *positions):
    def backward(*tensors):
        leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in tensors]
        out = f(*leaves)
        return torch.autograd.grad(
            out, [leaves[i] for i in positions or (0,)], torch.ones_like(out) * 0.5
        )[0]

    return backward


def written(x):
    y = x.clone()
    y[1:, ::2] = 7.0
    return y


def optimized(make, name, steps=1):
    """Fused steps of an optimizer; its parameter or a tensor of its state."""

    def step(x, g):
        p = x.detach().clone()
        p.grad = g.detach().clone()
        optimizer = make([p], lr=0.1, fused=True)
        with recording():
            for _ in range(steps):
                optimizer.step()
        return p.detach() if name == "p" else optimizer.state[p][name]

    return step


adam = functools.partial(optimized, torch.optim.Adam)
momentum = functools.partial(torch.optim.SGD, momentum=0.9)


@contextlib.contextmanager
def recording():
    """Without the run that follows an optimizer's step."""
    from torch_opaque import optim

    saved = optim._involves_opaque
    optim._involves_opaque = lambda optimizer: False
    try:
        yield
    finally:
        optim._involves_opaque = saved


def lstm(result):
    def run(x, h, c, w, v, b):
        return torch.lstm(x, (h, c), [w, v, b, b * 2], True, 1, 0.0, True, False, False)[result]

    return run


def gru(result):
    def run(x, h, w, v, b):
        return torch.gru(x, h, [w, v, b, b * 2], True, 1, 0.0, True, False, False)[result]

    return run


LSTM = (4, 2, 3), (1, 2, 5), (1, 2, 5), (20, 3), (20, 5), (20,)
GRU = (4, 2, 3), (1, 2, 5), (15, 3), (15, 5), (15,)
I34 = torch.tensor([[1, 0, 2, 1], [3, 3, 0, 2], [0, 2, 1, 1]])
M = (3, 4)
EXPLICIT = {
    "cast": (lambda x: x.to(torch.int32), M),
    "scalar": (lambda x: x + 2.5, M),
    "iota": (lambda x: x + torch.arange(4, device=x.device), M),
    "extent": (lambda x: x.mean(), M),
    "permute": (lambda x: x.t() + 1, M),
    "reshape": (lambda x: x.reshape(2, 6) + 1, M),
    "expand": (lambda x: x.expand(5, 3, 4) + 1, M),
    "slice": (lambda x: x[1:, ::2] + 1, M),
    "strided": (lambda x: x.as_strided((2, 3), (1, 2), 1) + 1, M),
    "pad": (lambda x: F.pad(x, (1, 2, -1, 3), value=2.5) * 2, M),
    "update": (written, M),
    "euclid": (lambda x: torch.gcd(x.long(), torch.full_like(x, 6).long()), M),
    "rsub": (lambda x: torch.rsub(x, 1.5), M),
    "div_trunc": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), M, M),
    "square": (lambda x: torch.square(x), M),
    "clamp": (lambda x: x.clamp(-0.5, 0.5), M),
    "nan_to_num": (lambda x: torch.nan_to_num(x / 0.0 * 0.0, 1.0, 2.0, 3.0), M),
    "where": (lambda x, y: torch.where(x > 0, x, y), M, M),
    "masked_fill": (lambda x: x.masked_fill(x > 0, 2.5), M),
    "pow": (lambda x, y: (x.abs() + 0.5) ** y, M, M),
    "gelu": (F.gelu, M),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), M),
    "gelu_backward": (grad_of(F.gelu), M),
    "gelu_tanh_backward": (grad_of(lambda x: F.gelu(x, approximate="tanh")), M),
    "nextafter": (lambda x, y: torch.nextafter(x, y), M, M),
    "leaky_relu_backward": (grad_of(lambda x: F.leaky_relu(x, 0.1)), M),
    "elu_backward": (grad_of(lambda x: F.elu(x, 0.7)), M),
    "bce": (lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()), M, M),
    "bce_backward": (
        lambda x, y: grad_of(lambda x: F.binary_cross_entropy(x, y.sigmoid()))(x.sigmoid()),
        M,
        M,
    ),
    "grouped_matmul": (
        lambda x, w, ends: torch._grouped_mm(x, w, offs=ends),
        (6, 4),
        (3, 4, 8),
        torch.tensor([2, 2, 6], dtype=torch.int32),
    ),
    "argsort": (lambda x: x.sort(1).indices, M),
    "argsort_down": (lambda x: x.sort(0, descending=True).values, M),
    "scatter_prod": (lambda x, i: x.scatter_reduce(1, i, x * 2, "prod"), M, I34),
    "scatter_amax": (lambda x, i: x.scatter_reduce(1, i, x * 2, "amax"), M, I34),
    "scatter_set": (lambda x, i: x.repeat(9, 1).scatter(0, i.repeat(9, 1), x.repeat(9, 1)), M, I34),
    "index_set": (lambda x, i: x.repeat(9, 1).index_copy(0, i.flatten(), x.repeat(4, 1)), M, I34),
    "scatter_amin": (lambda x, i: x.scatter_reduce(1, i, x * 2, "amin"), M, I34),
    "lstm": (lstm(0), *LSTM),
    "lstm_states": (lstm(2), *LSTM),
    "lstm_sums": (grad_of(lstm(0)), *LSTM),
    "lstm_backward": (grad_of(lstm(0), 4), *LSTM),
    "lstm_backward_state": (grad_of(lstm(2), 2), *LSTM),
    "gru": (gru(1), *GRU),
    "gru_sums": (grad_of(gru(0)), *GRU),
    "gru_backward": (grad_of(gru(0), 2), *GRU),
    "gru_backward_hidden": (grad_of(gru(0), 3), *GRU),
    "gru_backward_state": (grad_of(gru(1), 1), *GRU),
    "log_sigmoid": (F.logsigmoid, M),
    "log_sigmoid_backward": (grad_of(F.logsigmoid), M),
    "logit": (lambda x: torch.logit(torch.sigmoid(x), 0.25), M),
    "logit_backward": (grad_of(lambda x: torch.logit(torch.sigmoid(x), 0.25)), M),
    "sum": (lambda x: x.sum(1), M),
    "prod": (lambda x: x.prod(0), M),
    "amax": (lambda x: x.amax(1), M),
    "amin": (lambda x: x.amin((0, 1)), M),
    "any": (lambda x: (x > 1).any(1), M),
    "all": (lambda x: (x > -1).all(0), M),
    "argmax": (lambda x: x.argmax(1), M),
    "argmin": (lambda x: x.argmin(), M),
    "scan_add": (lambda x: x.cumsum(1), M),
    "scan_mul": (lambda x: x.cumprod(0), M),
    "scan_max": (lambda x: x.cummax(1).values, M),
    "scan_min": (lambda x: x.cummin(0).indices, M),
    "scan_logaddexp": (lambda x: x.logcumsumexp(1), M),
    "mean": (lambda x: x.mean((0, 1)), M),
    "var": (lambda x: x.var(1), M),
    "norm2": (lambda x: x.norm(dim=1), M),
    "logsumexp": (lambda x: x.logsumexp(1), M),
    "softmax": (lambda x: torch.softmax(x, 1), M),
    "softmax_backward": (grad_of(lambda x: torch.softmax(x, 1) * torch.arange(4, device=x.device)), M),
    "log_softmax": (lambda x: torch.log_softmax(x, 0), M),
    "log_softmax_backward": (grad_of(lambda x: torch.log_softmax(x, 1)), M),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), M, (4,), (4,)),
    "layer_norm_plain": (lambda x: F.layer_norm(x, (4,)), M),
    "layer_norm_rstd": (grad_of(lambda x, w: F.layer_norm(x, (4,), w), 1), M, (4,)),
    "layer_norm_backward": (grad_of(lambda x, w: F.layer_norm(x, (4,), w) ** 2), M, (4,)),
    "mse_loss": (lambda x, y: F.mse_loss(x, y, reduction="none"), M, M),
    "mse_loss_backward": (grad_of(F.mse_loss), M, M),
    "smooth_l1": (lambda x, y: F.smooth_l1_loss(x, y, beta=0.7), M, M),
    "huber": (lambda x, y: F.huber_loss(x, y, delta=0.7), M, M),
    "sgd_m": (optimized(momentum, "momentum_buffer", 2), M, M),
    "adam_m": (adam("exp_avg"), M, M),
    "adam_v": (adam("exp_avg_sq"), M, M),
    "adam_p": (adam("p"), M, M),
    "index_select": (lambda x, i: x.index_select(0, i[0]), M, I34.clamp(max=2)),
    "wrap_index": (lambda x, i: x[i[:, 0].clamp(max=2) - 3], M, I34),
    "join_index": (lambda x, i: x[i[:, 0].clamp(max=2) - 3, i[:, 1].clamp(max=3)], M, I34),
    "gather": (lambda x, i: x.gather(1, i), M, I34),
    "index_add": (lambda x, i: x.index_add(0, i[:, 0].clamp(max=2), x * 2), M, I34),
    "scatter_add": (lambda x, i: x.scatter_add(1, i, x * 2), M, I34),
    "concat": (lambda x, y: torch.cat([x, y], 1), M, (3, 2)),
    "matmul": (lambda x, y: x @ y, M, (4, 5)),
    "extern": (lambda x: torch.digamma(x.abs() + 1), M),
    "extern_result": (lambda x: torch.digamma(x.abs() + 1) + 1, M),
}  # fmt: skip
# Their values are nobody's to compare: what they promise is tested there.
ELSEWHERE = {
    "input": "every test",
    "undefined": "test_tensor.py: empty",
    "uniform": "test_device.py",
    "normal": "test_device.py",
}


# Rows that only text and other rows make: (nodes after the inputs %0 .. %3, the function).
TEXT = {
    "const": (
        "%4 = const f32[] {value=0x1p-1}\n%5 = mul f32[2,3,4] %0, %4",
        lambda q, k, v, m: q * 0.5,
    ),
    "relu6": ("%4 = relu6 f32[2,3,4] %0", lambda q, k, v, m: F.relu6(q)),
    "count": (
        "%4 = count f32[1,1,1] %0 {axes=[1,2], tree=lanes}\n%5 = div f32[2,3,4] %0, %4",
        lambda q, k, v, m: q / 12,
    ),
    "causal_mask": (
        "%4 = iota i64[3,4] {axis=1}\n%5 = iota i64[3,4] {axis=0}\n%6 = le bool[3,4] %4, %5\n"
        "%7 = causal_mask f32[2,3,4] %0, %6",
        lambda q, k, v, m: q.masked_fill(torch.ones(3, 4).triu(1).bool(), -torch.inf),
    ),
    "attention": (
        "%4 = const f32[] {value=0x1p-1}\n%5 = attention f32[2,3,4] %0, %1, %2, %4",
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v),
    ),
    "attention_mask": (
        "%4 = const f32[] {value=0x1p-1}\n%5 = attention_mask f32[2,3,4] %0, %1, %2, %4, %3",
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
    ),
}


def test_every_row_is_covered():
    covered = {row for row, _ in CALLED} | set(EXPLICIT) | set(ELSEWHERE) | set(TEXT)
    assert set(ROWS) - covered == set(), "rows without a test"
    assert (set(EXPLICIT) | set(ELSEWHERE) | set(TEXT)) - set(ROWS) == set(), "tests without a row"


@pytest.mark.parametrize("mode", ["--run", "--eval"])
@pytest.mark.parametrize("row", TEXT)
def test_a_row_of_text_against_the_cpu(row, mode, tmp_path, opq_opt):
    nodes, f = TEXT[row]
    operands = made([(2, 3, 4), (2, 5, 4), (2, 5, 4), (3, 5)])
    inputs = [f"%{i} = input f32[{','.join(map(str, x.shape))}]" for i, x in enumerate(operands)]
    last = nodes.splitlines()[-1].split()[0]
    (tmp_path / "graph.ir").write_text(
        "\n  ".join(["graph @g {", *inputs, *nodes.splitlines(), f"output {last}"]) + "\n}\n"
    )
    for i, x in enumerate(operands):
        np.save(tmp_path / f"input{i}.npy", x.numpy())
    opq_opt(mode, tmp_path)
    compare(row, torch.from_numpy(np.load(tmp_path / "out0.npy")), f(*operands), row)


def made(operands):
    return [o if isinstance(o, torch.Tensor) else torch.randn(o) for o in operands]


@pytest.mark.parametrize("row", EXPLICIT)
def test_a_row_without_operator_against_the_cpu(row):
    f, *shapes = EXPLICIT[row]
    operands = made(shapes)
    want = f(*operands).detach()
    moved = [o.to(D) for o in operands]
    for turned in (
        (False, True) if row != "strided" else (False,)
    ):  # as_strided asks about the memory
        args = [a.t().contiguous().t() if turned and a.dim() == 2 else a for a in moved]
        result = f(*args)
        graph = torch_opaque.graph(result) if _C.is_pending(result) else None
        if not turned:
            found = graph.nodes + graph.stage("simplified").nodes if graph else []
            assert row in {n.op for n in found}, graph
        compare(row, result, want, row)
