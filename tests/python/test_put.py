"""Writes at indices and look-ups in lists, against the CPU: bits, strides, dtypes, gradients, and that no CPU kernel is called."""

import contextlib
import random

import pytest
import torch
import torch.nn.functional as F
import torch_opaque
from moving import DTYPES, SEEDS, D, compare, compare_gradients, layout, same, values

# ---- indices that set


def indices(rng, shape, axis, count, unique):
    size = shape[axis]
    shape = [*shape[:axis], count, *shape[axis + 1 :]]
    torch.manual_seed(rng.randrange(1 << 30))
    if unique:
        return (
            torch.rand([*shape[:axis], size, *shape[axis + 1 :]])
            .argsort(axis)
            .narrow(axis, 0, count)
        )
    return torch.randint(size, shape)


@pytest.mark.parametrize("seed", SEEDS)
def test_scatter_that_sets(seed):
    rng = random.Random(seed)
    shape = [rng.choice([1, 3, 8, 20]) for _ in range(rng.randint(1, 3))]
    axis = rng.randrange(len(shape))
    dtype = rng.choice(DTYPES)
    count = rng.choice([1, 2, shape[axis], 2 * shape[axis], 9, 30])
    index = indices(rng, shape, axis, count, False)
    x = layout(rng, values(rng, shape, dtype))
    source = values(rng, [s + rng.randint(0, 1) for s in index.shape], dtype)
    compare(lambda x, i: x.scatter(axis - len(shape), i, 1), x, index)
    compare(lambda x, i, s: x.scatter(axis, i, s), x, index, source)
    compare(lambda x, i, s: x.clone().scatter_(axis, i, s), x, index, source)
    few = index[
        tuple(
            slice(0, max(1, s - 1)) if d != axis else slice(None) for d, s in enumerate(index.shape)
        )
    ]
    same(x.to(D).scatter(axis, few.to(D), 1), x.scatter(axis, few, 1), strides=False)


PLACES = {
    "index_copy": lambda x, i, s: x.index_copy_(1, i, s),
    "setitem": lambda x, i, s: x.__setitem__((slice(None), i), s),
    "scatter": lambda x, i, s: x.scatter_(1, i[None, :, None].expand(4, -1, 64), s),
}


def large(name, count):
    """A write of `count` rows to each of four slices of a computed tensor, 8 MB of it, on the device and the CPU."""
    x, i, s = torch.randn(4, 8192, 64), torch.randint(8192, (count,)), torch.randn(4, count, 64)
    y = x.to(D)
    torch.opaque.synchronize()
    PLACES[name](x, i, s)
    return x, y, lambda: PLACES[name](y, i.to(D), s.to(D))


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize(
    "name, count", [("index_copy", 1), ("index_copy", 9), ("setitem", 2), ("scatter", 40)]
)
def test_few_places_are_written_where_they_are(name, count, captured):
    """Not a copy of the rest: a cache that is written at a place told by a tensor."""
    x, y, write = large(name, count)
    if captured:  # the first call, which records, has the old value beside the new one
        write = torch_opaque.capture(write)
        write()
    for _ in range(2):
        torch.opaque.synchronize()
        torch.opaque.reset_peak_memory_stats()
        before = torch.opaque.max_memory_allocated()
        write()
        torch.opaque.synchronize()
        assert torch.opaque.max_memory_allocated() < before + x.nbytes / 2
    assert torch.equal(y.cpu(), x)


def step(caches, i, new, name):
    """Rows of each cache, of which all are one tensor, from what the last one has there."""
    for cache in caches:
        PLACES[name](cache, i, new)
        new = cache[:, :, :].sum(1, keepdim=True).expand_as(new) * 0.01 + new
    return new


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("name", ["index_copy", "setitem"])
def test_windows_are_written_where_they_are(name, captured):
    x, i, new = torch.randn(3, 2, 4, 512, 64), torch.tensor([7, 300]), torch.randn(4, 2, 64)
    y, at, source = x.to(D), i.to(D), new.to(D)
    run = torch_opaque.capture(step) if captured else step
    views = [[k for pair in t for k in pair] for t in (x, y)]
    for _ in range(4):
        expected = step(views[0], i, new, name)
        torch.opaque.synchronize()
        torch.opaque.reset_peak_memory_stats()
        before = torch.opaque.max_memory_allocated()
        result = run(views[1], at, source, name)
        torch.opaque.synchronize()
        peak = torch.opaque.max_memory_allocated() - before
        torch.testing.assert_close(result.cpu(), expected)
        torch.testing.assert_close(y.cpu(), x)
    assert peak < x.nbytes / 2
    ops = [node.op for node in torch_opaque.graph(step, views[1], at, source, name).nodes]
    assert ops.count("index_set") == 6 and "update" not in ops


