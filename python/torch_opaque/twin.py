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
from contextlib import suppress

import torch

from . import _C
from .snapshot import is_opaque, objects_of

LIBRARIES = tuple(sysconfig.get_paths()[key] for key in ("stdlib", "purelib", "platlib"))
_ATOMS = (types.ModuleType, types.BuiltinFunctionType, type, weakref.ref)


class _Memo(dict):
    """What copy.deepcopy asks for the copy of the object with an id. `found` counts the answers: what led to none holds nothing of
    the device."""

    def __init__(self, twin):
        super().__init__()
        self.twin, self.found = twin, 0
        self.objects = {id(x): x for x in objects_of(torch.Tensor, types.FunctionType)}

    def get(self, key, default=None):
        known, x = key in self, self.objects.get(key)
        if not known and is_opaque(x):
            self.twin.tensor(x)
        elif not known and isinstance(x, types.FunctionType):
            return self.twin.function(x)
        self.found += key in self
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
        for key, t in self._memo.objects.items():
            if key in self._memo and is_opaque(t) and t.is_leaf and t.requires_grad:
                self._memo[key].grad = None if t.grad is None else self.tensor(t.grad)

    # ---- functions and everything else

    def __call__(self, x, name: str = "argument"):
        """`name`: for an error."""
        if isinstance(x, _ATOMS):
            return x
        if isinstance(x, types.FunctionType):
            return self.function(x)
        if isinstance(x, types.MethodType):
            return types.MethodType(x.__func__, self(x.__self__, name))
        if isinstance(x, functools.partial):
            return functools.partial(self(x.func), *self(x.args), **self(x.keywords))
        if isinstance(x, (str, torch.device)):
            return self._moved(x)
        found, size = self._memo.found, len(self._memo)
        try:
            copied = copy.deepcopy(x, self._memo)
        except Exception as error:  # of any object's own code
            self.failed.append((name, error))
            return x
        if self._memo.found > found:
            return copied
        for key in list(self._memo)[size:]:
            del self._memo[key]
        return x

    def function(self, f: types.FunctionType):
        """A copy, or the function itself if it reaches nothing of the device."""
        if id(f) in self._memo:
            self._memo.found += self._memo[id(f)] is not f
            return self._memo[id(f)]
        found = self._memo.found
        code = self._moved(f.__code__)
        inner = f.__globals__
        if not code.co_filename.startswith(LIBRARIES):
            inner = self._globals.setdefault(id(inner), dict(inner))
        cells = tuple(types.CellType() for _ in f.__closure__ or ())
        made = types.FunctionType(code, inner, f.__name__, None, cells)
        self._memo[id(f)] = made  # before what it names, which may be itself
        made.__dict__.update(f.__dict__)
        made.__defaults__ = f.__defaults__ and tuple(self(x) for x in f.__defaults__)
        made.__kwdefaults__ = f.__kwdefaults__ and {k: self(v) for k, v in f.__kwdefaults__.items()}
        for name, old, new in zip(code.co_freevars, f.__closure__ or (), cells, strict=True):
            with suppress(ValueError):  # not assigned yet
                new.cell_contents = self(old.cell_contents, name)
        if inner is not f.__globals__:
            for name in _names(code) & f.__globals__.keys():
                inner[name] = self(f.__globals__[name], name)
        if self._memo.found == found:
            self._memo[id(f)] = made = f
        return made

    def _moved(self, x):
        """The device's name becomes the CPU's, also among the constants of code."""
        if isinstance(x, types.CodeType):
            consts = tuple(map(self._moved, x.co_consts))
            return x if consts == x.co_consts else x.replace(co_consts=consts)
        name = x.type if isinstance(x, torch.device) else x
        if not isinstance(name, str) or name not in ("opaque", "opaque:0"):
            return x
        self._memo.found += 1
        return type(x)("cpu")


def _names(code: types.CodeType) -> set:
    inner = (_names(x) for x in code.co_consts if isinstance(x, types.CodeType))
    return set(code.co_names).union(*inner)
