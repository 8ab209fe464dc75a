"""Names of modules in torch.profiler: while it is on, ops know in whose forward() they are recorded, and kernels say so."""

import torch

_profiler = torch.autograd.profiler


class _Paths:
    """Path of a module in the outermost module that is called."""

    def __init__(self):
        self.known = {}  # id to (path, module): a module that is gone leaves its id to another

    def __call__(self, module) -> str:
        if id(module) not in self.known:
            for path, part in module.named_modules():
                self.known.setdefault(id(part), (path, part))
        return self.known[id(module)][0]


class _Scopes:
    """On from the first profiler that starts to the last that stops."""

    def __init__(self):
        self.profilers, self.context = 0, None

    def start(self) -> None:
        self.profilers += 1
        if self.context is None:
            from .naming import scopes

            self.context = scopes(_Paths())
            self.context.__enter__()

    def stop(self) -> None:
        self.profilers = max(self.profilers - 1, 0)
        if self.context is not None and self.profilers == 0:
            self.context.__exit__(None, None, None)
            self.context = None


def _follow(name: str, then) -> None:
    """What PyTorch calls when a profiler starts or stops does this too. A PyTorch without it profiles without modules."""
    before = getattr(_profiler, name, None)
    if before is None:
        return

    def followed():
        before()
        then()

    setattr(_profiler, name, followed)


def register() -> None:
    """Follows the profiler's start and stop."""
    scopes = _Scopes()
    _follow("_run_on_profiler_start", scopes.start)
    _follow("_run_on_profiler_stop", scopes.stop)
