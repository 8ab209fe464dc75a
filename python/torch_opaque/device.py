"""torch.opaque: the device module, in the form of torch.cuda. There is one device, opaque:0, and one stream.

Work runs in the order in which values are asked for, so streams and events order nothing; they
exist for programs written for devices where they do. An event made with enable_timing=True runs
what is pending and reads the host clock.
"""

import atexit
import contextlib
import os
import platform
import sys
import time
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
    """Name, memory of the machine in bytes, processors this process may use, instruction set of kernels."""
    _index(device)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return _Properties(get_device_name(), memory, len(os.sched_getaffinity(0)), _C.cpu_capability())


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
    _index(device)
    _C.synchronize("synchronize")


class Stream(torch.Stream):
    """The one stream. `synchronize()` runs what is pending."""

    def __new__(cls, device=None, priority=0, **kwargs):
        return super().__new__(cls, device=f"opaque:{_index(device)}", priority=priority, **kwargs)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return False


class Event(torch.Event):
    """A point in the program. With enable_timing=True, record() runs what is pending and reads the host clock."""

    def __new__(cls, enable_timing=False, blocking=False, interprocess=False, **kwargs):
        if interprocess:
            raise RuntimeError("opaque: events cannot be shared between processes")
        event = super().__new__(
            cls, device="opaque", enable_timing=enable_timing, blocking=blocking
        )
        event._timing = enable_timing
        event._recorded = None
        return event

    def record(self, stream=None) -> None:
        """Marks this point, for timing after running what is pending."""
        if self._timing:
            _C.synchronize("synchronize")
        self._recorded = time.perf_counter()

    def elapsed_time(self, end_event: "Event") -> float:
        """Milliseconds from this event to `end_event`. Raises RuntimeError unless both were recorded with timing."""
        for event in (self, end_event):
            if not event._timing or event._recorded is None:
                raise RuntimeError(
                    "elapsed_time() needs two recorded events made with enable_timing=True"
                )
        return (end_event._recorded - self._recorded) * 1e3

    def query(self) -> bool:
        """True: whoever asks for a value gets it."""
        return True

    def wait(self, stream=None) -> None:
        """Nothing to wait for: there is one stream."""

    def synchronize(self) -> None:
        """Runs what is pending."""
        _C.synchronize("synchronize")


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


# ---- random numbers


def manual_seed(seed: int) -> None:
    """Seeds the default generator. torch.manual_seed() does it too."""
    _C.manual_seed(int(seed))


manual_seed_all = manual_seed


def seed() -> int:
    """Seeds the default generator from the system's entropy and returns the seed."""
    value = int.from_bytes(os.urandom(8), "little") >> 1
    _C.manual_seed(value)
    return value


seed_all = seed


def initial_seed() -> int:
    """The seed set last."""
    return _C.initial_seed()


def get_rng_state(device="opaque") -> torch.Tensor:
    """State of the default generator, a CPU tensor of bytes."""
    _index(device)
    return _C.get_rng_state()


def get_rng_state_all() -> list:
    """One state per device."""
    return [_C.get_rng_state()]


def set_rng_state(new_state: torch.Tensor, device="opaque") -> None:
    """Restores what get_rng_state() gave."""
    _index(device)
    _C.set_rng_state(new_state)


def set_rng_state_all(new_states) -> None:
    """Restores what get_rng_state_all() gave."""
    for state in new_states:
        _C.set_rng_state(state)


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
    """Bytes taken from the system: live buffers and cached free ones."""
    _index(device)
    return _C.memory_reserved()


def reset_peak_memory_stats(device=None) -> None:
    """Sets the peak to the current value."""
    _index(device)
    _C.reset_peak_memory_stats()


def memory_stats(device=None) -> dict:
    """The figures above under the names torch.cuda.memory_stats() uses, and packed_bytes.all.current: copies of
    weights in the layout that matmuls read. They are a cache: no part of memory_allocated(), dropped with their weight,
    by empty_cache() and when memory runs short."""
    _index(device)
    return {
        "allocated_bytes.all.current": _C.memory_allocated(),
        "allocated_bytes.all.peak": _C.max_memory_allocated(),
        "reserved_bytes.all.current": _C.memory_reserved(),
        "packed_bytes.all.current": _C.stats()["bytes_packed"],
    }


def mem_get_info(device=None) -> tuple:
    """(available, total) bytes of the machine."""
    _index(device)
    page = os.sysconf("SC_PAGE_SIZE")
    return page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")


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