@pytest.mark.parametrize("mode", ["planned", "pieces", "captured"])
def test_a_failure_gives_back_what_was_written_over(mode):
    """What was read before a part was written is right, though the run was done again."""
    x, new, good = torch.randn(4, 2, 64, 8), torch.randn(2, 1, 8), torch.tensor([5])
    y = x.to(D)
    at, source = good.to(D), new.to(D)

    def write(y, at, last, source):
        y[0].index_copy_(1, at, source)
        seen = y[1].sum() + y[0].amax()
        y[1].index_copy_(1, at, source)
        y[2].index_copy_(1, last, source)
        return seen, y.sum()

    run = torch_opaque.capture(write) if mode == "captured" else write
    with torch_opaque.planned() if mode == "planned" else contextlib.nullcontext():
        for bad in (torch.tensor([64]), good, torch.tensor([-1])):
            torch.opaque.synchronize()
            if bad is good:
                assert torch.allclose(run(y, at, at, source)[1].cpu(), write(x, good, good, new)[1])
                continue
            before = x.clone()
            seen = None
            with pytest.raises((IndexError, RuntimeError), match="is out of bounds"):
                seen, total = run(y, at, bad.to(D), source)
                total.cpu()
            x[0].index_copy_(1, good, new)
            if mode != "captured":
                assert torch.allclose(seen.cpu(), before[1].sum() + x[0].amax())
            x[1].index_copy_(1, good, new)
            assert torch.equal(y.cpu(), x)


def test_a_failure_beside_what_was_read_between_writes():
    """One kernel makes two values, of which one fails; the other is computed again, from the product of a row before it was written over."""
    x, w, a, b = torch.randn(400, 64), torch.randn(64, 64), torch.randn(64), torch.randn(64)
    y, weight, first, second = (t.to(D) for t in (x, w, a, b))

    def run(index):
        y[0] = first
        product = y[1] @ weight
        y[1] = second
        some = product[3:5] * 1.5
        return some + product.index_select(0, index), some * 2

    torch.opaque.synchronize()
    for at in ([3, 64], [3, 5]):
        before = y[1].cpu()
        index = torch.tensor(at).to(D)
        with torch_opaque.planned():
            bad, good = run(index)
            if at[1] == 64:
                with pytest.raises(IndexError, match="index 64 is out of bounds"):
                    torch.opaque.synchronize()
            torch.testing.assert_close(good.cpu(), (before @ w)[3:5] * 3)
        x[0], x[1] = a, b
        assert torch.equal(y.cpu(), x)
    del bad, good
    torch.opaque.reset_peak_memory_stats()
    before = torch.opaque.max_memory_allocated()
    with torch_opaque.planned():
        run(index)
        torch.opaque.synchronize()
    assert torch.opaque.max_memory_allocated() < before + x.nbytes / 2


WINDOWS = {
    "columns": lambda x: x[:, 1:5],
    "steps": lambda x: x[1::2],
    "turned": lambda x: x.transpose(0, 1),
    "inner": lambda x: x[:, :, 8:],
    "behind": lambda x: x.flatten()[3:-5].view(-1, 8)[:40].view(5, 8, 8),
    "number": lambda x: x[2, :, 5],
    "all": lambda x: x[:, :],
}


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("window", WINDOWS)
def test_windows_of_all_forms(window, axis):
    x = torch.randn(6, 16, 24)
    part = WINDOWS[window](x)
    axis = min(axis, part.dim() - 1)
    i = torch.tensor([2, 1, 2])
    source = torch.randn([3 if d == axis else s for d, s in enumerate(part.shape)])
    y = x.to(D)
    torch.opaque.synchronize()
    for _ in range(2):
        for t in (x, y):
            WINDOWS[window](t).index_copy_(axis, i.to(t.device), source.to(t.device))
            key = (*[slice(None)] * axis, (2 - i).to(t.device))
            WINDOWS[window](t)[key] = source.to(t.device) + 1
        assert torch.equal(y.cpu(), x)
    bad = torch.tensor([0, part.shape[axis], 1])
    with pytest.raises((IndexError, RuntimeError), match=f"index {bad[1]} is out of bounds"):
        WINDOWS[window](y).index_copy_(axis, bad.to(D), source.to(D))
        y.cpu()
    assert torch.equal(y.cpu(), x)


def test_a_window_on_memory_of_an_odd_size():
    x = torch.zeros(5001, dtype=torch.uint8)
    y = x.to(D)
    torch.opaque.synchronize()
    source = torch.randn(1, 26)
    for t in (x, y):
        part = t[:4992].view(torch.float32).view(6, 8, 26)
        part[1].index_copy_(0, torch.tensor([3]).to(t.device), source.to(t.device))
    assert torch.equal(y.cpu(), x)


