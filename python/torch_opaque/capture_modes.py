"""What a captured function does beside recording: numbers of Python's, tensors of the CPU, gradients that are read or set.

Two modes of PyTorch see it: Functions what Python calls, above autograd; Operators what comes to the dispatcher, below it.
"""

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from . import _C
from .numbers import is_number, number

_GRADIENTS = tuple(
    getattr(torch.Tensor.grad, name) for name in ("__get__", "__set__", "__delete__")
)
_DATA = torch.Tensor.data.__get__
_INDEXING = (torch.Tensor.__getitem__, torch.Tensor.__setitem__)
# A gradient begins at what these are given first.
_BACKWARD = (torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad)
_aten = torch.ops.aten

# Functions that take a tensor or a number in the same place: beside an f32 or f64 tensor a number becomes one of this dtype without dims,
# which gives the same bits.
_NAMES = [
    "add",
    "sub",
    "subtract",
    "rsub",
    "mul",
    "multiply",
    "div",
    "divide",
    "true_divide",
    "lt",
    "le",
    "gt",
    "ge",
    "eq",
    "ne",
    "less",
    "greater",
    "less_equal",
    "greater_equal",
    "not_equal",
]
_OPERATORS = [
    "add",
    "radd",
    "iadd",
    "sub",
    "rsub",
    "isub",
    "mul",
    "rmul",
    "imul",
    "div",
    "rdiv",
    "idiv",
    "truediv",
    "rtruediv",
    "itruediv",
    "lt",
    "le",
    "gt",
    "ge",
    "eq",
    "ne",
]


def _functions(names) -> set:
    found = set()
    for home in (torch, torch.Tensor, torch._C.TensorBase):
        found |= {getattr(home, name) for name in names if hasattr(home, name)}
    return found


_LIKE_TENSORS = _functions([*_NAMES, *(f"{n}_" for n in _NAMES), *(f"__{n}__" for n in _OPERATORS)])
# Functions whose numbers come to kernels as they are. In all others a number is what it is now.
_LIKE_SCALARS = _functions(
    [
        "fill_",
        "full",
        "full_like",
        "addcmul",
        "addcmul_",
        "addcdiv",
        "addcdiv_",
        "lerp",
        "lerp_",
        "clamp",
        "clamp_",
    ]
) | {
    getattr(torch, name)
    for name in dir(torch)
    if name.startswith("_foreach_")
    and name.split("_")[2]
    in ("add", "sub", "mul", "div", "addcmul", "addcdiv", "lerp", "maximum", "minimum")
}


def take_numbers(*operators) -> None:
    """Numbers come to these as they are, too."""
    _LIKE_SCALARS.update(operators)


# What an operator of the CPU is given that C++ can keep.
_PLAIN = (
    *(torch.Tensor, torch.dtype, torch.device, torch.layout, torch.memory_format),
    *(bool, int, float, complex, str, type(None)),
)
_REAL = (torch.float32, torch.float64)
_SCALAR_NAMES = ("alpha", "value", "weight")
# `float` parameters take a number as it is now; these are the same functions with other ones.
_FUSED = {
    torch._fused_adam_: torch.ops.opaque._fused_adam_,
    torch._fused_adamw_: torch.ops.opaque._fused_adamw_,
    torch._fused_sgd_: torch.ops.opaque._fused_sgd_,
}
_FUSED_NUMBERS = ("lr", "weight_decay")


def _now(value):
    return value.node.looked_at() if is_number(value) else value


def _place(index):
    """An index, whose numbers are places in memory."""
    if isinstance(index, (tuple, list)):
        return type(index)(map(_place, index))
    if isinstance(index, slice):
        return slice(_now(index.start), _now(index.stop), _now(index.step))
    return _now(index)


class Functions(TorchFunctionMode):
    def __init__(self, capturing):
        super().__init__()
        self.capturing = capturing

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in _GRADIENTS and _C.has_cell(args[0]):
            self.capturing.reach_gradient(args[0])
        elif func == _DATA and _C.has_cell(args[0]):
            self.capturing.reach(args[0])
        elif func in _BACKWARD:
            roots = args[0] if args else kwargs.get("tensors", kwargs.get("outputs"))
            for root in tree_leaves(roots):
                if _C.has_cell(root):
                    self.capturing.reach(root)
        elif func is torch.Tensor.item and args[0].device.type == "cpu":
            register = self.capturing.item(args[0])
            if register is not None:
                return number(self.capturing, register)
        elif func in _FUSED and any(is_number(kwargs.get(name)) for name in _FUSED_NUMBERS):
            keep = {k: v if k in _FUSED_NUMBERS else _now(v) for k, v in kwargs.items()}
            return _FUSED[func](*args, **keep)
        if func in _INDEXING and not kwargs:
            args = (args[0], _place(args[1]), *args[2:])
        if any(map(is_number, tree_leaves((args, kwargs)))):
            args, kwargs = self._arguments(func, args, kwargs)
        return func(*args, **kwargs)

    def _arguments(self, func, args, kwargs):
        if func in _LIKE_SCALARS:
            return args, kwargs
        tensors = [one for one in args if isinstance(one, torch.Tensor)]
        if (
            func in _LIKE_TENSORS
            and len(tensors) == 1
            and (_C.has_cell(tensors[0]) or _is_host(tensors[0]))
            and tensors[0].dtype in _REAL
        ):
            like = {"dtype": tensors[0].dtype, "device": tensors[0].device}
            named = {k: v if k in _SCALAR_NAMES else _now(v) for k, v in kwargs.items()}
            return tuple(
                torch.full((), one, **like) if is_number(one) else one for one in args
            ), named
        if func in _LIKE_TENSORS and len(tensors) == 2:  # add(a, b, alpha=number)
            return tuple(map(_now, args)), {
                k: v if k == "alpha" else _now(v) for k, v in kwargs.items()
            }
        return tree_map(_now, (args, kwargs))


