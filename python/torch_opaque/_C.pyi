"""The C extension `torch_opaque._C`, made by registration/python.cpp: what the Python package needs
from below, nothing else.

Importing it registers the device's kernels, hooks, guard, generator and allocator under PrivateUse1 (C++
`register_privateuse1_backend("opaque")`; Python renames again, which PyTorch accepts). Importing
starts no thread and no LLVM.

Conventions. `tensors` are opaque tensors: anything else raises TypeError. Sizes are in bytes, times
in seconds. Failures raise what eager PyTorch would raise. Everything that may run or compile
releases the GIL. Modes belong to the calling thread.
"""

from collections.abc import Callable
from typing import Any

from torch import Generator, Tensor

# ---- running

def synchronize(reason: str = "synchronize") -> None:
    """Computes everything a live tensor holds. `reason` is a name of OPQ_REASONS ("synchronize",
    "optimizer_step", ...)."""

def materialize(tensors: list[Tensor], reason: str) -> None:
    """Computes these tensors in one run, and what the run can store for live tensors on its way."""

def is_pending(tensor: Tensor) -> bool:
    """True while the tensor's value is recorded but not computed."""

def cell_id(tensor: Tensor) -> int:
    """A number for the storage: equal for all views of a tensor, never 0, not reused while the cell lives."""

def end_plans() -> None:
    """No plan is made in the background any more; returns once no thread compiles there."""

def finish_backward() -> None:
    """Returns once the device's autograd thread has dropped every earlier backward pass."""

def is_initialized() -> bool:
    """True once an opaque tensor was made in this process. Costs nanoseconds: asked by hooks in
    programs that never make one."""

# ---- modes of the calling thread: EAGER = 1, UNFUSED = 2, FORBID_SYNC = 4, STRICT = 8

def get_modes() -> int: ...
def set_modes(modes: int) -> None:
    """FORBID_SYNC makes runs with reasons item, copy_to_host, print, bound, extern_now, reinterpret
    an error that names the line; reasons synchronize, optimizer_step, inspect stay allowed."""

def set_default_modes(modes: int) -> None:
    """Modes of threads that never called set_modes (OPAQUE_STRICT=1 and the like)."""

# ---- settings

def set_bf16_products(rule: str) -> None:
    """The rule by which products of bf16 are summed that are recorded from now on: "auto", "chain" or "pairs"."""

def get_bf16_products() -> str: ...
def set_lines(which: str) -> None:
    """Source lines: "all" (kept with each recorded op), "flush" (only for runs), "off"."""

def get_lines() -> str: ...
def set_log(levels: dict[str, str]) -> None:
    """Topic of the log to level, "off", "info" or "debug"; topics that are not there are off. ValueError for others."""

def get_log() -> dict[str, str]:
    """The topics that are on."""

def log_topics() -> list[str]: ...
def set_log_file(path: str) -> None:
    """Log lines are appended to this file from now on; "": to stderr. ValueError if it cannot be opened."""

def set_watched(on: bool) -> None:
    """Whether runs ask if a profiler wants to know of them. True at first: who turns it off has to know when profilers start."""

def cpu_capability() -> str:
    """The instruction set kernels are generated for: "avx2", "avx512", "avx512_bf16", "amx", ..."""

# ---- random numbers

def default_generator() -> Generator:
    """The one default generator; the hooks' getDefaultGenerator gives the same."""

# ---- memory

def memory_allocated() -> int: ...
def max_memory_allocated() -> int: ...
def memory_reserved() -> int:
    """Blocks of live buffers, adopted memory, and what the caching allocator keeps."""

def max_memory_reserved() -> int: ...
def memory_info() -> tuple[int, int]:
    """(available, total) bytes of the machine, or of the control group of this process."""

def memory_snapshot() -> list[dict[str, Any]]:
    """Live buffers, newest first: {"address", "size", "reserved": int, "op", "line", "module", "source": str}. `op` and the rest say what
    recorded the value in it; "input": it came from the host; "": temporaries of a run, or not known."""

