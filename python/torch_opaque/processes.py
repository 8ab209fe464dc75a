"""Opaque tensors and other processes: torch.multiprocessing sends a copy, and nothing is shared.

A tensor put on a torch.multiprocessing queue, or given to a spawned process, travels as a CPU tensor
in shared memory and becomes an opaque tensor again where it arrives. Tensors of one message that are all of one memory (tied
weights) are of one memory there; a view of a part arrives as a tensor of its own. Memory that several processes
write to (share_memory_(), Hogwild training) is the CPU's: asking for it raises an error, where
PyTorch would do nothing and report success.
"""

from multiprocessing.reduction import ForkingPickler

import torch
from torch.multiprocessing import reductions


def _rebuild_storage(cpu: torch.UntypedStorage) -> torch.UntypedStorage:
    return cpu.to(device="opaque")


def _reduce_storage(storage: torch.UntypedStorage):
    if storage.device.type != "opaque":
        return reductions.reduce_storage(storage)
    return _rebuild_storage, (storage.cpu(),)


def _rebuild(kind: type, contents, window, requires_grad: bool) -> torch.Tensor:
    tensor = contents.to("opaque") if window is None else _window(contents, *window)
    if issubclass(kind, torch.nn.Parameter):
        return kind(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)


def _reduce_tensor(tensor: torch.Tensor):
    if tensor.device.type != "opaque" or (tensor.requires_grad and not tensor.is_leaf):
        return reductions.reduce_tensor(tensor)  # raises for what is no leaf
    bits = tensor.is_conj() or tensor.is_neg()
    window = None
    if (
        tensor.layout == torch.strided
        and not bits
        and tensor.nbytes == tensor.untyped_storage().nbytes()
    ):
        window = tensor.dtype, tensor.storage_offset(), tensor.size(), tensor.stride()
    contents = tensor.detach().cpu() if window is None else tensor.untyped_storage()
    return _rebuild, (type(tensor), contents, window, tensor.requires_grad)


def _window(storage: torch.UntypedStorage, dtype, *window) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device="opaque").set_(storage, *window)


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
    ForkingPickler.register(torch.UntypedStorage, _reduce_storage)
    storage = torch.UntypedStorage
    storage.share_memory_ = _of_device(storage.share_memory_, _share_memory)
    storage.is_shared = _of_device(storage.is_shared, lambda storage: False)
