"""A program that knows nothing of the device runs on it: what it makes on the CPU, or puts there, lies on the device instead.

PyTorch's functions are replaced, for `python -m torch_opaque`, whose process runs this program and nothing else. A
torch.device context would do half of it, and every op would pay for it: it is asked at each.
What PyTorch makes for itself (step counters of optimizers, indices of samplers) stays on the CPU, and so does what the
program makes under another device. What this means for a program is in docs/command_line.md.
"""

import sys
from contextlib import contextmanager
from functools import cache, wraps

import torch
from torch._C import _len_torch_function_stack
from torch.utils import _device, _pytree
from torch.utils.data import dataloader

from .modules import _replace as replace_contents

_LIKE = ("empty", "full", "ones", "rand", "randint", "randn", "zeros")
_MADE_ELSEWHERE = ("from_numpy", "frombuffer", "from_dlpack", "from_file", "normal")
_MAKES_FOR_PROGRAMS = (
    "torch.nn.modules",
    "torch.nn.functional",
    "torch.nn.init",
    "torch.distributions",
)
# What these make is for themselves: safetensors reads memory; transformers asks by a tensor whether the CPU is the default device, and
# only then loads weights without a further package.
_OF_THEMSELVES = ("torch", "torch_opaque", "safetensors", "transformers.modeling_utils")
_to_cpu = torch.Tensor.cpu
_suspended = False


@cache
def _is_program(module: str) -> bool:
    by_itself = module in _OF_THEMSELVES or module.partition(".")[0] in _OF_THEMSELVES
    return not by_itself or module.startswith(_MAKES_FOR_PROGRAMS)


@contextmanager
def suspended():
    """For this block the CPU is the CPU: what compares with it runs the program's functions there."""
    global _suspended
    before, _suspended = _suspended, True
    try:
        yield
    finally:
        _suspended = before


def _called_by_program() -> bool:
    """Asked by what replaces a function: did the program call it, or PyTorch for itself?"""
    return not _suspended and _is_program(sys._getframe(2).f_globals.get("__name__", ""))


def _is_cpu(device) -> bool:
    return isinstance(device, (str, torch.device)) and torch.device(device).type == "cpu"


def _another_default() -> bool:
    """Is there a `with torch.device(...)` around for something else than the CPU?"""
    return _len_torch_function_stack() > 0 and not _is_cpu(torch.get_default_device())


def _moved(x):
    if not isinstance(x, torch.Tensor) or x.device.type != "cpu":
        return x
    return x.detach().to("opaque").requires_grad_(x.requires_grad) if x.is_leaf else x.to("opaque")


def _replace(owner, name: str, make) -> None:
    plain = getattr(owner, name)
    setattr(owner, name, wraps(plain)(make(plain)))


# ---- what makes tensors


def _constructor(plain):
    def made(*args, **kwargs):
        if not _called_by_program() or kwargs.get("out") is not None:
            return plain(*args, **kwargs)
        device = kwargs.get("device")
        if not _is_cpu(device) and (device is not None or _another_default()):
            return plain(*args, **kwargs)
        kwargs.pop("pin_memory", None)
        generator = kwargs.get("generator")
        if generator is not None and generator.device.type == "cpu":
            return _moved(plain(*args, **kwargs))  # a CPU generator gives the CPU's numbers
        return plain(*args, **kwargs | {"device": "opaque"})

    return made


def _like(plain):
    def made(*args, **kwargs):
        if _is_cpu(kwargs.get("device")) and _called_by_program():
            kwargs["device"] = "opaque"
        return plain(*args, **kwargs)

    return made


def _made_elsewhere(plain):
    def made(*args, **kwargs):
        result = plain(*args, **kwargs)
        return _moved(result) if _called_by_program() and not _another_default() else result

    return made


def _load(plain):
    def load(f, map_location=None, *args, **kwargs):
        if _called_by_program() and (map_location is None or _is_cpu(map_location)):
            map_location = "opaque"
        return plain(f, map_location, *args, **kwargs)

    return load


def _new(plain):
    def __new__(cls, *args, **kwargs):
        result = plain(cls, *args, **kwargs)
        return _moved(result) if cls is torch.Tensor and _called_by_program() else result

    return __new__


class _TensorType(type):
    """Of torch.FloatTensor and its like: they make tensors, are asked by isinstance() and taken by Tensor.type()."""

    def __call__(cls, *args, **kwargs):
        result = cls.plain(*args, **kwargs)
        return _moved(result) if _called_by_program() else result

    def __instancecheck__(cls, x) -> bool:
        on_cpu = isinstance(x, torch.Tensor) and x.device.type in ("cpu", "opaque")
        return on_cpu and x.dtype == cls.dtype