def reset_peak_memory_stats() -> None: ...
def reset_accumulated_memory_stats() -> None: ...
def limit_memory(fraction: float) -> None:
    """Buffers may have this part of the machine's memory, 0 to 1. What would be more raises torch.OutOfMemoryError."""

def memory_fraction() -> float: ...
def check_index(index: int) -> None:
    """Raises RuntimeError unless the index means the device: 0, negative numbers, and the local rank under a launcher."""

def empty_cache() -> None: ...
def forget(code: bool) -> None:
    """Plans are made anew, as for graphs that never came; `code`: machine code too, as in a process that begins."""

def make_matmul_kernels() -> None:
    """All f32 micro-kernels that matrix products may need: compiled, and kept on disk."""

# ---- looking

def stats() -> dict[str, Any]:
    """Fields of opq_stats; `flushes` is a dict by reason (only reasons that occurred)."""

def wait_for_plans() -> None:
    """Returns when the plans are there that threads in the background are making. Without the GIL."""

def reset_stats() -> None:
    """Clears the counters and fallback_counts(), keeps caches, sets the peak to the current value."""

def fallback_counts() -> dict[str, int]:
    """Extern calls recorded, by ATen overload ("aten::fft_fft")."""

def add_scope(name: str) -> int:
    """An id for the path of a module, 0 if no more fit. Paths are kept for good: one id for each."""

def set_scope(id: int) -> None:
    """Ops that this thread records from now on, and their gradients, belong to that module; 0: to none."""

class Inspection:
    """The pending graph of tensors at one moment, and what the modes of this thread would make of it. It holds no value of theirs:
    they may be computed, changed and freed meanwhile. Nothing runs."""

    def __init__(self, tensors: list[Tensor], names: list[tuple[str, Tensor]]) -> None:
        """Outputs are the tensors, in order, then what a run would store besides. A computed tensor is an input, and has the
        first of the names whose tensor holds the same value."""

    def text(self, stage: str) -> str:
        """Stages "recorded", "simplified", "fused", "kernels", "schedule", "c", "schedule_c", "llvm", "asm" (the
        last two compile)."""

    def json(self, stage: str) -> str:
        """The graph of the stage as docs/ir.md documents it; from "fused" on it is the fused one."""

    def kernel(self, number: int, stage: str) -> str:
        """One kernel of the fused graph; `stage`: "kernels", "schedule", "c", "schedule_c", "llvm", "asm"."""

def unfused_bytes(tensors: list[Tensor]) -> int:
    """Bytes that an unfused run of what is pending for the tensors would read and write."""

def pending(tensor: Tensor) -> tuple[int, int, str, str]:
    """What the tensor waits for: number of ops and of inputs, name and source line of the op recorded last."""

def recorded_values(tensors: list[Tensor]) -> list[Tensor | None]:
    """Tensors of the nodes of the recorded graph, by their number in it; None for inputs and scalars. While such a tensor lives, a run
    stores its value."""

def capture(tensors: list[Tensor]) -> tuple[str, list[Tensor]]:
    """The recorded graph of the tensors and its inputs, in order, as dense CPU tensors (copies).
    Computes the inputs' values if a leaf is not yet data; the tensors stay pending. Outputs are the
    tensors as seen through their windows, in the order given."""

class Contents:
    """What tensors hold at one moment: references to immutable values, nothing is copied. Recording goes on as if nobody looked."""

    def __init__(self, tensors: list[Tensor]) -> None: ...
    def changed(self) -> list[int]:
        """Numbers of the tensors that hold something else now; one for tensors that share a storage."""

    def restore(self) -> None:
        """Puts everything back. Autograd versions are not counted up."""

def write_repro(
    tensors: list[Tensor], names: list[tuple[str, Tensor]], folder: str, values: bool
) -> None:
    """Writes graph.ir, kernels.txt, inputs.json, environment.json and, with `values`, input0.npy, ... into the folder. Outputs
    and names are as in Inspection; nothing runs."""

