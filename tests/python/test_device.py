"""torch.opaque: the device module, random numbers, streams and events, memory."""

import time

import pytest
import torch
import torch_opaque
from torch_opaque import _C


def test_one_device():
    assert (
        torch.opaque.is_available()
        and torch.opaque.device_count() == 1
        and torch.opaque.current_device() == 0
    )
    torch.opaque.set_device(0)
    torch.opaque.set_device("opaque:0")
    with (
        torch.opaque.device(0),
        torch.opaque.device("opaque"),
        torch.opaque.device_of(torch.ones(1)),
    ):
        assert torch.opaque.current_device() == 0
    with pytest.raises(RuntimeError, match="there is 1 device"):
        torch.opaque.set_device(1)
    with pytest.raises(ValueError, match="Expected an opaque device"):
        torch.opaque.set_device("cpu")
    with pytest.raises(RuntimeError):
        torch.ones(1, device="opaque:1")


def test_properties():
    properties = torch.opaque.get_device_properties()
    assert properties.total_memory > 0 and properties.multi_processor_count >= 1
    assert properties.cpu_capability in torch.opaque.get_device_name()
    assert torch.bfloat16 in torch.opaque.get_amp_supported_dtype()


def test_generated_methods():
    x = torch.ones(2)
    assert x.opaque().is_opaque and not x.is_opaque
    assert next(torch.nn.Linear(1, 1).opaque().parameters()).is_opaque
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2, 3)])
    assert packed.opaque().data.is_opaque


def test_accelerator():
    assert torch.accelerator.current_accelerator().type == "opaque"
    assert torch.accelerator.device_count() == 1
    torch.accelerator.synchronize()


def test_data_parallel_does_not_choose_the_device():
    model = torch.nn.DataParallel(torch.nn.Linear(2, 2))
    assert next(model.parameters()).device.type == "cpu"
    assert model(torch.ones(1, 2)).device.type == "cpu"


# ---- random numbers


def draw() -> torch.Tensor:
    return torch.rand(64, device="opaque").cpu()


def test_manual_seed_repeats():
    torch.manual_seed(7)
    first, second = draw(), draw()
    assert not torch.equal(first, second)
    torch.manual_seed(7)
    assert torch.equal(draw(), first) and torch.equal(draw(), second)
    torch.opaque.manual_seed(7)
    assert torch.equal(draw(), first) and torch.opaque.initial_seed() == 7


def test_state_restores():
    draw()
    state = torch.opaque.get_rng_state()
    assert state.dtype == torch.uint8 and state.device.type == "cpu"
    first = draw()
    torch.opaque.set_rng_state(state)
    assert torch.equal(draw(), first)
    torch.opaque.set_rng_state_all([state])
    assert torch.equal(draw(), first)
    assert torch.opaque.get_rng_state_all()[0].numel() == state.numel()
    for wrong in ([], [state, state]):
        with pytest.raises(ValueError):
            torch.opaque.set_rng_state_all(wrong)
    with pytest.raises(RuntimeError, match="16 bytes"):
        torch.opaque.set_rng_state(torch.get_rng_state())


def test_seeds_are_those_of_any_generator():
    cpu = torch.Generator()
    for seed in (0, 7, -1, -5, 2**64 - 1):
        torch.opaque.manual_seed(seed)
        assert torch.opaque.initial_seed() == cpu.manual_seed(seed).initial_seed()
    with pytest.raises(ValueError, match="Overflow"):
        torch.opaque.manual_seed(2**64)
    seed = torch.opaque.seed()
    assert torch.opaque.initial_seed() == seed
    cpu_state = torch.get_rng_state()
    torch.opaque.manual_seed(3)
    draw()
    assert torch.equal(torch.get_rng_state(), cpu_state)


def test_state_of_an_explicit_generator():
    a, b = (torch.Generator(device="opaque") for _ in range(2))
    a.manual_seed(5)
    torch.rand(9, device="opaque", generator=a)
    b.set_state(a.get_state())
    both = [torch.randn(9, device="opaque", generator=g).cpu() for g in (a, b)]
    assert torch.equal(*both) and b.initial_seed() == 5
    copy = a.clone_state()
    both = [torch.randn(9, device="opaque", generator=g).cpu() for g in (a, copy)]
    assert torch.equal(*both)


def test_fork_rng():
    torch.manual_seed(3)
    with torch.random.fork_rng(device_type="opaque"):
        inside = draw()
    assert torch.equal(draw(), inside)


def test_state_includes_what_is_pending():
    torch.manual_seed(1)
    pending = torch.rand(16, device="opaque")
    state = torch.opaque.get_rng_state()
    following = torch.rand(16, device="opaque")
    torch.opaque.set_rng_state(state)
    again = torch.rand(16, device="opaque")
    assert torch.equal(following.cpu(), again.cpu()) and not torch.equal(pending.cpu(), again.cpu())


def test_explicit_generator():
    a, b = (torch.Generator(device="opaque").manual_seed(5) for _ in range(2))
    assert torch.equal(
        torch.rand(9, device="opaque", generator=a).cpu(),
        torch.rand(9, device="opaque", generator=b).cpu(),
    )
    with pytest.raises(RuntimeError):
        torch.rand(9, device="opaque", generator=torch.Generator())


# ---- streams and events


def test_event_times_the_run():
    begin, end = (torch.opaque.Event(enable_timing=True) for _ in range(2))
    x = torch.ones(1000, 1000, device="opaque")
    begin.record()
    y = x @ x
    end.record()
    assert begin.elapsed_time(end) > 0
    assert "pending" not in torch_opaque.describe(y)


