"""The ways of running a function that compare() knows: on the device, in its three modes or forgetting what calls before it left, and its
copy on the CPU.

A way is called in `with way.turn():`, behind which everything is as before."""

import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from torch.utils import _pytree

from . import _C, modes, placement
from .snapshot import PythonState, is_opaque, objects_of
from .turns import loop

MODES = {"fused": modes.planned, "unfused": modes.unfused, "eager": modes.eager}
FORGETFUL = {"first call": True, "new shape": False}  # is machine code forgotten, too?
CPU = ("cpu", "inductor", "inductor-max")


@dataclass
class Warm:
    """What a way did while it got warm: `values`: CPU copies of the outputs by name; `seconds` of the first calls, of which
    `compile_seconds` went into compiling; `kernels`, `bytes`, `bytes_peak` of a warm call, None where nobody counts."""

    values: dict
    seconds: float
    compile_seconds: float
    kernels: int | None = None
    bytes: int | None = None
    bytes_peak: int | None = None


@dataclass
class Written:
    """What a function writes besides what it returns: (name, tensor), and (name, leaf) of new gradients."""

    tensors: list = field(default_factory=list)
    gradients: list = field(default_factory=list)


class OnDevice:
    """The function as it is. `state`, `tensors` and `contents` are those before the comparison."""

    def __init__(self, mode, fn, args, state: PythonState, contents, written=None):
        self.name, self.fn, self.args = mode, fn, args
        self.state, self.contents, self.written = state, contents, written

    @contextmanager
    def turn(self):
        try:
            with self._mode():
                yield
        finally:
            self.contents.restore()
            self.state.restore()

    def _mode(self):
        return MODES[self.name]()

    def _begin(self) -> None:
        """What has to be before a call, and is none of its time."""

    def loop(self, count: int) -> float:
        return loop(self.fn, self.args, torch.opaque.synchronize, count)

    def warm(self, name_of: dict, tensors: list) -> Warm:
        """The first calls. `tensors`: those whose contents are kept; what of them a call writes becomes `written`."""
        with self.turn():
            self._begin()
            before, begin = _C.stats(), time.perf_counter()
            result = self.fn(*self.args)
            torch.opaque.synchronize()
            seconds = time.perf_counter() - begin
            if _C.stats()["ops_recorded"] == before["ops_recorded"]:
                raise TypeError(
                    "compare(): the function computed nothing on device opaque; "
                    "move its modules and tensors there with .to('opaque')"
                )
            if self.written is None:
                self.written = _written(self.contents.changed(), tensors, self.state, name_of)
            values = values_of(result, self.written, lambda t: t)
            del result
        with self.turn():
            seconds += self.loop(2)
            first = _C.stats()
            _C.reset_peak_memory_stats()
            allocated = _C.memory_allocated()
            self.loop(1)
            last = _C.stats()
        return Warm(
            values,
            seconds,
            compile_seconds=self._compile_seconds(before, first, last),
            kernels=last["kernels_run"] - first["kernels_run"],
            bytes=sum(last[k] - first[k] for k in ("bytes_read", "bytes_written")),
            bytes_peak=max(0, _C.max_memory_allocated() - allocated),
        )

    @staticmethod
    def _compile_seconds(before: dict, warm: dict, _: dict) -> float:
        """By the counters before the first call, before the last one, and behind it."""
        return warm["compile_seconds"] - before["compile_seconds"]


class Forgetful(OnDevice):
    """The function as it is and under the modes that there are, but plans are forgotten before each call, so that its graphs are new to
    it; of a "first call" machine code as well, and memory goes back to the system. It runs in pieces where new graphs do."""

    def _mode(self):
        return nullcontext()

    def _begin(self) -> None:
        _C.forget(FORGETFUL[self.name])
        if FORGETFUL[self.name]:
            _C.empty_cache()

    def loop(self, count: int) -> float:
        return sum(self._call() for _ in range(count))

    def _call(self) -> float:
        self._begin()
        return super().loop(1)

    @staticmethod
    def _compile_seconds(_: dict, warm: dict, after: dict) -> float:
        return after["compile_seconds"] - warm["compile_seconds"]


