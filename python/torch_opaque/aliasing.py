"""What shares memory, where PyTorch asks a tensor's storage: data_ptr(), copy.copy, copy.deepcopy, torch.save.

Programs compare data_ptr() to find tied weights and views. A tensor of the device has no memory of its
own and answers with a number that serves for this and can be mapped nowhere: reading there fails, it never
gives something else.

PyTorch pickles a tensor without storage through its values, and copies it like that: a shallow copy
would have memory of its own, and deep or saved copies of two views would no longer be views of one memory.
Ours has a storage as far as that goes: it is saved as a CPU tensor is, in the same format, which any PyTorch loads.
"""

import copy
import functools
from collections import OrderedDict

import torch
import torch.utils.dlpack
from torch.utils.hooks import warn_if_has_hooks


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


def _reduced(x) -> tuple:
    """What pickles x: its storage, and the window on it."""
    warn_if_has_hooks(x)
    window = (x.storage_offset(), tuple(x.size()), x.stride(), x.requires_grad, OrderedDict())
    bits = torch._utils.get_tensor_metadata(x)
    if x.dtype in torch.storage._new_dtypes():
        arguments = (x.untyped_storage(), *window, x.dtype)
        return torch._utils._rebuild_tensor_v3, (*arguments, bits) if bits else arguments
    arguments = (x._typed_storage(), *window)
    return torch._utils._rebuild_tensor_v2, (*arguments, bits) if bits else arguments


def _register_saving() -> None:
    reduce_plain = torch.Tensor._reduce_ex_internal
    write_plain = torch.UntypedStorage._write_file
    read_plain = torch.UntypedStorage._set_from_file

    @functools.wraps(reduce_plain)
    def _reduce_ex_internal(self, proto):
        # A wrapper around tensors of the device knows what it consists of.
        plain = type(self).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        return _reduced(self) if plain and _is_ours(self) else reduce_plain(self, proto)

    def _write_file(self, *args):
        return write_plain(self.cpu() if self.device.type == "opaque" else self, *args)

    torch.Tensor._reduce_ex_internal = _reduce_ex_internal

    def _set_from_file(self, *args):
        if self.device.type != "opaque":
            return read_plain(self, *args)
        return self.copy_(read_plain(torch.UntypedStorage(self.nbytes()), *args))

    torch.UntypedStorage._write_file = _write_file
    torch.UntypedStorage._set_from_file = _set_from_file


def _refuse_dlpack() -> None:
    message = "DLPack hands over memory, and an opaque tensor has none that others can see: use Tensor.cpu() first"

    def refusing(plain):
        @functools.wraps(plain)
        def export(tensor, *args, **kwargs):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "opaque":
                raise BufferError(message)
            return plain(tensor, *args, **kwargs)

        return export

    torch.Tensor.__dlpack_device__ = refusing(torch.Tensor.__dlpack_device__)
    torch.Tensor.__dlpack__ = refusing(torch.Tensor.__dlpack__)
    torch.utils.dlpack.to_dlpack = torch.to_dlpack = refusing(torch.utils.dlpack.to_dlpack)


def register() -> None:
    """Gives torch.Tensor a __copy__, its __deepcopy__ a memory, data_ptr() an answer; teaches torch.save what shares memory; refuses
    DLPack in words."""
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
    _register_saving()
    _refuse_dlpack()