def environment() -> str:
    """Versions, processor, OPAQUE_ variables and the command line, as JSON."""

def last_failure() -> str:
    """The folder of the last run that failed by a fault of this package, "" if there is none."""

def report_begin() -> None:
    """From now on the calling thread's runs (and those of its autograd threads) are timed step by step and kept."""

def report_end() -> dict[str, Any]:
    """What was kept: {
        "launches": [{"name", "kind", "shape", "lines": str, "rows": int, "seconds", "compile_seconds": float,
                      "bytes_read", "bytes_written", "flops": int, "fresh": bool}, ...],
        "runs": [{"why": str | None, "kernels", "compiled", "outputs": int,
                  "unwatched": {"kind": str, of OPQ_TIERS, "ops", "runs_in_pieces": int,
                                "each_seconds", "price_seconds": float}}, ...],
    }"""

def watch_runs(watch: Callable[[list[Tensor], str, str], None] | None) -> None:
    """Called before each run, on its thread, until it is None: with new tensors of all that the thread recorded, is pending and a
    live tensor holds or the run was asked for; the reason; the line of Python. They must be gone when it returns."""

def journal_begin() -> None:
    """From now on the first write of this thread, or of autograd working for it, to a cell that
    exists already notes the cell with the value it had (a reference to an immutable value: nothing
    is copied), in order of first write. Journals nest. The optimizer hook asks journal_depth()."""

def journal_depth() -> int:
    """Open journals of this thread, also when asked on a thread that works for it; 0 outside inspection."""

def journal_held() -> list[Tensor]:
    """What was recorded since this thread's innermost journal began, is pending and a live tensor holds, as new
    tensors: the values that an observation would compute."""

def journal_cells() -> list[int]:
    """cell_id() of what this thread's innermost journal noted, in order of first write: of journal_end()'s tensors, in their order."""

def other_values(tensors: list[Tensor], known: list[Tensor]) -> list[Tensor]:
    """Those of `tensors` that do not read a value which one of `known` reads."""

def journal_end(restore: bool = True) -> list[Tensor]:
    """Closes this thread's innermost journal. Gives one new tensor per noted cell, holding what was written
    (pending or not, in the dtype and shape of the cell's own value), in order of first write. With
    `restore`, each noted cell gets its old value back; autograd versions are not counted up."""

def op_table() -> list[dict[str, Any]]:
    """Rows of ops.def: {"name", "arity", "class", "rule", "flags", "aten", "signature", "expand"}."""

# ---- operators of define_op(): see defining.py

def expression(signature: str, text: str, dtype: str, expand: bool) -> str:
    """opq_graph_expression(), as JSON. Raises ValueError with the column of what is wrong."""

def define_row(signature: str, text: str) -> int:
    """opq_define_op(): the row's number. Raises ValueError."""

def row_of(number: int) -> dict[str, Any]:
    """A row by its number, as op_table() has them."""

def define_kernels(
    name: str,
    row: int,
    kinds: str,
    saved: list[bool],
    node: str,
    gradient: Callable[[list, Tensor, list], list],
    tangent: Callable[[list, list, Tensor], Tensor],
) -> None:
    """Kernels of an operator that PyTorch knows, whose arguments are the row's operands: this device's, and autograd's. `kinds`: their types,
    by first letters. gradient(needed, grad, arguments) gives one for each tensor among the arguments, or None; of the arguments it has those
    that are `saved`, and numbers; `node` is the name of its node. tangent(tangents, arguments, result) is forward mode's."""

# ---- captured functions: see captured.py

class CapturedFunction:
    """A callable that looks for a way in which the function ran before and runs its plan; else it calls its methods _record, _check
    (one in `_every` calls) or, where somebody else looks at what is recorded, _plain, which a subclass has."""

    _calls: int
    _every: int

