"""Wrong input: PyTorch's exception type, a message that names the operator and the user's line, and everything else as before."""

import re
import subprocess
import time

import pytest
import torch
import torch.nn.functional as F
import torch_opaque
from raising import both_raise
from torch import nn

D = "opaque"


def ones(*shape, d, dtype=None):
    return torch.ones(*shape, device=d, dtype=dtype)


def index(*values, d):
    return torch.tensor(values, device=d)


def attention(d, query, key, mask=None, **options):
    keys = ones(*key, d=d)
    return F.scaled_dot_product_attention(ones(*query, d=d), keys, keys, mask, **options)


# What the shapes, dtypes and attributes decide: raised where it is written, with PyTorch's type and words.
RECORDED = {
    "add": lambda d: ones(3, 4, d=d) + ones(3, 5, d=d),
    "in place shape": lambda d: ones(3, d=d).mul_(ones(2, 3, d=d)),
    "where": lambda d: torch.where(ones(3, d=d) > 0, ones(3, d=d), ones(4, d=d)),
    "lerp": lambda d: torch.lerp(ones(3, d=d), ones(4, d=d), 0.5),
    "addcmul": lambda d: torch.addcmul(ones(3, d=d), ones(4, d=d), ones(3, d=d)),
    "mm": lambda d: ones(3, 4, d=d) @ ones(5, 6, d=d),
    "dot": lambda d: ones(3, d=d) @ ones(5, d=d),
    "mv": lambda d: ones(3, 4, d=d) @ ones(5, d=d),
    "bmm": lambda d: torch.bmm(ones(2, 3, 4, d=d), ones(3, 4, 5, d=d)),
    "bmm rank": lambda d: torch.bmm(ones(3, 4, d=d), ones(3, 4, d=d)),
    "matmul batch": lambda d: ones(2, 3, 4, d=d) @ ones(5, 4, 3, d=d),
    "mm dtype": lambda d: ones(3, 4, d=d) @ ones(4, 3, d=d, dtype=torch.float64),
    "addmm": lambda d: torch.addmm(ones(7, d=d), ones(3, 4, d=d), ones(4, 5, d=d)),
    "linear": lambda d: F.linear(ones(3, 4, d=d), ones(5, 6, d=d)),
    "linear bias": lambda d: F.linear(ones(3, 4, d=d), ones(5, 4, d=d), ones(4, d=d)),
    "conv2d": lambda d: F.conv2d(ones(1, 3, 8, 8, d=d), ones(4, 2, 3, 3, d=d)),
    "layer_norm": lambda d: F.layer_norm(ones(2, 3, d=d), (4,)),
    "layer_norm weight": lambda d: F.layer_norm(ones(2, 3, d=d), (3,), ones(4, d=d)),
    "view": lambda d: ones(2, 3, d=d).view(7),
    "view of a transpose": lambda d: ones(2, 3, d=d).t().view(6),
    "reshape": lambda d: ones(2, 3, d=d).reshape(4, 2),
    "reshape twice -1": lambda d: ones(2, 3, d=d).reshape(-1, -1),
    "expand": lambda d: ones(2, 3, d=d).expand(3, 3),
    "permute": lambda d: ones(2, 3, d=d).permute(0, 0),
    "transpose": lambda d: ones(2, 3, d=d).transpose(0, 5),
    "cat": lambda d: torch.cat([ones(2, 3, d=d), ones(2, 4, d=d)], 0),
    "cat dim": lambda d: torch.cat([ones(2, 3, d=d), ones(2, 3, d=d)], 3),
    "cat of nothing": lambda d: torch.cat([]),
    "stack": lambda d: torch.stack([ones(2, 3, d=d), ones(2, 4, d=d)]),
    "softmax dim": lambda d: torch.softmax(ones(2, 3, d=d), 2),
    "log_softmax dim": lambda d: torch.log_softmax(ones(2, 3, d=d), -3),
    "sum dim": lambda d: ones(2, 3, d=d).sum(3),
    "argmax dim": lambda d: ones(2, 3, d=d).argmax(4),
    "argmax of nothing": lambda d: ones(0, 3, d=d).argmax(0),
    "mean of integers": lambda d: ones(3, d=d, dtype=torch.long).mean(),
    "index_select dim": lambda d: ones(3, 4, d=d).index_select(5, index(0, d=d)),
    "index_select dtype": lambda d: ones(3, 4, d=d).index_select(0, index(0.0, d=d)),
    "gather dtype": lambda d: ones(3, 4, d=d).gather(0, ones(1, 4, d=d)),
    "gather rank": lambda d: ones(3, 4, d=d).gather(0, index(0, d=d)),
    "gather size": lambda d: ones(3, 4, d=d).gather(0, ones(1, 9, d=d, dtype=torch.long)),
    "embedding dtype": lambda d: F.embedding(ones(3, d=d), ones(3, 4, d=d)),
    "float index": lambda d: ones(3, 4, d=d)[ones(2, d=d)],
    "integer index": lambda d: ones(3, 4, d=d)[7],
    "too many indices": lambda d: ones(3, 4, d=d)[0, 0, 0],
    "mask size": lambda d: ones(3, 4, d=d)[ones(5, d=d) > 0],
    "indices that do not broadcast": lambda d: ones(3, 4, d=d)[
        index(0, 1, d=d), index(0, 1, 2, d=d)
    ],
    "in place result type": lambda d: ones(3, d=d, dtype=torch.long).add_(1.5),
    "in place div": lambda d: ones(3, d=d, dtype=torch.long).div_(2),
    "in place on an expanded": lambda d: ones(1, d=d).expand(3).add_(1),
    "out dtype": lambda d: torch.exp(ones(3, d=d), out=ones(3, d=d, dtype=torch.int)),
    "neg of bool": lambda d: -(ones(3, d=d) > 0),
    "leaf in place": lambda d: ones(3, d=d).requires_grad_().add_(1),
    "backward of a vector": lambda d: (ones(3, d=d).requires_grad_() * 2).backward(),
    "backward without graph": lambda d: ones(3, d=d).sum().backward(),
    "item of many": lambda d: ones(3, d=d).item(),
    "bool of many": lambda d: bool(ones(3, d=d)),
    "cross_entropy shape": lambda d: F.cross_entropy(ones(3, 4, d=d), index(0, 1, d=d)),
    "cross_entropy dtype": lambda d: F.cross_entropy(ones(3, 4, d=d), index(0, 1, 1, d=d).int()),
    "split": lambda d: ones(5, d=d).split([2, 2]),
    "narrow": lambda d: ones(5, d=d).narrow(0, 3, 4),
    "unflatten": lambda d: ones(6, d=d).unflatten(0, (4, 2)),
    "scatter_add size": lambda d: ones(3, 4, d=d).scatter_add(
        0, ones(1, 9, d=d, dtype=torch.long), ones(1, 9, d=d)
    ),
    "index_add size": lambda d: ones(3, 4, d=d).index_add(0, index(0, 1, d=d), ones(3, 4, d=d)),
    "einsum": lambda d: torch.einsum("ij,jk->ik", ones(2, 3, d=d), ones(4, 5, d=d)),
    "arange": lambda d: torch.arange(0, 10, -1, device=d),
    "dropout": lambda d: F.dropout(ones(3, d=d), 1.5),
    "negative size": lambda d: torch.empty(-1, device=d),
    "clamp without bounds": lambda d: ones(3, d=d).clamp(),
    "attention columns": lambda d: attention(d, (1, 2, 4, 8), (1, 2, 4, 7)),
    "attention batch": lambda d: attention(d, (2, 2, 4, 8), (3, 2, 4, 8)),
    "attention heads": lambda d: attention(d, (1, 2, 4, 8), (1, 3, 4, 8)),
    "attention mask": lambda d: attention(d, (1, 2, 4, 8), (1, 2, 5, 8), ones(4, 4, d=d)),
    "attention masked twice": lambda d: attention(
        d, (2, 4, 8), (2, 4, 8), ones(4, 4, d=d), is_causal=True
    ),
    "attention with a mask's gradient, masked twice": lambda d: attention(
        d, (1, 2, 4, 8), (1, 2, 4, 8), ones(4, 4, d=d).requires_grad_(), is_causal=True
    ),
    "one_hot of all classes": lambda d: F.one_hot(index(1, -1, d=d)),
    "max_pool1d": lambda d: F.max_pool1d(ones(1, 1, 4, d=d, dtype=torch.long), 2),
    "max_pool1d of bool": lambda d: F.max_pool1d(ones(1, 1, 4, d=d, dtype=torch.bool), 2),
    "avg_pool3d": lambda d: F.avg_pool3d(ones(1, 4, 4, 4, d=d, dtype=torch.half), 2),
    "local_response_norm": lambda d: F.local_response_norm(
        ones(1, 4, 4, 4, d=d, dtype=torch.bfloat16), 2
    ),
    "vector_norm": lambda d: torch.linalg.vector_norm(
        ones(3, d=d, dtype=torch.double), dtype=torch.float
    ),
    "vector_norm of 1": lambda d: torch.linalg.vector_norm(ones(3, d=d), 1, dtype=torch.half),
    "norm": lambda d: torch.norm(ones(3, d=d, dtype=torch.double), dtype=torch.float),
    "pad": lambda d: F.pad(ones(3, d=d, dtype=torch.long), (0, 1), value=float("nan")),
    "cumsum": lambda d: torch.cumsum(ones(3, d=d), 0, dtype=torch.bool),
}


