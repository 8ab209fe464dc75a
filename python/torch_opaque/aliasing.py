"""What shares memory, where PyTorch asks a tensor's storage: data_ptr(), copy.copy, copy.deepcopy.

Programs compare data_ptr() to find tied weights and views. A tensor of the device has no memory of its
own and answers with a number that serves for this and can be mapped nowhere: reading there fails, it never
gives something else.

PyTorch pickles a tensor without storage through its values, and copies it like that: a shallow copy
would have memory of its own, and deep copies of two views would no longer be views of one memory.
"""

import copy
import functools

import torch


def _is_ours(x) -> bool:
    return x.device.type == "opaque" and x.layout == torch.strided


def _shallow(self):
    if not _is_ours(self) or type(self) is not torch.Tensor:
        return copy._reconstruct(self, None, *self.__reduce_ex__(4))
    alias = self.data.requires_grad_(self.requires_grad)
    alias.__dict__.update(self.__dict__)
    return alias


def _whole(x) -> bool:
    return (
        x.storage_offset() == 0 and x.is_contiguous() and x.nbytes == x.untyped_storage().nbytes()
    )


def _share(x, new, memo) -> None:
    """Makes `new`, a copy of the values of x, a window on the copy of x's storage that `memo` holds, where PyTorch holds it."""
    storage, copies = x.untyped_storage(), memo.setdefault("torch", {})
    if storage._cdata not in copies and _whole(x):
        copies[storage._cdata] = new.untyped_storage()
    elif not x.is_conj() and not x.is_neg():
        copied = copy.deepcopy(storage, memo)
        new.data = new.new_empty(0).set_(copied, x.storage_offset(), x.size(), x.stride())


def register() -> None:
    """Gives torch.Tensor a __copy__, its __deepcopy__ a memory, and data_ptr() an answer."""
    deep_copy = torch.Tensor.__deepcopy__
    address = torch.Tensor.data_ptr

    @functools.wraps(address)
    def data_ptr(self):
        try:
            return address(self)
        except RuntimeError:
            if not _is_ours(self):
                raise
        storage = self.untyped_storage().data_ptr()
        return storage + self.storage_offset() * self.element_size() if self.numel() else 0

    def __deepcopy__(self, memo):
        known = id(self) in memo
        new = deep_copy(self, memo)
        if not known and type(self) is torch.Tensor and _is_ours(self):
            with torch.no_grad():
                _share(self, new, memo)
        return new

    torch.Tensor.data_ptr = data_ptr
    torch.Tensor.__copy__ = _shallow
    torch.Tensor.__deepcopy__ = __deepcopy__
