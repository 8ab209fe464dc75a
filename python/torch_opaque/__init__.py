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
    "CaptureError",
    "ExportError",
    "capture",
    "compare",
    "define_op",
    "describe",
    "diff",
    "dump",
    "eager",
    "explain",
    "export",
    "fallback_counts",
    "find_nan",
    "forbid_sync",
    "graph",
    "planned",
    "report_bug",
    "reset_stats",
    "stats",
    "strict",
    "unfused",
    "wait_for_plans",
]

_HOMES = {  # those that are not in inspect.py
    "CaptureError": ".captured",
    "ExportError": ".exporting",
    "capture": ".captured",
    "define_op": ".defining",
    "export": ".exporting",
}

_failure = None


def _autoload() -> None:
    """Entry point of group torch.backends. All is done by importing this module; a failure there
    has become a warning."""


def _check_torch() -> None:
    """_C has symbols of the PyTorch that it was built against, and of its minor versions none has those of another."""
    try:
        from ._built import TORCH
    except ModuleNotFoundError as error:
        raise ImportError(f"{error}; in a source tree, ./dev build makes it") from error
    wanted, found = (".".join(v.split(".")[:2]) for v in (TORCH, torch.__version__))
    if wanted != found:
        raise ImportError(
            f"torch_opaque was built against PyTorch {wanted}, and this is {torch.__version__}. Either `pip install "
            f"'torch=={wanted}.*'`, or build it against this one, in its source folder: "
            "`pip install --force-reinstall --no-deps .` (./dev build, where it runs in the source tree)"
        )


def _register() -> None:
    """Renames PrivateUse1 to "opaque" and hangs everything into torch. The order is PyTorch's:
    rename, module, methods."""
    from . import settings

    settings.check()
    _check_torch()
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
        flex_attention,
        modules,
        optim,
        printing,
        processes,
        profiling,
        scripting,
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
    flex_attention.register()
    processes.register()
    profiling.register()
    scripting.register()
    settings.apply(_C)


def __getattr__(name: str):
    if _failure is not None and not name.startswith("__"):
        raise ImportError(f"torch_opaque did not load: {_failure}") from _failure
    if name in __all__:  # what looks at graphs is imported when first asked for
        return getattr(importlib.import_module(_HOMES.get(name, ".inspect"), __name__), name)
    hint = ""
    if not name.startswith("_"):
        from .slips import meant

        hint = meant(name, __all__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def __dir__() -> list:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])


# Two ways lead here. `import torch` comes first: torch is half imported, and an exception would
# break it for a program that may not want us, so it becomes a warning. `import torch_opaque` comes
# first: the next line imports torch, whose autoload finds this half-made module and calls
# _autoload(), a no-op; then an exception is the answer to the user's own import.
import torch  # noqa: E402

_torch_is_loading = getattr(torch.__spec__, "_initializing", False)
try:
    _register()
    from .modes import eager, forbid_sync, planned, strict, unfused  # noqa: E402
except Exception as error:
    if not _torch_is_loading:
        raise
    _failure = error
    warnings.warn(
        f"torch_opaque did not load, device 'opaque' is not available: {error}", stacklevel=2
    )