@pytest.mark.parametrize("name", RECORDED)
def test_raised_where_it_is_written(name):
    want, got = both_raise(RECORDED[name])
    assert (
        str(got).splitlines()[0].split(" (when")[0] == str(want).splitlines()[0].split(" (when")[0]
    )


# The same type; the words are the device's own, or PyTorch's meta kernel's.
OTHER_WORDS = {
    "copy_": (
        lambda d: ones(3, d=d).copy_(ones(4, d=d)),
        "size of tensor a .3. must match .* b .4.",
    ),
    "masked_fill": (
        lambda d: ones(3, d=d).masked_fill(ones(3, d=d), 1.0),
        "masked_fill.* boolean masks",
    ),
    "masked_fill shape": (
        lambda d: ones(3, d=d).masked_fill(ones(4, d=d) > 0, 1.0),
        "must match the size",
    ),
    "max of nothing": (lambda d: ones(0, d=d).max(), "Expected reduction dim"),
    "and of floats": (lambda d: ones(3, d=d) & ones(3, d=d), "bitwise_and.*(Float|f32)"),
    "terabyte": (
        lambda d: torch.empty(1 << 38, device=d),
        "you tried to allocate 1099511627776 bytes",
    ),
    "terabyte of ones": (
        lambda d: ones(1 << 38, d=d).sum().item(),
        "you tried to allocate 1099511627776 bytes",
    ),
    "too large for a pointer": (lambda d: torch.empty(1 << 60, device=d), "allocate|overflow"),
    "saved for backward": (
        lambda d: (lambda y: (y.add_(1), y.sum().backward()))(ones(3, d=d).requires_grad_().exp()),
        "modified by an inplace operation",
    ),
}


