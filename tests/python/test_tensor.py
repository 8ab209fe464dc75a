"""What a tensor on the device is to PyTorch: windows, aliasing, storage identity, copies, writes, errors."""

import contextlib
import copy
import io
import threading

import pytest
import torch
import torch.nn as nn
import torch_opaque
from torch_opaque import _C

D = "opaque"

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.uint16,
]
LAYOUTS = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.t(),
    "sliced": lambda t: t[1::2, 1:],
    "expanded": lambda t: t[:1].expand(4, 6),
    "empty": lambda t: t[:0],
    "scalar": lambda t: t[1, 2],
}
VIEWS = {
    "view": lambda x: x.view(2, 12),
    "t": lambda x: x.t(),
    "slice": lambda x: x[1:3, ::2],
    "select": lambda x: x.select(0, 2),
    "expand": lambda x: x.expand(3, 4, 6),
    "unfold": lambda x: x.unfold(1, 3, 1),
    "diagonal": lambda x: x.diagonal(),
    "as_strided": lambda x: x.as_strided((2, 2), (6, 1), 3),
    "narrow type": lambda x: x.view(torch.int16),
    "same width": lambda x: x.view(torch.int32),
    "complex": lambda x: torch.view_as_complex(x.view(4, 3, 2)),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "squeeze": lambda x: x[:1].squeeze(0),
    "permute": lambda x: x.view(2, 2, 6).permute(2, 0, 1),
    "detach": lambda x: x.detach(),
    "chunk": lambda x: x.chunk(2, 1)[1],
    "flatten": lambda x: x.flatten(),
}


def same(got, want):
    torch.testing.assert_close(got.cpu(), want, equal_nan=True)


def equal_bits(a, b):
    assert a.dtype == b.dtype and a.shape == b.shape
    return torch.equal(
        a.contiguous().reshape(-1).view(torch.uint8), b.contiguous().reshape(-1).view(torch.uint8)
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_round_trip(dtype, layout):
    t = LAYOUTS[layout]((torch.randn(4, 6) * 3).to(dtype))
    o = t.to(D)
    assert o.device.type == D and o.dtype == dtype and o.shape == t.shape
    assert equal_bits(o.cpu(), t)


@pytest.mark.parametrize("dtype", DTYPES)
def test_elements_are_read_where_they_lie(dtype):
    """Numbers and small copies, of tensors and of parts of them; what was copied is nobody else's."""
    mine = torch.arange(12).to(dtype)
    x = mine.to(D)
    for part in (
        lambda t: t[3],
        lambda t: t[5:6],
        lambda t: t.view(3, 4)[1],
        lambda t: t.view(3, 4).t()[2, 1],
        lambda t: t[2:9],
        lambda t: t[::2],
    ):
        same(part(x).cpu(), part(mine))
        if part(mine).numel() == 1:
            assert part(x).item() == part(mine).item()
    if dtype.is_complex:
        assert x.conj().imag[3].item() == mine.conj().imag[3].item()
        same(x.conj().imag.cpu(), mine.conj().imag.clone())
    copied, back = mine.to(D), x.cpu()
    mine.zero_(), x.zero_()
    same(copied.cpu(), back)
    same(back, torch.arange(12).to(dtype))


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.uint8, torch.float16, torch.float32, torch.float64]
)
def test_arange_counts_as_pytorch(dtype):
    ends = [(0, 5, 1), (0, 0, 1), (2, 9, 3), (2, 8, 3), (5, 5, -2), (7, 90, 83), (1, 90, 90)]
    if dtype != torch.uint8:
        ends += [(9, 2, -3), (8, 2, -3), (0, -4, -1), (-3, 4, 2)]
    if dtype in (torch.int64, torch.float64):
        ends += [(0, 2**31 + 5, 2**30), (2**40, 2**40 + 3, 1), (-(2**31), 2**31, 2**30)]
    for each in ends:
        same(torch.arange(*each, dtype=dtype, device=D), torch.arange(*each, dtype=dtype))
    for wrong in [(0, 5, 0), (0, 5, -1), (5, 0, 1)]:
        for device in ("cpu", D):
            with pytest.raises(
                RuntimeError, match="step must be nonzero|inconsistent with step sign"
            ):
                torch.arange(*wrong, dtype=dtype, device=device)