class OnCpu:
    """A copy of the function, eager or compiled by TorchInductor. `twin` made it, and knows its tensors.

    It begins in the state `fresh`, which has the optimizers of the copy. In its turns they go on: what compiles them would compile
    again each time that they are emptied."""

    def __init__(self, mode, fn, args, twin, state: PythonState, fresh: PythonState, written):
        self.name, self.args, self.twin = mode, args, twin
        self.state, self.fresh, self.written = state, fresh, written
        self.fn = fn if mode == "cpu" else torch.compile(fn, mode=_INDUCTOR[mode])

    @contextmanager
    def turn(self):
        try:
            with torch.no_grad():
                self.twin.restore()
            with on_the_cpu(), _inductor(self.name):
                yield
        finally:
            self.state.restore()

    def loop(self, count: int) -> float:
        return loop(self.fn, self.args, _nothing, count)

    def warm(self, *_) -> Warm:
        self.fresh.restore()
        self.twin.restore_gradients()
        recorded = _C.stats()["ops_recorded"]
        with self.turn():
            begin = time.perf_counter()
            try:
                result = self.fn(*self.args)
            except Exception as error:
                raise _no_copy(self, error) from error
            if _C.stats()["ops_recorded"] > recorded:
                raise _no_copy(self, "it still computes on the device")
            seconds = time.perf_counter() - begin
            values = values_of(result, self.written, self.twin.made)
            del result
            seconds += self.loop(2)
            one = self.loop(1)
        return Warm(values, seconds, 0.0 if self.name == "cpu" else max(0.0, seconds - 3 * one))


_INDUCTOR = {"inductor": None, "inductor-max": "max-autotune-no-cudagraphs"}


def _nothing() -> None:
    pass


def _no_copy(way: OnCpu, why) -> Exception:
    shared = [f"{name} could not be copied: {error}" for name, error in way.twin.failed]
    text = "; ".join([str(why), *shared])
    return TypeError(f"compare(vs={way.name!r}): the function does not run on CPU copies: {text}")


@contextmanager
def on_the_cpu():
    """Factory functions make CPU tensors."""
    default = torch.get_default_device()
    if default.type == "opaque":
        torch.set_default_device(None)
    try:
        with placement.suspended():
            yield
    finally:
        if default.type == "opaque":
            torch.set_default_device(default)


def _inductor(mode: str):
    """Compiles here and anew, so that its time is known; "inductor-max" makes constants of weights where no gradient is wanted."""
    if mode == "cpu":
        return nullcontext()
    import torch._inductor.config as config

    freezing = mode == "inductor-max" and not torch.is_grad_enabled()
    return config.patch(freezing=freezing, compile_threads=1, force_disable_caches=True)


# ---- outputs


def live_tensors(named: list) -> list:
    """The device's tensors, those with names first."""
    found = {id(t): t for _, t in named if is_opaque(t)}
    found |= {id(t): t for t in objects_of(torch.Tensor) if is_opaque(t)}
    return [t for t in found.values() if t.layout == torch.strided and _is_plain(t)]


def _is_plain(t) -> bool:
    """A tensor with values, not a FakeTensor or another subclass with its own dispatch."""
    return type(t).__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def _written(changed: list, tensors: list, state: PythonState, name_of: dict) -> Written:
    names = [
        (name_of.get(id(tensors[i]), f"written[{k}]"), tensors[i]) for k, i in enumerate(changed)
    ]
    gradients = [
        (f"{name_of[id(t)]}.grad", t)
        for t, gradient in state.gradients
        if id(t) in name_of and t.grad is not None and t.grad is not gradient
    ]
    return Written(names, gradients)


def values_of(result, written: Written, mapped) -> dict:
    """CPU copies by name: what was returned, then what was written. `mapped`: a tensor of the device to the one to read, or None."""
    found = {}
    for path, leaf in _pytree.tree_flatten_with_path(result)[0]:
        if isinstance(leaf, torch.Tensor):
            found["returned" + _pytree.keystr(path)] = leaf
    for name, t in written.tensors:
        found.setdefault(name, mapped(t))
    for name, leaf in written.gradients:
        found.setdefault(name, getattr(mapped(leaf), "grad", None))
    return {name: _copied(t) for name, t in found.items() if t is not None}


def _copied(t: torch.Tensor) -> torch.Tensor:
    t = t.detach().cpu()
    t = t.to_dense() if t.layout != torch.strided else t
    return t.resolve_conj().resolve_neg().clone()
