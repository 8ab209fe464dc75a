"""torch.opaque: the device module, in the form of torch.cuda. There is one device, opaque:0, and one stream.

Work runs in the order in which values are asked for, so streams and events order nothing; they
exist for programs written for devices where they do. Pending work does not run by itself: an event
made with enable_timing=True runs it before it reads the clock, and so does whoever asks whether it
is done.
"""

import atexit
import contextlib
import os
import platform
import sys
from typing import NamedTuple

import torch

from . import _C

default_generators = (_C.default_generator(),)


# ---- device


def is_available() -> bool:
    """True: the device is the host's CPU."""
    return True


def is_initialized() -> bool:
    """True once an opaque tensor was made."""
    return _C.is_initialized()


def init() -> None:
    """Nothing to do: the device starts with its first tensor."""


_lazy_init = init

# torch.utils.checkpoint saves the states of generators only if the device says that it was initialized.
# The generator is there from the start.
_initialized = True


def _is_in_bad_fork() -> bool:
    """False: a forked child may use the device."""
    return False


def device_count() -> int:
    """1."""
    return 1


def current_device() -> int:
    """0."""
    return 0


def _index(device) -> int:
    """Index of `device` (None, int, str, torch.device). Raises RuntimeError unless it is opaque:0,
    ValueError for another type."""
    if device is None:
        return 0
    if not isinstance(device, int):
        device = torch.device(device)
        if device.type != "opaque":
            raise ValueError(f"Expected an opaque device, but got: {device}")
        device = 0 if device.index is None else device.index
    if device not in (0, -1):
        raise RuntimeError(f"opaque: invalid device index {device}, there is 1 device")
    return 0


def set_device(device) -> None:
    """Checks that `device` is the one device."""
    _index(device)


def _exchange_device(index: int) -> int:
    if index >= 0:
        _index(index)
    return 0


_maybe_exchange_device = _exchange_device


class device(contextlib.AbstractContextManager):
    """`with torch.opaque.device(0):`, for programs that choose a device."""

    def __init__(self, device):
        self.idx = _index(device)
        self.prev_idx = 0

    def __exit__(self, *exception):
        return False


class device_of(device):
    """As device(), of a tensor; any tensor elsewhere is accepted and ignored."""

    def __init__(self, tensor):
        super().__init__(tensor.device if tensor.device.type == "opaque" else None)


class _Properties(NamedTuple):
    name: str
    total_memory: int
    multi_processor_count: int
    cpu_capability: str


def get_device_properties(device=None) -> _Properties:
    """Name, memory in bytes as mem_get_info() has it, processors this process may use, instruction set of kernels."""
    _index(device)
    return _Properties(
        get_device_name(), _C.memory_info()[1], len(os.sched_getaffinity(0)), _C.cpu_capability()
    )


def get_device_name(device=None) -> str:
    """E.g. "opaque (x86_64, avx512)"."""
    _index(device)
    return f"opaque ({platform.machine()}, {_C.cpu_capability()})"


def get_device_capability(device=None) -> str:
    """The instruction set of kernels."""
    _index(device)
    return _C.cpu_capability()


