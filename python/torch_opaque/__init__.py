"""torch_opaque: a lazy, fusing PyTorch device. `import torch` loads it through the torch.backends entry point.

    x = torch.randn(8, 8, device="opaque")      recorded, not computed
    y = (x * 2 + 1).relu()                      recorded
    print(y)                                    one fused kernel runs

Importing registers the device and nothing else: no thread, no LLVM, no tensor. A program that never
makes an opaque tensor runs as without the package.
"""

import importlib
import warnings

__version__ = "0.1.0"

__all__ = [
    "compare",
    "describe",
    "diff",
    "dump",
    "eager",
    "explain",
    "fallback_counts",
    "forbid_sync",
    "graph",
    "reset_stats",
    "stats",
    "strict",
    "unfused",
]

_failure = None


def _autoload() -> None:
    """Entry point of group torch.backends. All is done by importing this module; a failure there
    has become a warning."""


def _register() -> None:
    """Renames PrivateUse1 to "opaque" and hangs everything into torch. The order is PyTorch's:
    rename, module, methods."""
    from . import settings

    settings.check()
    try:
        _C = importlib.import_module("._C", __name__)
    except ModuleNotFoundError as error:
        raise ImportError(f"{error}; in a source tree, ./dev build makes it") from error

    torch.utils.rename_privateuse1_backend("opaque")
    from . import (
        aliasing,
        backends,
        checkpoint,
        device,
        distributed,
        modules,
        optim,
        printing,
        processes,
        profiling,
    )

    device.register()
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=False
    )
    backends.register()
    modules.register()
    printing.register()
    checkpoint.register()
    aliasing.register()
    optim.register()
    distributed.register()
    processes.register()
    profiling.register()
    settings.apply(_C)


def __getattr__(name: str):
    if _failure is not None and not name.startswith("__"):
        raise ImportError(f"torch_opaque did not load: {_failure}") from _failure
    if name in __all__:  # what looks at graphs is imported when first asked for
        return getattr(importlib.import_module(".inspect", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# Two ways lead here. `import torch` comes first: torch is half imported, and an exception would
# break it for a program that may not want us, so it becomes a warning. `import torch_opaque` comes
# first: the next line imports torch, whose autoload finds this half-made module and calls
# _autoload(), a no-op; then an exception is the answer to the user's own import.
import torch  # noqa: E402

_torch_is_loading = getattr(torch.__spec__, "_initializing", False)
try:
    _register()
    from .modes import eager, forbid_sync, strict, unfused  # noqa: E402
except Exception as error:
    if not _torch_is_loading:
        raise
    _failure = error
    warnings.warn(
        f"torch_opaque did not load, device 'opaque' is not available: {error}", stacklevel=2
    )