class Exporter:
    """Calls that were captured, written as C into a folder (exporting.py)."""

    level: str
    def __init__(self, level: str, folder: str, size_count: int) -> None: ...
    def add(
        self,
        capturing: Capturing,
        arguments: list[Tensor],
        results: list[Tensor],
        weights: list[tuple[str, Tensor]],
        sizes: list[int],
    ) -> None: ...
    def finish(
        self,
        model: str,
        inputs: list[tuple[str, Tensor, list[tuple[int, int]]]],
        outputs: list[tuple[str, Tensor, list[tuple[int, int]]]],
        sizes: list[str],
        weights: str,
    ) -> None: ...

def capturing_restore(capturing: Capturing) -> None: ...

class Capturing:
    """In progress on the calling thread, which records as ever. Registers are numbers of a program that each call runs on the host; slots its
    tensors of the CPU."""

    refused: str
    def __init__(self) -> None: ...
    def refuse(self, why: str) -> None: ...
    def end(self) -> None: ...
    def reach(self, tensor: Tensor) -> None: ...
    def reach_gradient(self, tensor: Tensor) -> None: ...
    def follow(self, forward: Capturing) -> None: ...
    def followed(self) -> Capturing | None: ...
    def ended(self) -> bool: ...
    def outer(self, register: int) -> int: ...
    def dict_item(self, dict: dict, key: Any) -> int: ...
    def constant(self, number: float) -> int: ...
    def operate(self, name: str, a: int, b: int) -> int:
        """The register of the result; -1: it is no float or integer of 64 bits."""

    def compare(self, name: str, a: int, b: int) -> bool: ...
    def guard(self, register: int) -> None: ...
    def number(self, register: int) -> float: ...
    def item(self, tensor: Tensor) -> int | None: ...
    def reads(self, tensor: Tensor) -> int: ...
    def give(self, tensors: list[Tensor]) -> None:
        """Tensors of the CPU among the arguments of the operator that is called next."""

    def add_fresh(self, tensor: Tensor) -> None: ...
    def is_fresh(self, tensor: Tensor) -> bool: ...
    def host_call(
        self,
        function: Callable,
        op: tuple | None,
        tensors: list[Tensor],
        numbers: list[int],
        results: list[Tensor],
        written: list[Tensor],
    ) -> None: ...
    def arguments(
        self, args: tuple, kwargs: dict, free: list[int], make: Callable
    ) -> tuple[tuple, dict]: ...

class CutGraph:
    ends: list[Tensor]
    def restore(self) -> None: ...

class CaptureDraft:
    """One way more of a function, in the making."""

    outputs: list[Tensor]
    inspection: Inspection | None
    def cut(self) -> CutGraph:
        """The graph of the outputs, which ends where the function began, until it is put back."""
    def add_backward(self, capturing: Capturing, incoming: Any, gradients: Any) -> bool: ...
    def first_result(self) -> Any: ...
    def leaks(self) -> bool: ...
    def difference(self, function: CapturedFunction) -> str: ...
    def keep(self, function: CapturedFunction, watched: list, traced: Any) -> None: ...

def capturing_here() -> Capturing | None: ...
def capture_draft(
    capturing: Capturing, args: tuple, kwargs: dict, result: Any, free: list[int], inspected: bool
) -> CaptureDraft | None: ...
def capture_difference(function: CapturedFunction, args: tuple, kwargs: dict) -> tuple:
    """(why no way fits, or None; numbers among the arguments that changed; (name, key) of one in a dict, or None)"""

def capture_fits(function: CapturedFunction, args: tuple, kwargs: dict) -> Any: ...
def capture_inspections(function: CapturedFunction) -> list: ...
def capture_forget(function: CapturedFunction) -> None: ...
def capture_limit(function: CapturedFunction, most: int) -> None: ...
def capture_info(function: CapturedFunction) -> list[dict[str, int]]: ...
def capture_number_types(real: type, integer: type) -> None: ...
def log(topic: str, text: str) -> None:
    """A line of the log, where the topic's level is at least info."""
