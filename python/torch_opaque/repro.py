"""report_bug(): what somebody else needs to see a fault of this package, in one file.

The C core writes the graph, its kernels, its inputs' statistics and the environment, in the form that
`opq-opt --reduce` reads (docs/bugs.md); here the error, the counters and the last run that failed join them.
"""

import json
import os
import shutil
import sys
import tempfile
import time
import traceback
import zipfile

from . import _C
from .inspect import fallback_counts, held_by, outputs_of, stats
from .naming import Names
from .snapshot import is_opaque

_CONTENTS = {
    "graph.ir": "the recorded graph, with names, files and lines",
    "kernels.txt": "its kernels, as loops",
    "inputs.json": "shape, least, largest and mean number of each input",
    "environment.json": "versions, processor, OPAQUE_ variables, command line",
    "error.txt": "the error, with files and lines",
    "stats.json": "stats() and fallback_counts()",
    "log.txt": "the end of the file that OPAQUE_LOG_FILE names",
}
_LOG_BYTES = 1 << 16


def report_bug(t_or_fn=None, *args, dir=None, inputs: bool = False, **kwargs) -> str:
    """Writes a report of a fault to `dir`, a new .zip file or folder, prints what is in it and returns its path.

    t_or_fn, *args, **kwargs   what goes wrong, as in graph(): its graph is in the report; it does not run. If it raises, its
            error is in the report. Without it, the report has the exception being handled, or the last one
            that Python showed, and the last run that failed by a fault of this package
    dir     "torch_opaque_bug_<time>.zip" if not given
    inputs  True: also the values of the graph's inputs. Else there are statistics of them only

    Raises FileExistsError if `dir` is there already, TypeError as graph() does.
    """
    path = os.fspath(dir or time.strftime("torch_opaque_bug_%Y%m%d_%H%M%S.zip"))
    zipped = path.endswith(".zip")
    if os.path.exists(path) and (zipped or os.listdir(path)):
        raise FileExistsError(f"{path} is there already")
    with tempfile.TemporaryDirectory() as folder:
        _write(folder, t_or_fn, args, kwargs, inputs)
        names = sorted(
            os.path.relpath(os.path.join(at, name), folder)
            for at, _, files in os.walk(folder)
            for name in files
        )
        sizes = [os.path.getsize(os.path.join(folder, name)) for name in names]
        if zipped:
            with zipfile.ZipFile(path, "x", zipfile.ZIP_DEFLATED) as file:
                for name in names:
                    file.write(os.path.join(folder, name), name)
        else:
            shutil.copytree(folder, path, dirs_exist_ok=True)
    print(_summary(path, names, sizes))
    return path


def _write(folder: str, t_or_fn, args, kwargs, inputs: bool) -> None:
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    with open(os.path.join(folder, "environment.json"), "w") as file:
        file.write(_C.environment())
    if t_or_fn is not None or args or kwargs:
        error = _write_graph(folder, t_or_fn, args, kwargs, inputs) or error
    if error:
        with open(os.path.join(folder, "error.txt"), "a") as file:
            file.write(_error_text(error))
    with open(os.path.join(folder, "stats.json"), "w") as file:
        json.dump({"stats": stats(), "fallback_counts": fallback_counts()}, file, indent=1)
    _copy_end(os.environ.get("OPAQUE_LOG_FILE", ""), os.path.join(folder, "log.txt"))
    if failed := _C.last_failure():
        _copy_failure(failed, os.path.join(folder, "failure"), inputs)


def _write_graph(folder: str, t_or_fn, args, kwargs, inputs: bool):
    """Returns what the function raised, or None."""
    raised, subject = [], t_or_fn

    def kept(*args, **kwargs):
        try:
            return t_or_fn(*args, **kwargs)
        except Exception as error:
            raised.append(error)
            raise

    if callable(t_or_fn) and not is_opaque(t_or_fn):
        subject = kept
    names = Names(t_or_fn, args, kwargs)
    try:
        with names.scopes(), outputs_of(subject, args, kwargs) as (tensors, run):
            _C.write_repro(tensors + held_by(run), names.tensors, folder, inputs)
    except Exception:
        if not raised:
            raise
    return raised[0] if raised else None


def _error_text(error: BaseException) -> str:
    """Where and what, without the source text of the lines."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f"{frame.filename}:{frame.lineno} in {frame.name}\n" for frame in frames]
    return "".join(lines + traceback.format_exception_only(error))


def _copy_end(log: str, to: str) -> None:
    if not os.path.isfile(log):
        return
    with open(log, "rb") as source, open(to, "wb") as file:
        source.seek(max(0, os.path.getsize(log) - _LOG_BYTES))
        file.write(source.read())


def _copy_failure(failed: str, to: str, inputs: bool) -> None:
    """The folder may be gone: it is a temporary one."""
    if os.path.isdir(failed):
        left_out = None if inputs else shutil.ignore_patterns("*.npy")
        shutil.copytree(failed, to, ignore=left_out)


def _summary(path: str, names: list, sizes: list) -> str:
    width = max(map(len, names))
    lines = [f"{path}:"]
    for name, size in zip(names, sizes, strict=True):
        text = _CONTENTS.get(os.path.basename(name), "values of an input")
        lines.append(f"  {name:<{width}}  {size:>9,} bytes  {text}")
    values = any(name.endswith(".npy") for name in names)
    lines.append(f"Of the inputs it has {'the values' if values else 'statistics only'}.")
    return "\n".join(lines)
