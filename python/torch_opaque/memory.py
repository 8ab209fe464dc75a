"""The memory of torch.opaque, and which device its functions accept. All of torch_opaque.device, whose names these are, too."""

import torch

from . import _C

__all__ = [
    "empty_cache",
    "get_per_process_memory_fraction",
    "ipc_collect",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
]


def _index(device) -> int:
    """Index of `device` (None, int, str, torch.device). Raises RuntimeError unless it means the one device, ValueError for another
    type."""
    if device is None:
        return 0
    if not isinstance(device, int):
        device = torch.device(device)
        if device.type != "opaque":
            raise ValueError(f"Expected an opaque device, but got: {device}")
        device = 0 if device.index is None else device.index
    if device < -1:
        raise RuntimeError(f"opaque: invalid device index {device}, there is 1 device")
    _C.check_index(device)
    return 0


def memory_allocated(device=None) -> int:
    """Bytes of live buffers."""
    _index(device)
    return _C.memory_allocated()


def max_memory_allocated(device=None) -> int:
    """Highest memory_allocated() since the start or the last reset."""
    _index(device)
    return _C.max_memory_allocated()


def memory_reserved(device=None) -> int:
    """Bytes taken from the system: blocks of live buffers and cached free ones."""
    _index(device)
    return _C.memory_reserved()


def max_memory_reserved(device=None) -> int:
    """Highest memory_reserved() since the start or the last reset."""
    _index(device)
    return _C.max_memory_reserved()


def reset_peak_memory_stats(device=None) -> None:
    """Sets the peaks to the current values."""
    _index(device)
    _C.reset_peak_memory_stats()


def _flat(prefix: str, value, out: dict) -> dict:
    for key, item in value.items():
        name = prefix + (key if isinstance(key, str) else "_".join(map(str, key)))
        if isinstance(item, dict):
            _flat(name + ".", item, out)
        else:
            out[name] = item
    return out


def memory_stats_as_nested_dict(device=None) -> dict:
    """memory_stats(), nested: {"allocated_bytes": {"all": {"current": ...}}}."""
    _index(device)
    packed = {"all": {"current": _C.stats()["bytes_packed"]}}
    return {**torch._C._accelerator_getDeviceStats(0), "packed_bytes": packed}


def memory_stats(device=None) -> dict:
    """The figures of torch.accelerator.memory_stats() and torch.cuda.memory_stats(), under their names. "allocation" are buffers,
    "segment" the blocks that were taken from the system for them, "large_pool" those of 2 MiB and more; "num_ooms" allocations that were
    refused. "packed_bytes.all.current" are copies of weights in the layout that matmuls read: a cache, no part of
    memory_allocated(), dropped with their weight, by empty_cache() and when memory runs short."""
    return dict(sorted(_flat("", memory_stats_as_nested_dict(device), {}).items()))


def reset_accumulated_memory_stats(device=None) -> None:
    """Sets what was allocated and freed, and the numbers of failures, to 0."""
    _index(device)
    _C.reset_accumulated_memory_stats()


def set_per_process_memory_fraction(fraction: float, device=None) -> None:
    """Lets buffers have `fraction` (0 to 1) of the memory that mem_get_info() calls total. A run that needs more raises
    torch.OutOfMemoryError, once what is cached was given back. Temporary memory of PyTorch's CPU kernels is not counted."""
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    _index(device)
    _C.limit_memory(fraction)


def get_per_process_memory_fraction(device=None) -> float:
    """What set_per_process_memory_fraction() set, 1.0 before."""
    _index(device)
    return _C.memory_fraction()


def memory_snapshot(device=None) -> list:
    """The live buffers, largest first, a dict each: `address`, `size` in bytes (their sum is memory_allocated()), `reserved` (of its
    block), and what recorded the value in it: `op`, `line` ("train.py:41"), `module` (while somebody looked), `source` (line with
    folder). `op` is "input" for what came from the host, "" for temporaries of a run in another thread. Nothing runs: what is pending
    has no memory yet."""
    _index(device)
    return sorted(_C.memory_snapshot(), key=lambda block: -block["size"])


def memory_summary(device=None, abbreviated: bool = False) -> str:
    """memory_stats() as a table, and unless abbreviated the lines whose values take most."""
    from .summary import bytes_text, table

    stats = memory_stats(device)
    rows = [
        (
            kind,
            bytes_text(stats[f"{kind}_bytes.all.current"]),
            bytes_text(stats[f"{kind}_bytes.all.peak"]),
        )
        for kind in ("allocated", "reserved")
    ]
    text = table(
        ("memory", "now", "peak"),
        [*rows, ("packed", bytes_text(stats["packed_bytes.all.current"]), "")],
    )
    blocks = {}
    for block in memory_snapshot(device):
        blocks.setdefault((block["op"] or "temporary", block["line"]), []).append(block["size"])
    if abbreviated or not blocks:
        return text
    largest = sorted(blocks.items(), key=lambda item: -sum(item[1]))[:20]
    made = [(op, len(sizes), bytes_text(sum(sizes)), line) for (op, line), sizes in largest]
    return text + "\n\n" + table(("made by", "buffers", "bytes", "line"), made)


def mem_get_info(device=None) -> tuple:
    """(available, total) bytes of the machine, or of the control group of this process if that is less."""
    _index(device)
    return _C.memory_info()


# Older names of torch.cuda, which programs still call.
memory_cached = memory_reserved
max_memory_cached = max_memory_reserved
reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats


def ipc_collect() -> None:
    """Nothing to do: no memory is shared with other processes."""


def empty_cache() -> None:
    """Gives cached memory back to the system: free buffers and packed copies of weights."""
    _C.empty_cache()
