"""Looking at what was recorded, what runs and what it costs: graph, dump, describe and the counters.

Functions taking `t_or_fn` accept an opaque tensor, a list of them, or a function with its
arguments. A function runs on snapshots: parameters, other opaque tensors, gradients, optimizers and
generators are afterwards as before. Its outputs are the flattened
return values, then every tensor it wrote, in order of first write.
"""

import os
import warnings
from contextlib import ExitStack, contextmanager
from functools import partial

import torch

from . import _C
from .graphs import STAGES, Graph, read
from .naming import Names
from .slips import meant
from .snapshot import is_opaque, recorded


def stats() -> dict:
    """Counters since the start or reset_stats(): ops_recorded, flushes (by reason), kernels_run,
    kernels_compiled, kernels_loaded, kernels_split, runs_in_pieces, runs_joined, captured_calls, plans_built, plans_in_background, plans_failed, plans_reused,
    extern_calls, bytes_read, bytes_written, bytes_allocated, bytes_peak, bytes_packed, kernels_kept, bytes_code, compile_seconds, run_seconds."""
    return _C.stats()


def wait_for_plans() -> None:
    """Returns when all plans are there that threads in the background are making: what runs next runs as the program will go on. For
    measurements; a program that repeats itself need not wait."""
    _C.wait_for_plans()


def reset_stats() -> None:
    """Clears the counters and fallback_counts(), keeps caches, sets the peak to the current value."""
    _C.reset_stats()


def fallback_counts() -> dict:
    """Ops without a native lowering that ran through PyTorch's CPU kernels: ATen overload to number of calls."""
    return _C.fallback_counts()


@contextmanager
def outputs_of(t_or_fn, args, kwargs=None, state=None):
    """Yields (tensors to look at, the Run or None). `state`: see snapshot.recorded(). Raises TypeError if there is nothing opaque in it. Of a function that computed
    something on the way because it read values, there may be none."""
    if is_opaque(t_or_fn) or isinstance(t_or_fn, (list, tuple)):
        if args or kwargs:
            raise TypeError("arguments belong to a function, not to a tensor")
        tensors = [t_or_fn] if is_opaque(t_or_fn) else list(t_or_fn)
        if not tensors or not all(map(is_opaque, tensors)):
            raise TypeError("expected opaque tensors")
        yield tensors, None
        return
    if not callable(t_or_fn):
        raise TypeError(f"expected an opaque tensor or a function, got {type(t_or_fn).__name__}")
    before = _flushes()
    with recorded(partial(t_or_fn, **kwargs) if kwargs else t_or_fn, args, state) as run:
        if not (run.outputs or run.held) and _flushes() == before:
            raise TypeError("the function neither returned nor wrote an opaque tensor")
        yield run.outputs, run


def held_by(run) -> list:
    """What a run of the function computes besides its outputs, because something holds it."""
    return _C.other_values(run.held, run.outputs) if run else []


def _flushes() -> int:
    return sum(_C.stats()["flushes"].values())


def _part_of(graph: Graph, runs, stage: str) -> Graph:
    """What is left of a function that ran in parts, or the largest of them if nothing is left."""
    if not runs.kinds:
        return graph
    largest = max(runs.kinds, key=lambda run: run.ops)
    rest = any(n.op not in ("input", "scalar") for n in graph.nodes)
    shown = "what is left in the end" if rest else f"what {largest.reason} at {largest.line} ran"
    if rest or len(runs.kinds) > 1:
        warnings.warn(
            "the function looked at values on the way (.item(), .cpu(), print), and ran in parts: "
            f"this is {shown}; explain() tells of all",
            stacklevel=3,
        )
    return graph if rest else largest.graph(stage)


