"""torch.backends.opaque: switches in the form PyTorch users know from torch.backends.cudnn.

torch.backends.opaque.fusion = False              this thread runs one kernel per op
with torch.backends.opaque.flags(verbose=True):   a line to stderr per run
"""

import sys
import types
from contextlib import contextmanager

import torch

from . import _C
from .settings import UNFUSED, log_levels
from .slips import meant

_FLAGS = ("fusion", "verbose", "log", "lines", "bf16_products")


class _Backend(types.ModuleType):
    """The module torch.backends.opaque. A subclass, because properties do not work on plain modules."""

    @staticmethod
    def is_available() -> bool:
        """True: the device is the host's CPU."""
        return True

    @staticmethod
    def cpu_capability() -> str:
        """The instruction set kernels are generated for, e.g. "avx512"."""
        return _C.cpu_capability()

    @property
    def fusion(self) -> bool:
        """Whether this thread's runs group ops into kernels. Off is torch_opaque.unfused()."""
        return not _C.get_modes() & UNFUSED

    @fusion.setter
    def fusion(self, on: bool) -> None:
        modes = _C.get_modes()
        _C.set_modes(modes & ~UNFUSED if on else modes | UNFUSED)

    @property
    def verbose(self) -> bool:
        """Whether each run is logged. Process-wide. Setting it changes topic flush of the log alone."""
        return "flush" in _C.get_log()

    @verbose.setter
    def verbose(self, on: bool) -> None:
        _C.set_log(_C.get_log() | {"flush": "info" if on else "off"})

    @property
    def log(self) -> str:
        """Topics of the log and their levels, as OPAQUE_LOG has them: "flush:info,compile:debug". Process-wide."""
        return ",".join(f"{topic}:{level}" for topic, level in _C.get_log().items())

    @log.setter
    def log(self, text: str) -> None:
        _C.set_log(log_levels(text))

    @property
    def lines(self) -> str:
        """Source lines kept with recorded ops: "all", "flush" or "off". Process-wide."""
        return _C.get_lines()

    @lines.setter
    def lines(self, which: str) -> None:
        _C.set_lines(which)

    @property
    def bf16_products(self) -> str:
        """How products of bf16 that are recorded from now on are summed: "chain", "pairs", "pairs16", or "auto", which
        is pairs16 where the processor has AMX, else pairs where it has AVX512_BF16. The bits of each are the same everywhere. Process-wide."""
        return _C.get_bf16_products()

    @bf16_products.setter
    def bf16_products(self, rule: str) -> None:
        _C.set_bf16_products(rule)

    def __setattr__(self, name: str, value) -> None:
        if not name.startswith("_") and name not in _FLAGS:
            raise AttributeError(f"torch.backends.opaque has no switch {name}{meant(name, _FLAGS)}")
        super().__setattr__(name, value)

    @contextmanager
    def flags(self, **values):
        """Sets fusion, verbose, log, lines, bf16_products for a block. Raises TypeError for any other name."""
        unknown = set(values) - set(_FLAGS)
        if unknown:
            name = min(unknown)
            raise TypeError(f"torch.backends.opaque has no flag {name}{meant(name, _FLAGS)}")
        before = {name: getattr(self, name) for name in values}
        log = _C.get_log()
        try:
            for name, value in values.items():
                setattr(self, name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(self, name, value)
            _C.set_log(log)


def register() -> None:
    """Makes torch.backends.opaque importable and an attribute."""
    module = _Backend("torch.backends.opaque", __doc__)
    sys.modules[module.__name__] = module
    torch.backends.opaque = module
