"""torch.accelerator, and what torch.opaque has of torch.cuda: before the device was used, afterwards, and in threads."""

import gc
import threading

import pytest
import torch

# Every function of torch.accelerator that takes no argument, and those that take the device.
EVERYTHING = """
import inspect, torch
def everything():
    a = torch.accelerator
    seen = []
    for name in a.__all__:
        function = getattr(a, name)
        if inspect.isclass(function):
            continue
        arguments = {"set_device_index": (0,), "set_device_idx": (0,), "set_stream": (a.current_stream(),)}
        function(*arguments.get(name, ()))
        seen.append(name)
    with a.device_index(0):
        assert a.current_device_index() == 0
    assert "empty_host_cache" in seen and len(seen) > 15, seen
    m = torch.opaque
    for name in ("memory_stats", "memory_stats_as_nested_dict", "reset_accumulated_memory_stats", "memory_summary", "memory_snapshot",
                 "reset_peak_memory_stats", "empty_cache", "ipc_collect", "mem_get_info", "memory_allocated", "max_memory_allocated",
                 "memory_reserved", "max_memory_reserved", "get_per_process_memory_fraction", "memory_cached",
                 "reset_max_memory_allocated", "synchronize", "get_device_properties", "get_device_capability"):
        getattr(m, name)()
        getattr(m, name)(*(() if name in ("empty_cache", "ipc_collect") else ("opaque:0",)))
"""


def test_before_use(run_python):
    text = EVERYTHING + "everything()\nassert torch.opaque.memory_allocated() == 0\n"
    text += "torch.ones(3).pin_memory()\neverything()\n"
    text += "x = torch.ones(3, device='opaque') + 1\ntorch.accelerator.empty_host_cache()\nassert x.sum().item() == 6\neverything()\n"
    run_python(text, PYTHONWARNINGS="ignore")


@pytest.mark.filterwarnings("ignore:Use")
def test_in_threads():
    space, failures = {}, []
    exec(EVERYTHING, space)

    def work():
        try:
            for _ in range(5):
                pinned = torch.ones(100).pin_memory()
                x = pinned.to("opaque") * 2
                space["everything"]()
                assert pinned.is_pinned() and x.sum().item() == 200
        except Exception as error:  # told by the main thread
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_pinned_memory_of_no_bytes():
    a, b = torch.empty(0).pin_memory(), torch.empty(0, 3).pin_memory()
    del a
    torch.accelerator.empty_host_cache()
    del b


def test_capability():
    dtypes = torch.accelerator.get_device_capability()["supported_dtypes"]
    assert {
        torch.float32,
        torch.bfloat16,
        torch.complex64,
        torch.bool,
        torch.float8_e4m3fn,
    } <= dtypes
    for dtype in dtypes:
        x = torch.empty(2, dtype=dtype, device="opaque")
        assert x.dtype == dtype
    major, minor = torch.opaque.get_device_capability()
    properties = torch.opaque.get_device_properties()
    assert (properties.major, properties.minor) == (major, minor) == (8, 0)


def test_record_stream():
    x = torch.ones(4, device="opaque") + 1
    assert x.record_stream(torch.opaque.current_stream()) is None
    x[1:].record_stream(torch.opaque.Stream())
    assert x.sum().item() == 8


def test_stream_contexts():
    with torch.opaque.stream(None), torch.opaque.StreamContext(torch.opaque.Stream()):
        assert (torch.ones(2, device="opaque") + 1).sum().item() == 4
    assert isinstance(torch.opaque.stream(None), torch.opaque.StreamContext)
    assert torch.opaque.memory.memory_allocated() == torch.opaque.memory_allocated()


def test_a_device_index_that_is_not_there():
    for set_index in (torch.opaque.set_device, torch.accelerator.set_device_index):
        with pytest.raises(RuntimeError, match="there is 1 device"):
            set_index(1)