def test_arange_is_one_op():
    text = str(torch_opaque.graph(torch.arange(5, device=D)))
    assert "iota" in text and "mul" not in text and "add" not in text, text


def test_an_operator_is_tried_for_few_lengths():
    """On the CPU kernel, which judges what the core would compute: once for each way in which sizes compare."""
    x = torch.rand(50, 4, device=D)

    def calls(lengths):
        with torch.profiler.profile() as seen:
            for n in lengths:
                x.index_select(0, torch.zeros(n, dtype=torch.int64, device=D))
        return sum(e.count for e in seen.key_averages() if e.key == "aten::index_select")

    calls([5, 50, 60])
    assert calls(range(6, 40)) == 34


def test_strides_are_kept():
    for t in (torch.randn(4, 6).t(), torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)):
        o = t.to(D)
        assert o.stride() == t.stride()
        assert (o + 1).stride() == (t + 1).stride()
        assert o.clone().stride() == t.stride()
        assert o.contiguous().is_contiguous()
        same(o + 1, t + 1)


@pytest.mark.parametrize("name", VIEWS)
def test_views_share_the_cell(name):
    base = torch.randn(4, 6)
    o = base.to(D)
    got, want = VIEWS[name](o), VIEWS[name](base)
    assert got.stride() == want.stride() and got.storage_offset() == want.storage_offset()
    assert _C.cell_id(got) == _C.cell_id(o)
    if want._is_view():
        assert got._is_view()
    assert equal_bits(got.cpu(), want)


@pytest.mark.parametrize("used_outside", [False, True])
@pytest.mark.parametrize("made_outside", [False, True])
@pytest.mark.parametrize("name", VIEWS)
def test_views_in_inference_mode(name, made_outside, used_outside):
    """A view is an inference tensor where PyTorch's is, and may be written where PyTorch's may."""
    seen = {}
    for device in ("cpu", D):
        with torch.inference_mode(not made_outside):
            x = torch.arange(24.0).view(4, 6).to(device)
        with torch.inference_mode(not used_outside):
            view = VIEWS[name](x)
            try:
                written = view.real.fill_(3).cpu()
            except RuntimeError as error:
                written = str(error)
        version = None if view.is_inference() else view._version
        seen[device] = (view.is_inference(), view._is_view(), version, str(written), str(x.cpu()))
    assert seen[D] == seen["cpu"]


def test_writes_are_seen_through_every_view():
    base = torch.randn(4, 6)
    o = base.to(D)
    views = {}
    for x in (base, o):
        row, column = x[1], x.t()[2]
        row.add_(1)
        column.mul_(2)
        x[2:4, 1:3] = 7
        x.diagonal().fill_(9)
        x[:, 0] = torch.arange(4.0).to(x.device)
        x[x > 8] = -1
        x.view(torch.int32)[0, 5] = 0
        x.view(-1)[3:5].copy_(torch.tensor([1.0, 2.0]))
        x.masked_fill_(x < 0, 3)
        views[x.device.type] = (row, column)
    same(o, base)
    for got, want in zip(views[D], views["cpu"]):
        same(got, want)


@pytest.mark.parametrize(
    "copied", [torch.clone, lambda x: torch.empty_like(x).copy_(x), lambda x: x.to(D, copy=True)]
)
def test_a_tensor_and_its_copy_are_written(copied):
    """In one run: a copy is the same value until then, and only one of the two may keep its memory."""
    for fused in (torch_opaque.unfused, torch_opaque.eager, contextlib.nullcontext):
        for n in (2, 1000, 1 << 16):
            base = torch.arange(float(n))
            x = base.to(D)
            y = copied(x)
            with fused():
                x.mul_(2)
                y.add_(1)
            same(x, base * 2)
            same(y, base + 1)