def _is_host(value) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


def written_arguments(func, args, kwargs) -> list:
    """What an operator writes, of what it is given."""
    found = []
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += tree_leaves(args[i] if i < len(args) else kwargs.get(argument.name))
    return found


class _Call:
    """An operator of the CPU, to be called again with other tensors and numbers."""

    def __init__(self, func, args, kwargs):
        leaves, self.spec = tree_flatten((args, kwargs))
        self.func = func
        self.leaves = [None if _is_host(one) or is_number(one) else one for one in leaves]
        self.tensors = [i for i, one in enumerate(leaves) if _is_host(one)]
        self.numbers = [i for i, one in enumerate(leaves) if is_number(one)]

    def __call__(self, tensors, numbers):
        leaves = list(self.leaves)
        for places, values in ((self.tensors, tensors), (self.numbers, numbers)):
            for place, value in zip(places, values, strict=True):
                leaves[place] = value
        args, kwargs = tree_unflatten(leaves, self.spec)
        with torch.no_grad():
            return [one for one in tree_leaves(self.func(*args, **kwargs)) if _is_host(one)]


class Operators(TorchDispatchMode):
    def __init__(self, capturing):
        super().__init__()
        self.capturing = capturing

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is _aten.detach.default and _C.has_cell(
            args[0]
        ):  # what comes of it is no view that the core sees
            self.capturing.reach(args[0])
        leaves = tree_leaves((args, kwargs))
        hosts = [one for one in leaves if _is_host(one)]
        drawn = torch.Tag.nondeterministic_seeded in func.tags
        numbers = any(map(is_number, leaves))
        if not hosts and not drawn and not numbers:
            return func(*args, **kwargs)
        if func is _aten.lift_fresh.default:
            return self._fresh(func(*args, **kwargs))
        devices = any(
            isinstance(one, torch.Tensor) and one.device.type == "opaque" for one in leaves
        )
        device = kwargs.get("device")
        if devices or (device is not None and torch.device(device).type == "opaque"):
            return self._on_device(func, args, kwargs, hosts)
        if not numbers and not drawn and all(map(self.capturing.is_fresh, hosts)):
            return self._fresh(func(*args, **kwargs))
        return self._on_host(func, args, kwargs, hosts)

    def _fresh(self, result):
        for one in tree_leaves(result):
            if _is_host(one):
                self.capturing.add_fresh(one)
        return result

    def _on_device(self, func, args, kwargs, hosts):
        """Tensors of the CPU are read by our kernels, in ways that are known."""
        asked = [one for one in hosts if not self.capturing.is_fresh(one)]
        before = [self.capturing.reads(one) for one in asked]
        self.capturing.give(hosts)
        try:
            result = func(*args, **kwargs)
        finally:
            self.capturing.give(())
        for one, reads in zip(asked, before, strict=True):
            if self.capturing.reads(one) == reads and one.numel() > 0:
                self.capturing.refuse(f"{func} reads a tensor of the CPU")
        return result

    def _on_host(self, func, args, kwargs, hosts):
        if func is _aten._local_scalar_dense.default:
            register = self.capturing.item(args[0])
            if register is not None:
                self.capturing.guard(register)
            return func(*args, **kwargs)
        written = [
            one for one in written_arguments(func, args, kwargs) if isinstance(one, torch.Tensor)
        ]
        if any(map(self.capturing.is_fresh, written)):
            self.capturing.refuse(f"{func} writes into a tensor of the CPU that was a constant")
        call, op, numbers = None, None, []
        count = sum(map(is_number, tree_leaves((args, kwargs))))
        places = self._places(func, args, kwargs) if self._are_plain(args, kwargs) else None
        if places is None or len(places) < count:
            call = _Call(func, args, kwargs)
            numbers = [
                one.node.register_in(self.capturing)
                for one in tree_leaves((args, kwargs))
                if is_number(one)
            ]
        args, kwargs = tree_map(
            lambda one: one.node.value if is_number(one) else one, (args, kwargs)
        )
        result = func(*args, **kwargs)
        results = [one for one in tree_leaves(result) if one is not None]
        if not all(map(_is_host, results)):
            self.capturing.refuse(f"{func} of tensors of the CPU gives what is no tensor")
            return result
        if any(one.requires_grad for one in (*hosts, *results)):
            self.capturing.refuse(f"{func} of tensors of the CPU has a gradient")
        if call is None:
            op = (func._schema.name, func._schema.overload_name, args, kwargs, places)
        self.capturing.host_call(call, op, hosts, numbers, results, written)
        return result

    @staticmethod
    def _are_plain(args, kwargs) -> bool:
        """Are they what a call from C++ takes from a copy?"""
        return all(is_number(one) or isinstance(one, _PLAIN) for one in tree_leaves((args, kwargs)))

    def _places(self, func, args, kwargs) -> list:
        """[(argument, register)] of numbers that are arguments, and not in a list."""
        found = []
        for i, argument in enumerate(func._schema.arguments):
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            if is_number(value):
                found.append((i, value.node.register_in(self.capturing)))
        return found