# ---- what moves them


def _to(plain):
    def to(self, *args, **kwargs):
        if (args and _is_cpu(args[0]) or _is_cpu(kwargs.get("device"))) and _called_by_program():
            if args and _is_cpu(args[0]):
                args = ("opaque", *args[1:])
            else:
                kwargs["device"] = "opaque"
        return plain(self, *args, **kwargs)

    return to


def _cpu(plain):
    def cpu(self, *args, **kwargs):
        return self.to("opaque") if _called_by_program() else plain(self, *args, **kwargs)

    return cpu


def _numpy(plain):
    def numpy(self, *, force=False):
        return plain(_to_cpu(self) if self.device.type == "opaque" else self, force=force)

    return numpy


def _type(plain):
    def type_(self, dtype=None, *args, **kwargs):
        if isinstance(dtype, str):
            dtype = getattr(torch, dtype.removeprefix("torch."), dtype)
        if isinstance(dtype, _TensorType):
            dtype = dtype.dtype
        return plain(self, dtype, *args, **kwargs)

    return type_


def _pin_memory(plain):
    def pin_memory(self, *args, **kwargs):
        return self if self.device.type == "opaque" else plain(self, *args, **kwargs)

    return pin_memory


def _batch(plain):
    def __next__(self):
        return _pytree.tree_map(_batch_part, plain(self))

    return __next__


def _batch_part(x):
    if isinstance(x, torch.Tensor):
        return _moved(x)
    # A batch of a class of its own, as of transformers.
    return x.to("opaque") if callable(getattr(x, "to", None)) else x


def _register(plain):
    def register(self, name, tensor, *args, **kwargs):
        if not _suspended and isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu":
            if isinstance(tensor, torch.nn.Parameter):
                replace_contents(
                    tensor, torch.nn.Parameter(tensor.to("opaque"), tensor.requires_grad)
                )
            else:
                tensor = tensor.to("opaque")
        return plain(self, name, tensor, *args, **kwargs)

    return register


# ---- what needs other arguments


def _pack_padded_sequence(plain):
    def pack_padded_sequence(input, lengths, *args, **kwargs):
        if isinstance(lengths, torch.Tensor):
            lengths = _to_cpu(lengths)  # they have to be there
        return plain(input, lengths, *args, **kwargs)

    return pack_padded_sequence


def _autocast(plain):
    def __init__(self, device_type, *args, **kwargs):
        plain(self, "opaque" if _is_cpu(device_type) else device_type, *args, **kwargs)

    return __init__


def _compile(plain):
    def compile(model=None, **options):
        if not _called_by_program():
            return plain(model, **options)
        return (lambda function: function) if model is None else model

    return compile


def apply() -> None:
    """From now on the program's CPU is the device."""
    makers = set(map(id, _device._device_constructors()))
    for module in (torch, torch.fft):
        for name, value in list(vars(module).items()):
            if id(value) in makers:
                _replace(module, name, _constructor)
    for name in _LIKE:
        _replace(torch, name + "_like", _like)
    for name in _MADE_ELSEWHERE:
        _replace(torch, name, _made_elsewhere)
    _replace(torch, "load", _load)
    _replace(torch, "compile", _compile)
    for kind in torch._tensor_classes:
        if kind.__module__ == "torch" and kind.is_cuda is False and kind.layout == torch.strided:
            members = {"plain": kind, "dtype": kind.dtype, "__module__": "torch"}
            setattr(torch, kind.__name__, _TensorType(kind.__name__, (), members))
    _replace(torch.Tensor, "__new__", _new)
    for name, make in (
        ("to", _to),
        ("cpu", _cpu),
        ("numpy", _numpy),
        ("type", _type),
        ("pin_memory", _pin_memory),
    ):
        _replace(torch.Tensor, name, make)
    for name in ("register_parameter", "register_buffer"):  # weights that a library read itself
        _replace(torch.nn.Module, name, _register)
    _replace(torch.autocast, "__init__", _autocast)
    _replace(dataloader._BaseDataLoaderIter, "__next__", _batch)
    _replace(torch.nn.utils.rnn, "pack_padded_sequence", _pack_padded_sequence)


def hint(error: BaseException) -> None:
    """A word on what the program's author cannot know."""
    if "on the same device" in str(error) or "type for generator but found 'cpu'" in str(error):
        error.add_note(
            "torch_opaque: --device opaque moves what a program makes on the CPU with PyTorch's functions; something here "
            "was made in another way. Move it with .to('opaque'), see docs/command_line.md."
        )
