"""Opaque tensors and other processes: torch.multiprocessing sends a copy, and nothing is shared.

A tensor put on a torch.multiprocessing queue, or given to a spawned process, travels as a CPU tensor
in shared memory and becomes an opaque tensor again where it arrives. Memory that several processes
write to (share_memory_(), Hogwild training) is the CPU's: asking for it raises an error, where
PyTorch would do nothing and report success.
"""

from multiprocessing.reduction import ForkingPickler

import torch
from torch.multiprocessing import reductions


def _rebuild(kind: type, cpu: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    tensor = cpu.to("opaque")
    if issubclass(kind, torch.nn.Parameter):
        return kind(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)


def _reduce_tensor(tensor: torch.Tensor):
    if tensor.device.type != "opaque" or (tensor.requires_grad and not tensor.is_leaf):
        return reductions.reduce_tensor(tensor)  # raises for what is no leaf
    return _rebuild, (type(tensor), tensor.detach().cpu(), tensor.requires_grad)


def _of_device(plain, ours):
    """The storage method `plain`, replaced by `ours` for storages of the device."""

    def method(self, *args, **kwargs):
        return (ours if self.device.type == "opaque" else plain)(self, *args, **kwargs)

    method.__doc__ = plain.__doc__
    return method


def _share_memory(storage):
    raise RuntimeError(
        "opaque tensors cannot be in memory shared between processes: share a CPU tensor, and copy "
        "it with .to('opaque') in each process"
    )


def register() -> None:
    """Teaches torch.multiprocessing to send opaque tensors."""
    for kind in (*torch._tensor_classes, torch.Tensor, torch.nn.Parameter):
        ForkingPickler.register(kind, _reduce_tensor)
    storage = torch.UntypedStorage
    storage.share_memory_ = _of_device(storage.share_memory_, _share_memory)
    storage.is_shared = _of_device(storage.is_shared, lambda storage: False)