@pytest.mark.parametrize("kind", ["device", "torch"])
def test_elapsed_time_is_the_time_of_the_work(kind):
    def event():
        if kind == "device":
            return torch.opaque.Event(enable_timing=True)
        return torch.Event("opaque", enable_timing=True)

    w = torch.ones(600, 600, device="opaque")
    torch.opaque.synchronize()
    start, end, later = event(), event(), event()
    clock = time.perf_counter()
    start.record()
    time.sleep(0.02)
    x = w @ w  # noqa: F841
    end.record()
    torch.opaque.synchronize()
    clock = (time.perf_counter() - clock) * 1e3
    assert 20 <= start.elapsed_time(end) <= clock
    assert end.query() and end.elapsed_time(start) == -start.elapsed_time(end)
    start.record()
    later.record()
    assert start.elapsed_time(later) >= 0 > start.elapsed_time(end)


def test_work_before_an_event_is_not_its_time():
    x = torch.ones(4, device="opaque") + 1
    start = torch.opaque.Event(enable_timing=True)
    start.record()
    assert not _C.is_pending(x)
    # An event without timing asks for nothing, until it is asked.
    y = x + 1
    event = torch.opaque.Event()
    event.record(torch.opaque.current_stream())
    assert isinstance(event, torch.opaque.Event) and isinstance(event, torch.Event)
    assert _C.is_pending(y)
    assert event.query() and not _C.is_pending(y)
    y = x + 2
    event.synchronize()
    assert not _C.is_pending(y)
    y = x + 3
    assert torch.opaque.current_stream().query() and not _C.is_pending(y)


def test_event_errors():
    untimed = torch.opaque.Event()
    untimed.record()
    with pytest.raises(ValueError, match="enable_timing=True"):
        untimed.elapsed_time(untimed)
    with pytest.raises(ValueError, match="must be recorded"):
        torch.opaque.Event(enable_timing=True).elapsed_time(torch.opaque.Event(enable_timing=True))
    with pytest.raises(RuntimeError, match="shared between processes"):
        torch.opaque.Event(interprocess=True)
    assert untimed.query()
    untimed.wait()
    untimed.synchronize()
    x = torch.tensor([0, 9], device="opaque")
    y = torch.ones(3, device="opaque")[x]  # noqa: F841
    with pytest.raises(IndexError):
        torch.opaque.Event(enable_timing=True).record()


def test_streams():
    stream = torch.opaque.Stream()
    with torch.opaque.stream(stream), stream:
        x = torch.ones(2, device="opaque")
    stream.synchronize()
    assert stream == torch.opaque.current_stream() == torch.opaque.default_stream()
    stream.wait_stream(torch.opaque.current_stream())
    assert x.sum().item() == 2


# ---- memory


def test_memory_counts_live_buffers():
    torch.opaque.synchronize()
    before = torch.opaque.memory_allocated()
    x = torch.ones(1 << 20, device="opaque")
    torch.opaque.synchronize()
    assert torch.opaque.memory_allocated() - before >= 4 << 20
    assert torch.opaque.max_memory_allocated() >= torch.opaque.memory_allocated()
    assert torch.opaque.memory_reserved() >= torch.opaque.memory_allocated()
    del x
    assert torch.opaque.memory_allocated() <= before
    torch.opaque.reset_peak_memory_stats()
    assert torch.opaque.max_memory_allocated() == torch.opaque.memory_allocated()
    torch.opaque.empty_cache()
    stats = torch.opaque.memory_stats()
    assert stats["allocated_bytes.all.current"] == torch.opaque.memory_allocated()
    assert stats["reserved_bytes.all.peak"] == torch.opaque.max_memory_reserved()
    available, total = torch.opaque.mem_get_info()
    assert 0 < available < total == torch.opaque.get_device_properties().total_memory
    assert torch.accelerator.memory_reserved() == torch.opaque.memory_reserved()


def test_reserved_memory_includes_what_is_cached():
    torch.opaque.synchronize()
    torch.opaque.empty_cache()
    before = torch.opaque.memory_reserved()
    torch.opaque.reset_peak_memory_stats()
    x = torch.ones(1 << 20, device="opaque")
    torch.opaque.synchronize()
    held = torch.opaque.memory_reserved()
    assert held - before >= 4 << 20
    del x
    assert torch.opaque.memory_reserved() == held
    torch.opaque.empty_cache()
    assert torch.opaque.memory_reserved() < held == torch.opaque.max_memory_reserved()
    torch.opaque.reset_peak_memory_stats()
    assert torch.opaque.max_memory_reserved() == torch.opaque.memory_reserved()


@pytest.mark.parametrize("module", ["opaque", "accelerator"])
def test_resetting_the_peak_resets_nothing_else(module):
    x = torch.ones(1000, device="opaque") + 1
    del x
    y = torch.linalg.eigvals(torch.eye(3, device="opaque")).cpu()  # noqa: F841
    before = torch_opaque.stats()
    counts = torch_opaque.fallback_counts()
    assert before["kernels_run"] > 0 and counts
    getattr(torch, module).reset_peak_memory_stats()
    after = torch_opaque.stats()
    peak = after.pop("bytes_peak")
    assert peak == after["bytes_allocated"]
    before.pop("bytes_peak")
    assert after == before and torch_opaque.fallback_counts() == counts