@pytest.mark.parametrize("name", OTHER_WORDS)
def test_the_type_is_pytorchs(name):
    f, words = OTHER_WORDS[name]
    with pytest.raises(Exception) as want:
        f("cpu")
    with pytest.raises(type(want.value), match=words):
        f(D)


MIXED = {
    "add": lambda a, b: a + b,
    "mul_": lambda a, b: a.mul_(b),
    "mm": lambda a, b: a @ b,
    "where": lambda a, b: torch.where(a > 0, a, b),
    "cat": lambda a, b: torch.cat([a, b]),
    "stack": lambda a, b: torch.stack([a, b]),
    "linear": lambda a, b: F.linear(a, b),
    "layer_norm": lambda a, b: F.layer_norm(a, (3,), b[0], b[0]),
    "embedding": lambda a, b: F.embedding(torch.zeros(2, dtype=torch.long, device=a.device), b),
    "index_select": lambda a, b: a.index_select(0, b[0].long()),
    "gather": lambda a, b: a.gather(0, b.long()),
    "cross_entropy": lambda a, b: F.cross_entropy(a, b[0].long()),
    "mse_loss": lambda a, b: F.mse_loss(a, b),
    "out": lambda a, b: torch.add(a, 1, out=b),
    "conv1d": lambda a, b: F.conv1d(a[None], b[:, :, None]),
    "extern": lambda a, b: torch.kron(a, b),
}


