"""The same function on the CPU: what it reaches, copied, with CPU tensors where the device's are.

What a function reaches are its arguments, the object it is a method of, its closure, its defaults and the globals that its code
names; of functions among those, the same again. copy.deepcopy does the copying: its memo, which knows what was copied before, is
asked first for each object, and makes the CPU tensors. Views of one tensor stay views of one, parameters stay parameters with their
gradients. The device's name among a function's constants and variables becomes "cpu". What holds no tensor of the device is not copied.
"""

import copy
import functools
import sysconfig
import types
import weakref

import torch

from . import _C
from .snapshot import is_opaque, objects_of

_LIBRARIES = tuple(sysconfig.get_paths()[key] for key in ("stdlib", "purelib", "platlib"))
_ATOMS = (types.ModuleType, types.BuiltinFunctionType, type, weakref.ref)


class _Memo(dict):
    """What copy.deepcopy asks for the copy of the object with an id."""

    def __init__(self, twin):
        super().__init__()
        self.twin = twin
        self.tensors = {id(t): t for t in objects_of(torch.Tensor) if is_opaque(t)}

    def get(self, key, default=None):
        if key not in self and key in self.tensors:
            return self.twin.tensor(self.tensors[key])
        return super().get(key, default)


class Twin:
    """Copies for the CPU that share one memo: `twin(fn)` and `twin(args)` hold the same tensors if fn and args do.
    `double`: floating point numbers become f64."""

    def __init__(self, double: bool = False):
        self.double = double
        self.failed = []  # (name, error) of what could not be copied and is shared
        self._storages = {}  # (cell, dtype): a flat CPU tensor
        self._globals = {}  # id: a copy of the globals of a module of the program
        self._memo = _Memo(self)
        self._made = 0
        self._saved = None

    # ---- tensors

    def tensor(self, t: torch.Tensor) -> torch.Tensor:
        """The CPU's tensor for one of the device."""
        if id(t) in self._memo:
            return self._memo[id(t)]
        if type(t) not in (torch.Tensor, torch.nn.Parameter) or t.layout != torch.strided:
            raise TypeError(f"a tensor of type {type(t).__name__} and layout {t.layout}")
        window = self._window(t.detach())
        made = (
            torch.nn.Parameter(window, t.requires_grad) if type(t) is not torch.Tensor else window
        )
        made.requires_grad_(t.requires_grad)
        self._memo[id(t)] = made
        self._made += 1
        if t.is_leaf and t.grad is not None:
            made.grad = self.tensor(t.grad)
        return made

    def made(self, t: torch.Tensor):
        """The tensor made for one of the device, None if the function does not reach that."""
        return dict.get(self._memo, id(t))

    def _window(self, t: torch.Tensor) -> torch.Tensor:
        if t.is_conj() or t.is_neg():
            return self._numbers(t.cpu().resolve_conj().resolve_neg())
        key = _C.cell_id(t), t.dtype
        if key not in self._storages:
            count = t.untyped_storage().nbytes() // t.element_size()
            self._storages[key] = self._numbers(t.as_strided((count,), (1,), 0).cpu())
        return self._storages[key].as_strided(t.size(), t.stride(), t.storage_offset())

    def _numbers(self, t: torch.Tensor) -> torch.Tensor:
        wide = {True: torch.complex128, False: torch.float64}[t.is_complex()]
        return t.to(wide) if self.double and (t.is_floating_point() or t.is_complex()) else t

    def restore(self) -> None:
        """Its tensors become what they were when this was called first."""
        if self._saved is None:
            self._saved = [(t, t.clone()) for t in self._storages.values()]
        for t, value in self._saved:
            t.copy_(value)

    def restore_gradients(self) -> None:
        """Its leaves have the gradients that those on the device have."""
        for key, t in self._memo.tensors.items():
            if key in self._memo and t.is_leaf and t.requires_grad:
                self._memo[key].grad = None if t.grad is None else self.tensor(t.grad)

    # ---- functions and everything else

    def __call__(self, x, name: str = "argument"):
        if id(x) in self._memo:
            return self._memo[id(x)]
        if isinstance(x, _ATOMS):
            return x
        if isinstance(x, types.FunctionType):
            return self._function(x)
        if isinstance(x, types.MethodType):
            return types.MethodType(x.__func__, self(x.__self__, name))
        if isinstance(x, functools.partial):
            return functools.partial(self(x.func), *self(x.args), **self(x.keywords))
        if isinstance(x, (str, torch.device)):
            return _moved(x)
        made = self._made
        try:
            copied = copy.deepcopy(x, self._memo)
        except Exception as error:  # of any object's own code
            self.failed.append((name, error))
            return x
        if self._made > made:
            return copied
        self._memo[id(x)] = x
        return x

    def _function(self, f: types.FunctionType):
        code = f.__code__.replace(co_consts=tuple(map(_moved, f.__code__.co_consts)))
        inner = f.__globals__
        if not f.__code__.co_filename.startswith(_LIBRARIES):
            inner = self._globals.setdefault(id(f.__globals__), dict(f.__globals__))
        cells = tuple(types.CellType() for _ in f.__closure__ or ())
        made = types.FunctionType(code, inner, f.__name__, None, cells)
        self._memo[id(f)] = made  # before what it names, which may be itself
        made.__dict__.update(f.__dict__)
        made.__defaults__ = f.__defaults__ and tuple(self(x) for x in f.__defaults__)
        made.__kwdefaults__ = f.__kwdefaults__ and {k: self(v) for k, v in f.__kwdefaults__.items()}
        for name, old, new in zip(code.co_freevars, f.__closure__ or (), cells, strict=True):
            try:
                new.cell_contents = self(old.cell_contents, name)
            except ValueError:  # not assigned yet
                continue
        if inner is not f.__globals__:
            for name in _names(code) & f.__globals__.keys():
                inner[name] = self(f.__globals__[name], name)
        return made


def _moved(x):
    """The device's name becomes the CPU's."""
    if isinstance(x, torch.device):
        return torch.device("cpu") if x.type == "opaque" else x
    if isinstance(x, types.CodeType):
        return x.replace(co_consts=tuple(map(_moved, x.co_consts)))
    return "cpu" if isinstance(x, str) and x in ("opaque", "opaque:0") else x


def _names(code: types.CodeType) -> set:
    inner = (_names(x) for x in code.co_consts if isinstance(x, types.CodeType))
    return set(code.co_names).union(*inner)