def test_readers_keep_the_old_value():
    x = torch.arange(4.0, device=D)
    y = x + 1
    x.zero_()
    same(y, torch.arange(4.0) + 1)
    same(x, torch.zeros(4))


def test_overlapping_writes_raise():
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        torch.ones(1, device=D).expand(3).add_(1)


def test_memory_that_nobody_wrote_keeps_what_it_held():
    for _ in range(3):
        x = torch.empty(100, 100, device=D)
        first = x[0:1].clone()
        x[99:100].normal_()
        again = x.clone()
        torch.full(
            (100, 100), 7.0, device=D
        ).sin().cpu()  # other contents in memory that is used again
        assert first.cpu().view(torch.int32).equal(x[0:1].cpu().view(torch.int32))
        assert again.cpu().view(torch.int32).equal(x.cpu().view(torch.int32))


def test_storage_is_an_identity():
    x = torch.ones(4, device=D)
    y = x[1:]
    assert x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr() != 0
    assert x.untyped_storage().data_ptr() != torch.ones(4, device=D).untyped_storage().data_ptr()
    assert x.data_ptr() == x.untyped_storage().data_ptr() == y.data_ptr() - 4


def test_set_and_resize():
    x = torch.zeros(0, device=D)
    x.resize_(2, 3).fill_(5)
    same(x, torch.full((2, 3), 5.0))
    y = torch.empty(0, device=D)
    y.set_(x)
    assert y.is_set_to(x) and _C.cell_id(y) == _C.cell_id(x)
    z = torch.empty(0, device=D).set_(x.untyped_storage(), 1, (2,), (2,))
    z.fill_(1)
    same(x.flatten()[:4], torch.tensor([5.0, 1, 5, 1]))


@pytest.mark.parametrize("size", [(3, 4), (5, 6), (6, 5), (30,), (2, 3, 5)], ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "sliced"])
def test_resize_keeps_what_lies_in_memory(layout, size):
    def resized(device):
        t = torch.arange(30.0).reshape(5, 6).to(device)
        if layout == "transposed":
            t = t.mT.contiguous().mT
        elif layout == "sliced":
            t = torch.stack([t, t + 30], -1)[..., 0]
        return t.resize_(size)

    ours, expected = resized(D), resized("cpu")
    same(ours, expected)
    assert ours.stride() == expected.stride() and ours.storage_offset() == expected.storage_offset()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16, torch.bool, torch.complex64])
def test_new_memory_is_filled_where_algorithms_are_deterministic(dtype):
    def made(device):
        x = torch.ones(3, dtype=dtype, device=device)
        x.resize_(2, 4)
        views = torch.empty(6, dtype=dtype, device=device).fill_(1)[2:4]
        return x, views.resize_(5), torch.empty(2, dtype=dtype, device=device), x.new_empty(3)

    torch.use_deterministic_algorithms(True)
    try:
        for ours, theirs in zip(made(D), made("cpu"), strict=True):
            torch.testing.assert_close(ours.cpu(), theirs, equal_nan=True)
    finally:
        torch.use_deterministic_algorithms(False)


def test_resize_to_the_same_size():
    """Strides stay as they are, unless a memory format asks for others."""
    x = torch.arange(24.0).reshape(1, 4, 2, 3).to("opaque")
    t = x.transpose(1, 2)
    strides = t.stride()
    assert t.resize_(t.shape).stride() == strides
    assert x.resize_(x.shape, memory_format=torch.channels_last).stride() == (24, 1, 12, 4)


def test_data_assignment_and_detach():
    x = torch.ones(3, device=D, requires_grad=True)
    d = x.detach()
    assert _C.cell_id(d) == _C.cell_id(x)
    x.data = torch.zeros(3, device=D)
    assert x.sum().item() == 0 and d.sum().item() == 3
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        x.data = torch.zeros(3)