@pytest.mark.parametrize("swap", [False, True], ids=["opaque first", "cpu first"])
@pytest.mark.parametrize("name", MIXED)
def test_operands_of_two_devices(name, swap):
    a, b = torch.ones(3, 3, device=D), torch.ones(3, 3)
    with pytest.raises(RuntimeError) as error:
        MIXED[name](b, a) if swap else MIXED[name](a, b)
    text = str(error.value).lower()
    assert "opaque" in text and ("device" in text or "cpu" in text), text


# What values decide: raised where a value is asked for, naming operator, index, shape and the line that recorded it.
FLUSHED = {
    "index_select": lambda d: ones(3, 4, d=d).index_select(0, index(9, d=d)),
    "gather": lambda d: ones(3, 4, d=d).gather(1, torch.full((3, 1), 9, device=d)),
    "scatter_add": lambda d: ones(3, 4, d=d).scatter_add(
        0, torch.full((1, 4), 9, device=d), ones(1, 4, d=d)
    ),
    "index_add": lambda d: ones(3, 4, d=d).index_add(0, index(9, d=d), ones(1, 4, d=d)),
    "embedding": lambda d: F.embedding(index(1, 9, d=d), ones(3, 4, d=d)),
    "embedding below zero": lambda d: F.embedding(index(-1, d=d), ones(3, 4, d=d)),
    "index": lambda d: ones(3, 4, d=d)[index(9, d=d)],
    "index of a column": lambda d: ones(3, 4, d=d)[:, index(9, d=d)],
    "index, two": lambda d: ones(3, 4, d=d)[index(1, d=d), index(9, d=d)],
    "index below zero": lambda d: ones(3, 4, d=d)[index(-4, d=d)],
    "nll_loss": lambda d: F.cross_entropy(ones(3, 4, d=d), index(0, 1, 9, d=d)),
    "nll_loss below zero": lambda d: F.cross_entropy(ones(3, 4, d=d), index(0, 1, -2, d=d)),
    "scatter": lambda d: ones(3, 4, d=d).scatter(0, torch.full((1, 4), 9, device=d), 2.0),
    "take": lambda d: ones(3, d=d).take(index(9, d=d)),
    "binary_cross_entropy": lambda d: F.binary_cross_entropy(ones(3, d=d) * 2, ones(3, d=d)),
}
MESSAGE = r"{op}.*(index -?\d+ is out of (bounds|range).*size \d+ of f32\[|Target -?\d+ is out|index .* out of|access index|between 0 and 1)"


@pytest.mark.parametrize("name", FLUSHED)
def test_raised_where_a_value_is_read(name):
    f = FLUSHED[name]
    with pytest.raises(Exception) as want:
        f("cpu")
    good = torch.arange(3.0, device=D) * 2
    result = f(D) * 2 + 1
    kept = good + 1
    for _ in range(2):  # read again: it raises again
        with pytest.raises(
            type(want.value), match=MESSAGE.format(op=name.split()[0].rstrip(","))
        ) as got:
            result.cpu()
        assert type(got.value) is type(want.value)
    lines = {line for _, _, line in f.__code__.co_lines()}
    assert int(re.search(r"recorded at test_errors.py:(\d+)\)", str(got.value))[1]) in lines
    assert kept.tolist() == [1, 3, 5] and good.tolist() == [0, 2, 4]
    torch.opaque.synchronize()


def test_the_line_is_that_of_the_call_and_not_of_an_equal_graph():
    def first(i):
        return torch.ones(5, 6, device=D)[i].sum()

    def second(i):
        return torch.ones(5, 6, device=D)[i].sum()

    assert first(index(1, 2, d=D)).item() == second(index(3, 4, d=D)).item() == 12
    for f in (first, second):
        with pytest.raises(IndexError, match=rf"test_errors.py:{f.__code__.co_firstlineno + 1}\)"):
            f(index(1, 7, d=D)).item()