@pytest.mark.parametrize("name", PLACES)
def test_the_old_value_stays_where_it_is_needed(name):
    x, y, write = large(name, 9)
    old, seen = y.clone(), y * 2
    write()
    assert torch.equal(y.cpu(), x) and torch.equal(seen.cpu(), 2 * old.cpu())
    with torch.no_grad():
        same(
            y.index_copy(1, torch.tensor([3]).to(D), old[:, 5:6]),
            x.index_copy(1, torch.tensor([3]), old.cpu()[:, 5:6]),
        )
    assert torch.equal(y.cpu(), x)


@pytest.mark.parametrize("name", PLACES)
def test_a_write_to_its_own_place(name):
    """The rows that are written are read from the tensor itself."""
    x, y, write = large(name, 1)
    write()
    i = torch.tensor(sum(([k, k + 1] for k in range(0, 40, 2)), []))
    for t in (x, y):
        PLACES[name](t, i.to(t.device), t[:, 1 : 1 + len(i)] + 0.5)
        PLACES[name](t, i.to(t.device), t[:, :40].flip(1) + 1)
    assert torch.equal(y.cpu(), x)


@pytest.mark.parametrize("name", PLACES)
def test_a_place_that_does_not_exist(name):
    """The tensor is as it was, though others were written before and after; captured and not."""
    x, y, write = large(name, 9)
    write()
    z = y.clone()
    good, bad = torch.arange(9).to(D), torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 9000]).to(D)
    source = torch.ones(4, 9, 64).to(D)
    torch.opaque.synchronize()

    def write(i):
        PLACES[name](y, i, source)
        PLACES[name](z, good, source)

    for fn in (write, *[torch_opaque.capture(write)] * 2):
        with pytest.raises((IndexError, RuntimeError), match="index 9000 is out of bounds"):
            fn(bad)
            y.cpu()
        assert torch.equal(y.cpu(), x)
        PLACES[name](expected := x.clone(), good.cpu(), source.cpu())
        assert torch.equal(z.cpu(), expected)
        z.copy_(y)
        torch.opaque.synchronize()
    write(good)
    assert torch.equal(y.cpu(), expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_index_copy_and_fill(seed):
    rng = random.Random(seed)
    shape = [rng.choice([1, 3, 8, 20]) for _ in range(rng.randint(1, 3))]
    axis = rng.randrange(len(shape))
    dtype = rng.choice(DTYPES)
    count = rng.choice([1, 2, 8, 9, 30])
    index = torch.tensor([rng.randrange(shape[axis]) for _ in range(count)])
    x = layout(rng, values(rng, shape, dtype))
    source = values(rng, [*shape[:axis], count, *shape[axis + 1 :]], dtype)
    compare(lambda x, i, s: x.index_copy(axis, i, s), x, index, source)
    compare(lambda x, i: x.index_fill(axis, i, 1), x, index)
    backwards = torch.where(torch.rand(count) < 0.5, index, index - shape[axis])
    value = torch.tensor(3).to(dtype)
    compare(lambda x, i, v: x.index_fill(axis, i, v), x, backwards, value)


@pytest.mark.parametrize("seed", SEEDS)
def test_index_put(seed):
    rng = random.Random(seed)
    dtype = rng.choice(DTYPES)
    shape = [rng.choice([2, 5, 9]) for _ in range(rng.randint(2, 4))]
    x = layout(rng, values(rng, shape, dtype))
    count = rng.choice([1, 3, 8, 25])
    chosen = [rng.random() < 0.5 for _ in shape[1:]]
    given = [torch.randint(-s, s, (count,)) if c else None for s, c in zip(shape, [True, *chosen])]
    key = [slice(None) if i is None else i for i in given]
    value = values(rng, x[tuple(key)].shape, dtype)

    def put(x, v, *index):
        index = iter(index)
        x = x.clone()
        x[tuple(slice(None) if i is None else next(index) for i in given)] = v
        return x

    present = [i for i in given if i is not None]
    compare(put, x, value, *present, strides=False)
    compare(put, x, value.flatten()[0], *present, strides=False)


def test_index_put_with_a_mask():
    x = torch.randn(3, 4, 5)
    for mask, at in ((x > 0, 0), (x[0, 0] > 0, 2), (x[:, :, 0] > 0, 0)):

        def put(x, m):
            x = x.clone()
            x[(*[slice(None)] * at, m)] = -1.5  # noqa: B023
            return x

        compare(put, x, mask)


def test_numbers_are_rows_of_one():
    x, i = torch.tensor(2.5), torch.tensor(0)
    compare(lambda x, i: x.gather(0, i), x, i)
    compare(lambda x, i: x.scatter(0, i, 3.0), x, i)
    compare(lambda x, i: x.scatter(0, i, x * 2), x, i)
    compare(lambda x, i: x.scatter_add(0, i, x * 2), x, i)
    compare(lambda x, i: x.index_add(0, i, x * 2), x, i.view(1))
    compare(lambda x, i: x.index_select(0, i), x, i.view(1))
    compare(lambda x, i: x.index_copy(0, i, x * 2), x, i)
    compare(lambda x, i: x.index_fill(0, i, 3.0), x, i)


def test_of_nothing():
    none = torch.randn(0, 3, 4)
    compare(lambda x: torch.softmax(x, 1), none)
    compare(lambda x: x.roll((1, 2), (0, 2)), none)
    compare(lambda x: x.flip(0).tril(), none)
    compare(lambda x: F.group_norm(x, 3), none)
    compare(lambda x: F.pixel_shuffle(x.view(0, 4, 3, 1), 2), none)
    compare(lambda x: F.pixel_unshuffle(x.view(0, 3, 2, 2), 2), none)
    for mode in ("reflect", "replicate"):
        compare(lambda x: F.pad(x, (1, 2), mode=mode), none)  # noqa: B023
        compare_gradients(lambda x: F.pad(x, (1, 2), mode=mode), none)  # noqa: B023


def test_one_hot():
    x = torch.randint(5, (3, 4))
    compare(lambda x: F.one_hot(x, 7), x)
    compare(lambda x: F.one_hot(x, 5), x.flatten()[0])


@pytest.mark.parametrize(
    "f",
    [
        lambda x, i: x.scatter(0, i.unsqueeze(1).expand(-1, 3), 1.0),
        lambda x, i: x.index_fill(0, i, 1.0),
        lambda x, i: x.index_copy(0, i, x[: i.numel()] if i.numel() <= 4 else x[[0] * 12]),
        lambda x, i: x.index_put((i,), x[0]),
    ],
)
@pytest.mark.parametrize("count", [1, 12])
def test_an_index_out_of_range_is_an_error(f, count):
    x, index = torch.randn(4, 3), torch.full((count,), 9)
    for device in ("cpu", D):
        with pytest.raises((IndexError, RuntimeError)):
            f(x.to(device), index.to(device)).cpu()


@pytest.mark.parametrize("seed", range(8))
def test_gradients_of_indices_that_set(seed):
    """Where indices repeat, the CPU's formula counts the source more than once: as here."""
    rng = random.Random(seed)
    shape = [rng.choice([3, 8, 12]) for _ in range(2)]
    axis, count = rng.randrange(2), rng.choice([1, 2, 3])
    index = indices(rng, shape, axis, count, True)
    x, source = torch.randn(shape), torch.randn(index.shape)
    compare_gradients(lambda x, s, i: x.scatter(axis, i, s), x, source, index)
    compare_gradients(lambda x, i: x.scatter(axis, i, 2.0), x, index)
    flat = index.select(1 - axis, 0).contiguous()
    compare_gradients(lambda x, s, i: x.index_copy(axis, i, s), x, source, flat)
    compare_gradients(lambda x, i: x.index_fill(axis, i, 2.0), x, flat)
    compare_gradients(lambda x: x.max(axis).values, x)


# ---- lists


@pytest.mark.parametrize("count", [1, 5, 16, 17, 100])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8], ids=str
)
@pytest.mark.parametrize("shape", [(7, 9), (130, 130)], ids=["small", "large"])
def test_lookups(dtype, count, shape):
    rng = random.Random(count)
    x = values(rng, shape, dtype)
    some = values(rng, (count,), dtype)
    listed = torch.cat([some, x.flatten()[:2]])[-count:]
    for invert in (False, True):
        compare(lambda x, some: torch.isin(x, some, invert=invert), x, listed)  # noqa: B023
    bounds = torch.where(some == some, some, torch.zeros((), dtype=dtype)).sort().values
    for right in (False, True):
        compare(lambda x, b: torch.bucketize(x, b, right=right), x, bounds)  # noqa: B023
        compare(lambda x, b: torch.searchsorted(b, x, right=right, out_int32=True), x, bounds)  # noqa: B023


def test_few_values_are_looked_up_in_few_ops():
    numbers = torch.arange(16.0).to("opaque")
    before = torch_opaque.stats()["ops_recorded"]
    places = torch.searchsorted(numbers, numbers + 0.5)
    assert torch_opaque.stats()["ops_recorded"] - before <= 8
    assert places.tolist() == list(range(1, 17))