def test_the_index_of_a_local_rank_is_the_device(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    torch.opaque.set_device(1)
    torch.accelerator.set_device_index(1)
    assert torch.ones(2, device="opaque:1").device == torch.device("opaque:0")
    assert torch.ones(2).to("opaque:1").sum().item() == 2 and torch.opaque.current_device() == 0
    for wrong in (2, 3):
        with pytest.raises(
            RuntimeError, match=f"invalid device index {wrong}, there is 1 device, which is also"
        ):
            torch.opaque.set_device(wrong)


# ---- memory


def test_stats_have_one_source_and_the_names_of_cuda():
    before = torch.opaque.memory_stats()
    x = torch.ones(1 << 20, device="opaque") + 1
    y = torch.ones(10, device="opaque") + 1
    torch.opaque.synchronize()
    ours, accelerator = torch.opaque.memory_stats(), torch.accelerator.memory_stats()
    assert {
        key: value for key, value in ours.items() if not key.startswith("packed")
    } == accelerator
    for what in (
        "allocation",
        "allocated_bytes",
        "segment",
        "reserved_bytes",
        "active",
        "active_bytes",
        "requested_bytes",
    ):
        for pool in ("all", "large_pool", "small_pool"):
            now, then = (
                [
                    stats[f"{what}.{pool}.{kind}"]
                    for kind in ("current", "peak", "allocated", "freed")
                ]
                for stats in (ours, before)
            )
            assert 0 <= now[0] <= now[1], (what, pool, now)
            gained = [a - b for a, b in zip(now, then, strict=True)]
            assert gained[0] == gained[2] - gained[3], (what, pool, gained)
    nested = torch.opaque.memory_stats_as_nested_dict()
    assert nested["allocated_bytes"]["large_pool"]["current"] >= x.nbytes
    assert nested["allocated_bytes"]["all"]["current"] == torch.opaque.memory_allocated()
    assert nested["allocation"]["all"]["current"] == len(torch.opaque.memory_snapshot())
    assert nested["num_ooms"] >= 0 and nested["num_alloc_retries"] >= 0
    del y


def test_totals_are_reset_apart_from_peaks():
    x = torch.ones(1000, device="opaque") + 1
    torch.opaque.synchronize()
    before = torch.opaque.memory_stats()
    torch.opaque.reset_accumulated_memory_stats()
    stats = torch.opaque.memory_stats()
    assert stats["allocated_bytes.all.allocated"] == stats["allocated_bytes.all.freed"] == 0
    for kind in ("current", "peak"):
        assert stats[f"allocated_bytes.all.{kind}"] == before[f"allocated_bytes.all.{kind}"]
    y = x + 1
    torch.opaque.synchronize()
    assert torch.opaque.memory_stats()["allocated_bytes.all.allocated"] >= y.nbytes
    torch.accelerator.reset_accumulated_memory_stats()
    assert torch.opaque.memory_stats()["allocated_bytes.all.allocated"] == 0


@pytest.fixture
def room():
    """Lets the process have some bytes more than are live, and no more."""

    def allow(more):
        gc.collect()  # errors of tests before this one hold tensors
        torch.opaque.synchronize()
        total = torch.opaque.mem_get_info()[1]
        torch.opaque.set_per_process_memory_fraction(
            (torch.opaque.memory_allocated() + more) / total
        )

    yield allow
    torch.opaque.set_per_process_memory_fraction(1.0)


def test_memory_fraction_is_kept(room):
    room(20 << 20)
    fraction = torch.opaque.get_per_process_memory_fraction()
    assert 0 < fraction < 1
    x = torch.ones(2 << 20, device="opaque") + 1  # 8 MiB
    torch.opaque.synchronize()
    before = torch.opaque.memory_stats()["num_ooms"]
    with pytest.raises(
        torch.opaque.OutOfMemoryError,
        match="out of memory. .*can't allocate memory.*of the memory there is",
    ):
        (
            torch.cat([x + 1, x + 2, x + 3]).sum().item()
            + (torch.ones(6 << 20, device="opaque") * 2).cpu()[0]
        )
    assert torch.opaque.memory_stats()["num_ooms"] > before
    assert torch.opaque.memory_allocated() <= fraction * torch.opaque.mem_get_info()[1]
    assert (x + 1).sum().item() == 3 * x.numel(), "what fits goes on"
    room(64 << 20)
    y = torch.cat([x + 1, x + 2, x + 3])
    assert y.sum().item() == 12 * x.numel()


def test_small_buffers_count_too(room):
    room(4 << 20)
    kept = []
    with pytest.raises(torch.OutOfMemoryError):
        for _ in range(100):
            kept.append(torch.ones(100_000, device="opaque") + 1)
            torch.opaque.synchronize()
    assert 5 <= len(kept) <= 12


def test_results_of_fallbacks_count_too(room):
    x = torch.eye(300, device="opaque")
    room(200_000)
    with pytest.raises(torch.OutOfMemoryError):
        torch.linalg.inv(x).cpu()


def test_what_is_cached_makes_room(room):
    torch.opaque.empty_cache()
    room(12 << 20)
    for count in (1 << 20, 2 << 20, 2_500_000, 1_500_000):
        x = torch.ones(count, device="opaque") + 1
        assert x[0].item() == 2
        del x
    reserved = torch.opaque.memory_reserved()
    assert reserved <= torch.opaque.get_per_process_memory_fraction() * torch.opaque.mem_get_info()[
        1
    ] + (4 << 20)


def test_fractions_that_are_none():
    with pytest.raises(TypeError, match="must be `float`"):
        torch.opaque.set_per_process_memory_fraction(1)
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="Allowed range: 0~1"):
            torch.opaque.set_per_process_memory_fraction(wrong)


def test_programs_that_try_again_know_the_error():
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(1 << 42, device="opaque")
    assert isinstance(caught.value, RuntimeError) and len(caught.value.args) == 1
    for words in (
        " out of memory.",
        "DefaultCPUAllocator: can't allocate memory",
    ):  # of accelerate and Lightning
        assert words in caught.value.args[0]