def test_a_failed_in_place_write_leaves_the_earlier_value():
    x = torch.zeros(3, 4, device=D)
    x.add_(1)
    x.index_add_(0, index(9, d=D), torch.ones(1, 4, device=D))
    y = x * 2
    with pytest.raises(RuntimeError, match="index_add.*out of bounds"):
        y.cpu()
    assert torch.equal(x.cpu(), torch.ones(3, 4)) and torch.equal(
        (x * 2).cpu(), torch.full((3, 4), 2.0)
    )


def test_a_device_that_does_not_exist():
    for call in (
        lambda: torch.ones(1, device="opaque:1"),
        lambda: torch.ones(1).to("opaque:7"),
        lambda: torch.empty(1, device="opaque:1"),
        lambda: torch.ones(1, device="opaque").to("opaque:1"),
        lambda: torch.opaque.set_device(1),
        lambda: torch.nn.Linear(1, 1, device="opaque:1"),
    ):
        with pytest.raises(RuntimeError, match="invalid device.*1|invalid device.*7"):
            call()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "garbage",
        "graph @g {",
        "graph @g { %0 = input f32[99999999999999999999] output %0 }",
        "graph @g {\n  %0 = input f32[2]\n  %1 = nosuch f32[2] %0\n  output %1\n}\n",
        "graph @g {\n  %0 = input f32[2]\n  %1 = add f32[3] %0, %0\n  output %1\n}\n",
        "graph @g {\n  %0 = input f32[2]\n  %1 = add f32[2] %0, %9\n  output %1\n}\n",
        "graph @g {\n  %0 = neg f32[2] %0\n  output %0\n}\n",
        "\0\1\2\xff" * 100,
        "graph @g " + "{" * 100000,
        "graph @g {\n  %0 = input f32[" + "1," * 100 + "1]\n  output %0\n}\n",
    ],
    ids=range(11),
)
def test_garbage_text_is_refused_with_a_place(text, root, tmp_path):
    path = tmp_path / "g.ir"
    path.write_text(text, encoding="latin-1")
    result = subprocess.run(
        [f"{root}/build/opq-opt", path, "--verify", "--print"],
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert result.returncode > 0 and result.stderr.strip() and result.stdout == ""


def test_a_hundred_thousand_operations_in_a_row():
    start = time.time()
    x = torch.zeros(4, device=D)
    for _ in range(100_000):
        x = x + 1
    assert x.sum().item() == 400_000
    for _ in range(100_000):
        x = x + 1
    del x  # dropped without ever running
    y = torch.zeros(4, device=D)
    for _ in range(100_000):
        y.add_(1)
    assert y.tolist() == [100_000] * 4
    assert time.time() - start < 20


def test_a_deep_graph_is_differentiated_and_dropped():
    x = torch.ones(2, device=D, requires_grad=True)
    y = x
    for _ in range(5000):
        y = y * 1.0
    y.sum().backward()
    assert x.grad.tolist() == [1, 1]


# ---- a training run that meets one bad label


def train(device, kind, form, read, bad=50, steps=60):
    """(parameters and their moments, losses, errors) of a run whose batch number `bad` has a label out of range."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(device)
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.02, **form)
    numbers = torch.Generator().manual_seed(1)
    losses, errors = [], []
    for i in range(steps):
        x = torch.randn(16, 8, generator=numbers)
        labels = torch.randint(4, (16,), generator=numbers)
        if i == bad:
            labels[3] = 9
        try:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x.to(device)), labels.to(device))
            if read == "at once":
                loss.item()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        except IndexError as error:
            errors.append((i, str(error)))
    states = [
        t.cpu() for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor)
    ]
    return (
        [p.detach().cpu() for p in model.parameters()] + states,
        [loss.item() for loss in losses],
        errors,
    )


@pytest.mark.parametrize("bad", [0, 50])
@pytest.mark.parametrize("read", ["at once", "later"])
@pytest.mark.parametrize(
    "kind, form",
    [
        ("SGD", {"momentum": 0.9, "weight_decay": 0.1, "foreach": False}),
        ("SGD", {"momentum": 0.9, "fused": True}),
        ("Adam", {"foreach": False}),
        ("Adam", {"foreach": True}),
        ("Adam", {"fused": True}),
        ("AdamW", {"foreach": False}),
        ("AdamW", {"fused": True}),
    ],
    ids=str,
)
def test_training_goes_on_from_the_weights_before_a_bad_label(kind, form, read, bad):
    want, want_losses, want_errors = train("cpu", kind, form, read, bad)
    got, got_losses, got_errors = train(D, kind, form, read, bad)
    assert [i for i, _ in got_errors] == [i for i, _ in want_errors] == [bad]
    assert "nll_loss" in got_errors[0][1] and "test_errors.py:" in got_errors[0][1]
    assert len(got) == len(want) and len(got_losses) == len(want_losses) == 59
    torch.testing.assert_close(got_losses, want_losses, rtol=1e-3, atol=1e-4)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_batch_statistics_of_a_failed_step_are_those_of_its_forward_pass():
    """As on the CPU, where the forward pass has updated them before the loss raises."""

    def run(device):
        torch.manual_seed(0)
        model = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 4)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i in range(4):
            try:
                labels = torch.full((16,), 9 if i == 2 else 1, device=device)
                loss = F.cross_entropy(model(torch.randn(16, 8).to(device)), labels)
                loss.backward()
                optimizer.step()
            except IndexError:
                assert i == 2
            optimizer.zero_grad()
        return {k: v.cpu() for k, v in model.state_dict().items()}

    want, got = run("cpu"), run(D)
    for key in want:
        torch.testing.assert_close(got[key], want[key], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fails", ["division", "index"])
def test_what_shares_a_kernel_with_a_failure_is_computed(fails):
    x = torch.arange(1, 6, device="opaque").to(torch.int32)
    before = x.clone() * 3 + 1
    if fails == "division":
        wrong = before % torch.tensor([1, 0, 2, 3, 0], dtype=torch.int32, device="opaque")
        error = RuntimeError
    else:
        wrong = torch.arange(5, device="opaque")[before.long() + 100]
        error = IndexError
    behind = wrong + 1
    with pytest.raises(error):
        wrong.cpu()
    assert before.tolist() == [4, 7, 10, 13, 16] and x.tolist() == [1, 2, 3, 4, 5]
    with pytest.raises(error):
        behind.cpu()


FIRST_OF_SEVERAL = {
    "gather": lambda x, i: x.gather(1, i).exp(),
    "gather, summed over columns": lambda x, i: x.gather(1, i).sum(0),
    "index_select": lambda x, i: x.index_select(1, i.reshape(-1)).t().exp(),
    "index": lambda x, i: x[:, i].relu(),
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x.t()).sum(),
    "cross_entropy": lambda x, i: torch.nn.functional.cross_entropy(
        x.t()[:1].expand(i.numel(), -1), i.reshape(-1)
    ),
    "scatter_add": lambda x, i: x.scatter_add(1, i, torch.ones(i.shape, device=x.device)),
    "index_put": lambda x, i: x.index_put((i.reshape(-1),), x[0], accumulate=True),
}


@pytest.mark.parametrize("name", FIRST_OF_SEVERAL)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_first_of_several_bad_indices_is_told(name, threads):
    """In row-major order, whatever order loops and threads have."""
    x, i = torch.randn(8, 8).to(D), torch.zeros(8, 6000, dtype=torch.int64)
    for row, column, bad in ((0, 5900, 71), (0, 5990, 72), (1, 3, 73), (7, 0, 74)):
        i[row, column] = bad
    i, before = i.to(D), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for _ in range(2):
            with pytest.raises((IndexError, RuntimeError), match=r"\b71\b"):
                FIRST_OF_SEVERAL[name](x, i).cpu()
            with pytest.raises((IndexError, RuntimeError), match=r"\b71\b"), torch_opaque.unfused():
                FIRST_OF_SEVERAL[name](x, i).cpu()
    finally:
        torch.set_num_threads(before)
