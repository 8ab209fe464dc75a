"""Every way to index, with every kind of index and value, each on the CPU and on the device: what CUDA takes gives what the CPU gives
where all of it is on the CPU, and what CUDA refuses is refused in its words."""

import itertools
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch_opaque
from raising import both_raise

D = "opaque"
X = torch.arange(24.0).view(2, 3, 4)
ROWS = torch.tensor([True, False])
COLUMNS = torch.tensor([True, False, True, False])
SOME = torch.tensor([1, 0, 1])
EVERY_THIRD = X.remainder(3) == 0

# What stands in brackets: tensors, which are moved, and all else.
TENSORS = {
    "mask of rows": (ROWS,),
    "mask": (EVERY_THIRD,),
    "mask of two dims": (EVERY_THIRD[:, :, 0],),
    "mask that is false": (torch.zeros(2, dtype=torch.bool),),
    "mask, number": (ROWS, 1),
    "number, mask": (1, torch.tensor([True, False, True])),
    "..., mask": (..., COLUMNS),
    "None, mask": (None, ROWS),
    "mask, slice, index": (ROWS, slice(None), torch.tensor([2])),
    "two masks": (ROWS, torch.tensor([True, False, False])),
    "bytes": (ROWS.byte(),),
    "bytes for all": (EVERY_THIRD.byte(),),
    "true": (torch.tensor(True),),
    "false": (torch.tensor(False),),
    "byte": (torch.tensor(1, dtype=torch.uint8),),
    "index": (SOME,),
    "int32": (SOME.int(),),
    "int16": (SOME.short(),),
    "float": (SOME.float(),),
    "from behind": (-SOME,),
    "two": (SOME, SOME),
    "two apart": (SOME, slice(None), SOME),
    "two that broadcast": (SOME.view(3, 1), torch.tensor([0, 1])),
    "two that do not": (SOME, torch.tensor([0, 1])),
    "too many": (SOME,) * 4,
    "nothing": (torch.tensor([], dtype=torch.long),),
    "0-d": (torch.tensor(1),),
    "0-d and others": (torch.tensor(1), SOME),
    "mask too long": (torch.ones(3, dtype=torch.bool),),
    "out of range": (torch.tensor([5]),),
}
PLAIN = {
    "list": ([0, 1],),
    "lists": ([0, 1], [1, 2]),
    "list out of range": ([0, 7],),
    "list of bools": ([True, False],),
    "nested list": ([[0, 1], [1, 0]],),
    "tuple": ((0, 1),),
    "range": (range(2),),
    "array": (np.array([1, 0]),),
    "int32 array": (np.array([1, 0], dtype=np.int32),),
    "array mask": (ROWS.numpy(),),
    "array mask for all": (EVERY_THIRD.numpy(),),
    "array without dims": (np.array(1),),
    "NumPy's integer": (np.int64(1),),
    "NumPy's bool": (np.bool_(True),),
    "True": (True,),
    "False": (False,),
}


OUT_OF_RANGE = (TENSORS["out of range"], PLAIN["list out of range"])


def moved(key, device):
    return tuple(k.to(device) if isinstance(k, torch.Tensor) else k for k in key)


# As values: numbers, tensors, and one that has the shape of what is replaced.
VALUES = {
    "number": 2.5,
    "bool": True,
    "0-d": torch.tensor(2.5),
    "0-d int": torch.tensor(2),
    "0-d float64": torch.tensor(2.5, dtype=torch.float64),
    "one": torch.tensor([2.5]),
    "one of three dims": torch.tensor([[[2.5]]]),
    "whole": None,
    "seven": torch.ones(7),
}


def as_tensor(value, x):
    return value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=x.dtype)


def setitem(x, key, value):
    x = x.clone()
    x[key] = value
    return x


WRITES = {
    "setitem": setitem,
    "index_put": lambda x, key, v: x.index_put(key, as_tensor(v, x)),
    "index_put_": lambda x, key, v: x.clone().index_put_(key, as_tensor(v, x)),
    "accumulate": lambda x, key, v: x.index_put(key, as_tensor(v, x), accumulate=True),
    "accumulate_": lambda x, key, v: x.clone().index_put_(key, as_tensor(v, x), accumulate=True),
}
READS = {
    "getitem": lambda x, key: x[key],
    "unsafe": lambda x, key: torch.ops.aten._unsafe_index(x, list(key)),
}


def outcome(f):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = f()
            return result.device.type, result.cpu()
        except Exception as error:
            return type(error), str(error).splitlines()[0]