def graph(t_or_fn, *args, stage: str = "recorded", **kwargs) -> Graph:
    """The graph that computes the outputs, which prints as its text; nothing runs. Arguments but `stage` are the function's.

    stage   "recorded" as the program wrote it | "simplified" expanded and folded | "fused" kernels
            and the plan | "kernels" their loops | "schedule" how those run | "c", "schedule_c" both as C
            | "llvm", "asm" of the kernels (compiles them)

    Its outputs are those asked for, then what a run would store besides because a live tensor holds
    it: of a function, all that it recorded and something still holds. Under unfused() the later
    stages are those of an unfused run. Its inputs have the program's names. Kernels are those of a plan, also of a graph that is new and
    runs in pieces first: explain() says what its runs did.

    Of a function that reads values on the way it is what is left in the end, or, if nothing is, the largest part of what it ran.

    Raises ValueError for an unknown stage, TypeError if nothing is on the device.
    """
    if stage not in STAGES:
        raise ValueError(
            f"stage={stage!r}: expected one of {', '.join(STAGES)}{meant(stage, STAGES)}"
        )
    from .watch import Runs

    names = Names(t_or_fn, args, kwargs)
    with names.scopes(), ExitStack() as stack:
        with Runs(names).watched() as runs:
            tensors, run = stack.enter_context(outputs_of(t_or_fn, args, kwargs))
        shown = read(_C.Inspection(tensors + held_by(run), names.tensors), stage)
    return _part_of(shown, runs, stage)


def _save_npy(path: str, tensor: torch.Tensor) -> str:
    """Writes a dense CPU tensor. Returns a note where the file's dtype is not the tensor's."""
    import numpy

    note = ""
    if tensor.dtype == torch.bfloat16:
        tensor, note = tensor.view(torch.uint16), "bfloat16 bits as uint16"
    numpy.save(path, tensor.numpy(), allow_pickle=False)
    return note


def dump(t_or_fn, *args, dir, **kwargs) -> list:
    """Writes the recorded graph and its inputs for `opq-opt --run DIR`, a bug report, or a C
    program: graph.ir, input0.npy, ... and, where an input's file has another dtype (bfloat16 is
    stored as uint16), notes.txt.

    The directory is made; what an earlier dump wrote there is removed. Returns the paths written.
    """
    with outputs_of(t_or_fn, args, kwargs) as (tensors, _):
        if not tensors:
            raise TypeError(
                "the function read all that it computed (.item(), .cpu()): nothing is left"
            )
        text, inputs = _C.capture(tensors)
    dir = os.fspath(dir)
    os.makedirs(dir, exist_ok=True)
    _remove_old(dir)
    paths, notes = [os.path.join(dir, "graph.ir")], []
    with open(paths[0], "w") as file:
        file.write(text)
    for i, tensor in enumerate(inputs):
        paths.append(os.path.join(dir, f"input{i}.npy"))
        if note := _save_npy(paths[-1], tensor):
            notes.append(f"input{i}.npy: {note}\n")
    if notes:
        paths.append(os.path.join(dir, "notes.txt"))
        with open(paths[-1], "w") as file:
            file.writelines(notes)
    return paths


def _remove_old(dir: str) -> None:
    for name in os.listdir(dir):
        stem, end = os.path.splitext(name)
        numbered = end == ".npy" and stem.rstrip("0123456789") in ("input", "out")
        if numbered or name in ("graph.ir", "notes.txt"):
            os.remove(os.path.join(dir, name))


def describe(t: torch.Tensor) -> str:
    """What a tensor is right now, in a few lines: type, layout, cell, and computed or the ops it
    waits for. Nothing runs."""
    if not is_opaque(t):
        raise TypeError("expected an opaque tensor")
    dtype = str(t.dtype).removeprefix("torch.")
    lines = [f"{dtype}{list(t.shape)} on opaque:0, cell {_C.cell_id(t)}"]
    if not t.is_contiguous() or t.storage_offset():
        lines.append(f"window: strides {list(t.stride())}, offset {t.storage_offset()}")
    if not _C.is_pending(t):
        lines.append("computed")
    else:
        ops, inputs, last, line = _C.pending(t)
        lines.append(f"pending: {ops} ops on {inputs} inputs")
        if ops:
            lines.append(f"last op: {last}{f' at {line}' if line else ''}")
    if t.requires_grad:
        lines.append("requires grad" + (f", grad_fn {t.grad_fn.name()}" if t.grad_fn else ", leaf"))
    return "\n".join(lines)


# The costs of running have files of their own, and belong to the same family.
from .comparison import compare  # noqa: E402
from .difference import diff  # noqa: E402
from .explanation import explain  # noqa: E402
from .first_nan import find_nan  # noqa: E402
from .repro import report_bug  # noqa: E402

__all__ = [
    "compare",
    "describe",
    "diff",
    "dump",
    "explain",
    "fallback_counts",
    "find_nan",
    "graph",
    "report_bug",
    "reset_stats",
    "stats",
    "wait_for_plans",
]