def test_saved_tensor_check():
    x = torch.ones(3, device=D, requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_conjugate_and_negative_bits():
    z = torch.randn(3, dtype=torch.complex64)
    o = z.to(D)
    same(o.conj(), z.conj().resolve_conj())
    same(o.conj().imag, z.conj().imag.resolve_neg())
    same(o.conj() * o, z.conj() * z)
    w = o.clone()
    w.conj().copy_(o)
    same(w, z.conj().resolve_conj())


def test_zero_tensor():
    assert torch._efficientzerotensor((2, 2), device=D).cpu().eq(0).all()


def test_copy_broadcasts_and_converts():
    o = torch.zeros(2, 3, device=D)
    o.copy_(torch.arange(3))
    same(o, torch.arange(3.0).expand(2, 3))
    o.copy_(torch.tensor(4, dtype=torch.float64, device=D))
    same(o, torch.full((2, 3), 4.0))
    same(o.to(torch.int32), torch.full((2, 3), 4, dtype=torch.int32))
    c = torch.empty(3, 2)
    c.t().copy_(o)
    assert (c == 4).all()


def test_impossible_allocation_raises_at_the_call():
    with pytest.raises(RuntimeError, match="allocate memory"):
        torch.empty(1 << 50, device=D)


def test_mixed_devices_raise():
    x = torch.ones(3, device=D)
    cpu = torch.ones(3)
    same(x + torch.tensor(2.0), cpu + 2)
    for f in (
        lambda: x + cpu,
        lambda: cpu + x,
        lambda: x @ cpu,
        lambda: torch.cat([x, cpu]),
        lambda: torch.where(x > 0, x, cpu),
        lambda: torch.nn.functional.linear(x[None], torch.ones(2, 3)),
        lambda: torch.special.digamma(torch.zeros(3, device=D)).mul_(cpu),
    ):
        with pytest.raises(RuntimeError, match="device"):
            f()
    same(x[torch.tensor([0, -1])], torch.ones(2))


def test_generators_are_checked():
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(3, device=D, generator=torch.Generator())
    g = torch.Generator(device=D)
    g.manual_seed(3)
    a = torch.rand(5, device=D, generator=g).cpu()
    state = g.get_state()
    b = torch.rand(5, device=D, generator=g).cpu()
    g.set_state(state)
    assert torch.equal(torch.rand(5, device=D, generator=g).cpu(), b)
    g.manual_seed(3)
    assert torch.equal(torch.rand(5, device=D, generator=g).cpu(), a) and not torch.equal(a, b)


def test_uniform_over_more_than_the_dtype_holds():
    for device in ("cpu", D):
        with pytest.raises(RuntimeError, match="uniform_ expects to-from <="):
            torch.zeros(2, device=device).uniform_(-3e38, 3e38)
    torch.zeros(2, device=D).uniform_(3e38, 3.1e38)  # whose sum is no size


def test_uniform_and_normal_moments():
    torch.manual_seed(0)
    u, n = torch.rand(100_000, device=D).cpu(), torch.randn(100_000, device=D).cpu()
    assert (
        u.min() >= 0 and u.max() < 1 and abs(u.mean() - 0.5) < 0.01 and abs(u.var() - 1 / 12) < 0.01
    )
    assert abs(n.mean()) < 0.02 and abs(n.var() - 1) < 0.02
    p = torch.nn.functional.dropout(torch.ones(100_000, device=D), 0.25).cpu()
    assert (
        set(p.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
        and abs(p.mean() - 1) < 0.02
    )


def test_nothing_runs_before_a_value_is_needed():
    torch_opaque.reset_stats()
    x = torch.randn(8, 8, device=D)
    y = (x @ x + 1).relu().sum()
    assert _C.is_pending(y) and torch_opaque.stats()["kernels_run"] == 0
    y.item()
    assert not _C.is_pending(y)
    assert torch_opaque.stats()["flushes"] == {"item": 1}


def test_deepcopy_and_save_load():
    m = nn.Linear(3, 2).to(D)
    twin = copy.deepcopy(m)
    assert _C.cell_id(twin.weight) != _C.cell_id(m.weight)
    same(twin.weight.detach(), m.weight.detach().cpu())
    f = io.BytesIO()
    torch.save(m.state_dict(), f)
    for where in (None, "cpu", D):
        f.seek(0)
        state = torch.load(f, weights_only=True, map_location=where)
        assert state["weight"].device.type == (where or D)
        torch.testing.assert_close(state["weight"].cpu(), m.weight.detach().cpu())


def test_accelerator_memory():
    x = torch.ones(1000, device=D)
    x.cpu()
    assert torch.accelerator.memory_allocated() > 0
    torch.accelerator.empty_cache()
    free, total = torch.accelerator.get_memory_info()
    assert 0 < free <= total


def test_pinned_memory_remembers():
    t = torch.ones(3)
    assert not t.is_pinned()
    assert t.pin_memory().is_pinned()


def test_recording_from_many_threads(in_threads):
    failures = []

    def work(seed):
        try:
            for i in range(30):
                x = torch.full((8,), float(seed), device=D)
                y = (x * 2 + i).sum()
                if y.item() != 8 * (seed * 2 + i):
                    failures.append((seed, i, y.item()))
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    in_threads(work, range(6))
    assert not failures


def test_storages_from_many_threads():
    x = torch.ones(4, device=D)
    seen = set()

    def work():
        for _ in range(200):
            seen.add(x.view(2, 2).untyped_storage().data_ptr())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(seen) == 1


def test_journal_restores_contents():
    x = torch.arange(4.0, device=D)
    _C.journal_begin()
    x.mul_(2)
    x[1:3].fill_(9)
    made = torch.zeros(3, device=D)
    made.add_(1)
    written = _C.journal_end(True)
    assert len(written) == 1
    same(written[0], torch.tensor([0.0, 9, 9, 6]))
    same(x, torch.arange(4.0))
    same(made, torch.ones(3))


def test_journals_are_of_one_thread():
    mine, others = torch.zeros(3, device=D), torch.zeros(3, device=D)

    def work():
        others.add_(1)
        _C.journal_begin()
        others.mul_(4)
        assert _C.journal_depth() == 1 and len(_C.journal_end(True)) == 1
        others.add_(1)

    _C.journal_begin()
    mine.add_(5)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    mine.add_(5)
    written = _C.journal_end(True)
    assert _C.journal_depth() == 0
    assert len(written) == 1
    same(written[0], torch.full((3,), 10.0))
    same(mine, torch.zeros(3))
    same(others, torch.full((3,), 2.0))
    with pytest.raises(RuntimeError, match="no journal is open"):
        _C.journal_end(True)


@pytest.mark.parametrize("apart", [False, True])
def test_journal_has_what_autograd_writes_for_its_thread(apart):
    """Two threads run backward passes, each its own or one thread of autograd both; one has a journal open."""
    counters = [torch.zeros(1, device=D) for _ in range(2)]
    turns = threading.Barrier(2)

    def work(which):
        x = torch.ones(1, device=D, requires_grad=True)
        gradient = torch.ones(1, device=D)
        torch.autograd.set_multithreading_enabled(apart)
        if which == 0:
            _C.journal_begin()
        turns.wait()
        for _ in range(20):
            y = x * 2
            y.register_hook(lambda g: counters[which].add_(1))
            y.backward(gradient)
        turns.wait()
        if which == 0:
            same(_C.journal_end(True)[0], torch.full((1,), 20.0))

    threads = [threading.Thread(target=work, args=(which,)) for which in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    same(counters[0], torch.zeros(1))
    same(counters[1], torch.full((1,), 20.0))


def test_lines_name_the_user():
    x = torch.ones(3, device=D) * 2  # this line
    assert "test_tensor.py:" in _C.Inspection([x], []).text("recorded")


def test_backward_ops_carry_the_forward_line():
    x = torch.randn(3, device=D, requires_grad=True)
    y = x.sin()
    y.sum().backward()
    text = _C.Inspection([x.grad], []).text("recorded")
    line = test_backward_ops_carry_the_forward_line.__code__.co_firstlineno + 2
    assert any("cos" in row and f"test_tensor.py:{line}" in row for row in text.splitlines()), text