def check(f, key, value=None):
    """A CPU value with dims is copied or refused; all else must be as on the CPU, whatever lies where."""
    args = lambda where, to: (moved(key, where), *moved(() if value is None else (value,), to))  # noqa: E731
    want, answer = outcome(lambda: f(X, *args("cpu", "cpu")))
    for where, to in itertools.product(("cpu", D), ("cpu", D)):
        got, result = outcome(lambda: f(X.to(D), *args(where, to)))  # noqa: B023
        refusable = to == "cpu" and isinstance(value, torch.Tensor) and value.dim() > 0
        if refusable and got is RuntimeError and "same device" in result:
            continue
        if isinstance(answer, torch.Tensor):
            assert got == D and torch.equal(result, answer), (key, where, to, got, result)
        else:
            assert got is want and answer in result, (key, where, to, got, result)


@pytest.mark.parametrize("way", READS)
def test_reads(way):
    for key in [*TENSORS.values(), *(PLAIN.values() if way == "getitem" else [])]:
        check(READS[way], key)


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("way", WRITES)
def test_writes(way, name):
    for key in [*TENSORS.values(), *(PLAIN.values() if way == "setitem" else [])]:
        value = VALUES[name]
        if name == "seven" and any(key is k for k in OUT_OF_RANGE):
            continue  # of two mistakes, either may be told
        if name == "whole":
            shape = outcome(lambda: X[key])[1]  # noqa: B023
            shape = shape.shape if isinstance(shape, torch.Tensor) else (1,)
            value = -torch.arange(float(torch.Size(shape).numel())).view(shape)
        check(WRITES[way], key, value)


def test_a_value_with_dims_lies_where_the_tensor_does():
    x = X.to(D)
    x[ROWS.to(D)] = torch.tensor([7.0])  # as CUDA: this is a number
    assert torch.equal(x.cpu(), setitem(X, ROWS, 7.0))
    for key in (SOME, ROWS):
        with pytest.raises(RuntimeError, match="same device"):
            x[key] = torch.ones(4)
        with pytest.raises(RuntimeError, match="same device"):
            x.index_put_((key,), torch.ones(4), accumulate=True)


# Operators by name: a call of (x, others), and which of the others may be a CPU tensor: "-" none, "0" if it has no dims, "*" any. CUDA's kernels
# check the rest.
INDEX = torch.tensor([1, 0])
EACH = torch.tensor([[[0, 1, 0, 1]] * 3] * 2)
SOURCE = -X
OPERATORS = {
    "index_select": (lambda x, i: x.index_select(0, i), [INDEX], "-"),
    "index_select, int32": (lambda x, i: x.index_select(0, i), [INDEX.int()], "-"),
    "index_add": (lambda x, i, s: x.index_add(0, i, s, alpha=2), [INDEX, SOURCE], "--"),
    "index_copy": (lambda x, i, s: x.index_copy(0, i, s), [INDEX, SOURCE], "--"),
    "index_reduce": (lambda x, i, s: x.index_reduce(0, i, s, "amax"), [INDEX, SOURCE], "--"),
    "index_fill": (lambda x, i: x.index_fill(0, i, 3.0), [INDEX], "*"),
    "index_fill with a tensor": (
        lambda x, i, v: x.index_fill(0, i, v),
        [INDEX, torch.tensor(3)],
        "*0",
    ),
    "masked_fill": (lambda x, m: x.masked_fill(m, 2.0), [EVERY_THIRD], "-"),
    "masked_fill with a tensor": (
        lambda x, m, v: x.masked_fill(m, v),
        [EVERY_THIRD, torch.tensor(2, dtype=torch.float64)],
        "-0",
    ),
    "masked_scatter": (lambda x, m, s: x.masked_scatter(m, s), [EVERY_THIRD, SOURCE], "--"),
    "masked_select": (lambda x, m: x.masked_select(m), [EVERY_THIRD], "-"),
    "take": (lambda x, i: x.take(i), [INDEX], "-"),
    "put": (lambda x, i, s: x.put(i, s), [INDEX, SOURCE[0, 0, :2]], "--"),
    "put, accumulated": (
        lambda x, i, s: x.put(i, s, accumulate=True),
        [INDEX, SOURCE[0, 0, :2]],
        "--",
    ),
    "gather": (lambda x, i: x.gather(0, i), [EACH], "-"),
    "gather, int32": (lambda x, i: x.gather(0, i), [EACH.int()], "-"),
    "scatter": (lambda x, i, s: x.scatter(0, i, s), [EACH, SOURCE], "--"),
    "scatter of a number": (lambda x, i: x.scatter(0, i, 2.0), [EACH], "-"),
    "scatter_add": (lambda x, i, s: x.scatter_add(0, i, s), [EACH, SOURCE], "--"),
    "scatter_reduce": (lambda x, i, s: x.scatter_reduce(0, i, s, "amax"), [EACH, SOURCE], "--"),
    "where": (lambda x, m, s: torch.where(m, x, s), [EVERY_THIRD, SOURCE], "--"),
    "where with a number": (
        lambda x, m, v: torch.where(m, x, v),
        [EVERY_THIRD, torch.tensor(2.0)],
        "-0",
    ),
    "where by a number": (
        lambda x, m, s: torch.where(m, x, s),
        [torch.tensor(True), SOURCE],
        "0-",
    ),
    "embedding": (lambda x, i: F.embedding(i, x[0]), [INDEX], "-"),
    "bucketize": (lambda x, b: torch.bucketize(x, b), [torch.tensor([1.0, 9.0])], "-"),
    "bincount": (
        lambda x, w: torch.bincount(x.flatten().long(), w),
        [torch.ones(24)],
        "-",
    ),
    "repeat_interleave": (lambda x, r: x.repeat_interleave(r, 0), [INDEX], "-"),
    "tensor_split": (lambda x, at: torch.tensor_split(x, at, 2)[1], [INDEX.sort().values], "*"),
}


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_take_what_cuda_takes(name):
    f, others, taken = OPERATORS[name]
    want = f(X, *others)
    for where in itertools.product(("cpu", D), repeat=len(others)):
        given = [o.to(w) for o, w in zip(others, where, strict=True)]
        if any(w == "cpu" and t == "-" for w, t in zip(where, taken, strict=True)):
            with pytest.raises(RuntimeError, match="same device"):
                f(X.to(D), *given).cpu()
        else:
            got = f(X.to(D), *given)
            assert got.device.type == D and torch.equal(got.cpu(), want), where


