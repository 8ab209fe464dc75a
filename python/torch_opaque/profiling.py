"""What happens while a PyTorch profiler is on: runs and kernels tell it of themselves (registration/activities.cpp), and ops know in
whose forward() they are recorded."""

import torch

from . import _C

_profiler = torch.autograd.profiler


class _Paths:
    """Path of a module in the outermost module that is called."""

    def __init__(self):
        self.known = {}  # id to (path, module): a module that is gone leaves its id to another

    def __call__(self, module, _outermost) -> str:
        if id(module) not in self.known:
            for path, part in module.named_modules():
                self.known.setdefault(id(part), (path, part))
        return self.known[id(module)][0]


class _Profilers:
    """Counts those that are on."""

    def __init__(self):
        self.count, self.scopes = 0, None

    def start(self) -> None:
        self.count += 1
        _C.set_watched(True)
        if self.scopes is None:
            from .naming import scopes

            self.scopes = scopes(_Paths())
            self.scopes.__enter__()

    def stop(self) -> None:
        self.count = max(self.count - 1, 0)
        if self.scopes is not None and self.count == 0:
            _C.set_watched(False)
            self.scopes.__exit__(None, None, None)
            self.scopes = None


def _followed(plain, then):
    def follow():
        plain()
        then()

    return follow


def register() -> None:
    """Follows what PyTorch calls when a profiler starts or stops. Where it calls nothing, runs ask each time, and modules are not known."""
    start, stop = "_run_on_profiler_start", "_run_on_profiler_stop"
    if not (hasattr(_profiler, start) and hasattr(_profiler, stop)):
        return
    profilers = _Profilers()
    setattr(_profiler, start, _followed(getattr(_profiler, start), profilers.start))
    setattr(_profiler, stop, _followed(getattr(_profiler, stop), profilers.stop))
    _C.set_watched(False)