def get_amp_supported_dtype() -> list:
    """Dtypes of torch.autocast("opaque")."""
    return [torch.bfloat16, torch.float16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True: bfloat16 values are computed in float32 where the machine has no instructions for them."""
    return True


# ---- running: streams and events


def synchronize(device=None) -> None:
    """Runs all that is pending: afterwards every live tensor is data."""
    if device is not None:
        _index(device)
    _C.synchronize()


class Stream(torch.Stream):
    """The one stream. `synchronize()` runs what is pending."""

    def __new__(cls, device=None, priority=0, **kwargs):
        return super().__new__(cls, device=f"opaque:{_index(device)}", priority=priority, **kwargs)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return False


class _EventType(type):
    def __instancecheck__(cls, x) -> bool:
        return isinstance(x, torch.Event) and x.device.type == "opaque"


class Event(metaclass=_EventType):
    """A point in the program: a torch.Event, whose methods take no subclass of it. With
    enable_timing=True, record() runs what is pending and reads the host clock; elapsed_time() is the
    milliseconds between two such points. Of an event without timing, query() and synchronize() run what
    is pending, and so query() is always True."""

    def __new__(cls, enable_timing=False, blocking=False, interprocess=False):
        if interprocess:
            raise RuntimeError("opaque: events cannot be shared between processes")
        return torch.Event("opaque:0", enable_timing=enable_timing, blocking=blocking)


def current_stream(device=None) -> torch.Stream:
    """The one stream."""
    return Stream(device)


default_stream = current_stream


def set_stream(stream) -> None:
    """Nothing to do: there is one stream."""


@contextlib.contextmanager
def stream(stream):
    """`with torch.opaque.stream(s):`, for programs that choose a stream."""
    yield stream


# ---- random numbers. Methods of the generator, because they take its lock.


def manual_seed(seed: int) -> None:
    """Seeds the default generator. torch.manual_seed() does it too."""
    default_generators[0].manual_seed(int(seed))


manual_seed_all = manual_seed


def seed() -> int:
    """Seeds the default generator from the system's entropy and returns the seed."""
    return default_generators[0].seed()


seed_all = seed


def initial_seed() -> int:
    """The seed set last."""
    return default_generators[0].initial_seed()


def get_rng_state(device="opaque") -> torch.Tensor:
    """State of the default generator, a CPU tensor of bytes."""
    return _get_generator(device).get_state()


def get_rng_state_all() -> list:
    """One state per device."""
    return [generator.get_state() for generator in default_generators]


def set_rng_state(new_state: torch.Tensor, device="opaque") -> None:
    """Restores what get_rng_state() gave."""
    _get_generator(device).set_state(new_state)


def set_rng_state_all(new_states) -> None:
    """Restores what get_rng_state_all() gave. Raises ValueError unless there is one state per device."""
    for generator, state in zip(default_generators, new_states, strict=True):
        generator.set_state(state)


def _get_generator(device) -> torch.Generator:
    return default_generators[_index(device)]


# ---- memory


def memory_allocated(device=None) -> int:
    """Bytes of live buffers."""
    _index(device)
    return _C.memory_allocated()


def max_memory_allocated(device=None) -> int:
    """Highest memory_allocated() since the start or the last reset."""
    _index(device)
    return _C.max_memory_allocated()


def memory_reserved(device=None) -> int:
    """Bytes taken from the system: blocks of live buffers and cached free ones."""
    _index(device)
    return _C.memory_reserved()


def max_memory_reserved(device=None) -> int:
    """Highest memory_reserved() since the start or the last reset."""
    _index(device)
    return _C.max_memory_reserved()


def reset_peak_memory_stats(device=None) -> None:
    """Sets the peaks to the current values."""
    _index(device)
    _C.reset_peak_memory_stats()


def memory_stats(device=None) -> dict:
    """The figures above under the names torch.cuda.memory_stats() uses, and packed_bytes.all.current: copies of
    weights in the layout that matmuls read. They are a cache: no part of memory_allocated(), dropped with their weight,
    by empty_cache() and when memory runs short."""
    return {
        "allocation.all.current": len(_C.memory_snapshot()),
        "allocated_bytes.all.current": memory_allocated(device),
        "allocated_bytes.all.peak": max_memory_allocated(device),
        "reserved_bytes.all.current": memory_reserved(device),
        "reserved_bytes.all.peak": max_memory_reserved(device),
        "packed_bytes.all.current": _C.stats()["bytes_packed"],
    }


def memory_snapshot(device=None) -> list:
    """The live buffers, largest first, a dict each: `address`, `size` in bytes (their sum is memory_allocated()), `reserved` (of its
    block), and what recorded the value in it: `op`, `line` ("train.py:41"), `module` (while somebody looked), `source` (line with
    folder). `op` is "input" for what came from the host, "" for temporaries of a run in another thread. Nothing runs: what is pending
    has no memory yet."""
    _index(device)
    return sorted(_C.memory_snapshot(), key=lambda block: -block["size"])


def memory_summary(device=None, abbreviated: bool = False) -> str:
    """memory_stats() as a table, and unless abbreviated the lines whose values take most."""
    from .summary import bytes_text, table

    stats = memory_stats(device)
    rows = [
        (
            kind,
            bytes_text(stats[f"{kind}_bytes.all.current"]),
            bytes_text(stats[f"{kind}_bytes.all.peak"]),
        )
        for kind in ("allocated", "reserved")
    ]
    text = table(
        ("memory", "now", "peak"),
        [*rows, ("packed", bytes_text(stats["packed_bytes.all.current"]), "")],
    )
    blocks = {}
    for block in memory_snapshot(device):
        blocks.setdefault((block["op"] or "temporary", block["line"]), []).append(block["size"])
    if abbreviated or not blocks:
        return text
    largest = sorted(blocks.items(), key=lambda item: -sum(item[1]))[:20]
    made = [(op, len(sizes), bytes_text(sum(sizes)), line) for (op, line), sizes in largest]
    return text + "\n\n" + table(("made by", "buffers", "bytes", "line"), made)


def mem_get_info(device=None) -> tuple:
    """(available, total) bytes of the machine, or of the control group of this process if that is less."""
    _index(device)
    return _C.memory_info()


def empty_cache() -> None:
    """Gives cached memory back to the system: free buffers and packed copies of weights."""
    _C.empty_cache()


# ---- torch.compile


class _NoInductor:
    """Stands where TorchInductor looks for a device's code generator, and says what to do instead."""

    message = (
        "torch.compile(backend='inductor') generates code for other devices. Opaque tensors are "
        "fused and compiled without torch.compile: leave it out, or use "
        "torch.compile(backend='aot_eager') or 'eager', whose graphs are recorded like eager code."
    )

    @property
    def supports_caching(self):
        raise RuntimeError(self.message)

    def __call__(self, *args, **kwargs):
        raise RuntimeError(self.message)


# Names under which torch._inductor looks into a PrivateUse1 device module.
Scheduling = PythonWrapperCodegen = CppWrapperCodegen = WrapperFxCodegen = _NoInductor()


def register() -> None:
    """Makes this module torch.opaque. At exit, before Python ends, the autograd thread lets go of
    the Python objects it holds: it would ask for the GIL of an interpreter that is gone."""
    atexit.register(_C.finish_backward)
    torch._register_device_module("opaque", sys.modules[__name__])