# ---- nonzero, warnings, errors


@pytest.mark.parametrize(
    "out", [(0,), (2, 1), (7, 7), (1, 2)], ids=lambda shape: "x".join(map(str, shape))
)
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_nonzero_into(out):
    x = torch.tensor([1, 0, 1])
    want = torch.empty(out, dtype=torch.long)
    got = torch.empty(out, dtype=torch.long, device=D)
    torch.nonzero(x, out=want)
    torch.nonzero(x.to(D), out=got)
    assert torch.equal(got.cpu(), want)


def test_nonzero_into_another_dtype():
    both_raise(lambda d: torch.nonzero(torch.ones(2, device=d), out=torch.empty(2, 1, device=d)))


def test_a_mask_of_bytes_warns_once():
    for device in ("cpu", D):
        x, mask = (
            torch.ones(10, 10, device=device),
            torch.zeros(10, dtype=torch.uint8, device=device),
        )
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            x.index_put_((mask,), x[mask], accumulate=True)
            x[mask] = torch.ones(0, 10, device=device)  # at this line, not where it runs
        assert len([w for w in seen if "torch.uint8" in str(w.message)]) == 3, device
        assert x.sum() == 100


@pytest.mark.parametrize("rank", range(5))
def test_masks_without_a_fallback(rank):
    """Also masks that are computed, of which nothing or everything is true, and transposed ones."""
    shape = (5, 3, 1, 4)[:rank]
    torch.manual_seed(rank)
    turned = torch.randn(shape)
    for x in (
        torch.randn(shape),
        torch.zeros(shape),
        torch.ones(shape),
        turned.permute(tuple(reversed(range(rank)))),
    ):
        with torch_opaque.strict():
            y = x.to(D)
            for find in (torch.nonzero, torch.argwhere, lambda t: torch.nonzero(t > 0)):
                torch.testing.assert_close(find(y).cpu(), find(x))
            torch.testing.assert_close(y.masked_select(y > 0).cpu(), x.masked_select(x > 0))
            if rank > 0:
                torch.testing.assert_close((y * 2)[y > 0].cpu(), (x * 2)[x > 0])
                rows = x.reshape(x.shape[0], -1).sum(1) > 0
                torch.testing.assert_close(y[rows.to(D)].cpu(), x[rows])


def test_gradients_through_masks():
    """The positions are computed once; what is read and its gradient are recorded."""
    base = torch.randn(6, 4)
    grads = {}
    for device in ("cpu", D):
        x = base.to(device, copy=True).requires_grad_()
        with torch_opaque.strict():
            loss = (x[x > 0] ** 2).sum() + x[x.sum(1) > 0].exp().sum() + x[x[:, 0] > 0, 1].sum()
            loss.backward()
        grads[device] = x.grad.cpu()
    torch.testing.assert_close(grads["cpu"], grads[D])
