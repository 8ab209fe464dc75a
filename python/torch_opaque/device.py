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

from . import _C, memory  # noqa: F401 (torch.opaque.memory)
from .memory import *  # noqa: F403
from .memory import _index

OutOfMemoryError = torch.OutOfMemoryError
AcceleratorError = torch.AcceleratorError
default_generators = (_C.default_generator(),)


# ---- device


def is_available() -> bool:
    """True: the device is the host's CPU."""
    return True


def is_initialized() -> bool:
    """True: there is nothing to initialize, and no device to choose."""
    return True


def init() -> None:
    """Nothing to do: the device starts with its first tensor."""


_lazy_init = init

# torch.utils.checkpoint saves the states of generators only if the device says that it was initialized.
# The generator is there from the start.
_initialized = True


def _is_in_bad_fork() -> bool:
    """False: a forked child may use the device, with all threads."""
    return False


def device_count() -> int:
    """1."""
    return 1


def current_device() -> int:
    """0."""
    return 0


def set_device(device) -> None:
    """Checks that `device` (an int, str or torch.device) is the one device. To each process of a launcher that is also the one of its
    local rank: under torchrun set_device(int(os.environ["LOCAL_RANK"])) is right, and tensors say opaque:0 everywhere."""
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
    major: int
    minor: int
    is_integrated: bool


def get_device_properties(device=None) -> _Properties:
    """Name, memory in bytes as mem_get_info() has it, processors this process may use, instruction set of kernels, the two numbers of
    get_device_capability(), and that its memory is the host's."""
    _index(device)
    processors = len(os.sched_getaffinity(0))
    return _Properties(
        get_device_name(),
        _C.memory_info()[1],
        processors,
        _C.cpu_capability(),
        *get_device_capability(),
        True,
    )


def get_device_name(device=None) -> str:
    """E.g. "opaque (x86_64, avx512)"."""
    _index(device)
    return f"opaque ({platform.machine()}, {_C.cpu_capability()})"


def get_device_capability(device=None) -> tuple:
    """(8, 0), on every machine. Programs compare it with CUDA's: this is the first that has bfloat16, and none of the instructions
    that later ones stand for (8-bit floats). The instruction set of kernels is get_device_properties().cpu_capability."""
    _index(device)
    return 8, 0


def get_arch_list() -> list:
    """The instruction set of kernels, which are compiled on this machine."""
    return [_C.cpu_capability()]


def can_device_access_peer(device, peer_device) -> bool:
    """False: there is no other device."""
    _index(device), _index(peer_device)
    return False


def is_tf32_supported() -> bool:
    """False: float32 is computed as float32."""
    return False


def get_amp_supported_dtype() -> list:
    """Dtypes of torch.autocast("opaque")."""
    return [torch.bfloat16, torch.float16]


def is_current_stream_capturing() -> bool:
    """False: there are no graphs to capture; everything is recorded and reused anyway."""
    return False


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


class StreamContext(contextlib.AbstractContextManager):
    """`with torch.opaque.stream(s):`, for programs that choose a stream; None is accepted, as by torch.cuda."""

    def __init__(self, stream):
        self.stream = stream

    def __enter__(self):
        return self.stream

    def __exit__(self, *exception):
        return False


def stream(stream) -> StreamContext:
    """A context manager in which `stream` is the current one."""
    return StreamContext(stream)


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


# ---- torch.compile


class _NoInductor:
    """Stands where TorchInductor looks for a device's code generator, and says what to do instead."""

    message = (
        "torch.compile(backend='inductor') generates code for other devices. Use "
        "torch.compile(backend='opaque'), or leave torch.compile out: opaque tensors are fused and "
        "compiled without it."
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
    the Python objects it holds: it would ask for the GIL of an interpreter that is gone. Threads that
    make plans end too, which compile with what goes when the process does."""
    atexit.register(_C.end_plans)
    atexit.register(_C.finish_backward)
    torch._register_device_module("opaque", sys.modules[__name__])


def make_graphed_callables(*args, **kwargs):
    """See graphed.make_graphed_callables."""
    from .graphed import make_graphed_callables as make

    return make(*args, **kwargs)
