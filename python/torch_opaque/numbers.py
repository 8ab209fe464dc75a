"""Python's numbers in a captured function: what is computed of them is computed again at each call.

A number stands for a register of the capturing's program on the host (registration/host_program.h). Arithmetic makes new registers; a
comparison is noted with its outcome, and every other use (a size, an index, a function of another library) with the number itself: a call for
which it comes out otherwise is recorded anew. As numbers are arguments of operators, they are SymFloat and SymInt, which PyTorch hands to
kernels as they are.
"""

import operator

import torch

from . import _C

_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_PYTHON = {name: getattr(operator, name) for name in (*_ARITHMETIC, *_COMPARISONS, "neg", "abs")}


class _Node:
    """What PyTorch asks a symbolic number."""

    def __init__(self, capturing, register):
        self.capturing, self.register = capturing, register
        self.value = capturing.number(register)

    def register_in(self, capturing):
        """The register in this capturing, None if the number is not known there."""
        if capturing is self.capturing:
            return self.register
        if capturing is not None and capturing.followed() is self.capturing:
            return capturing.outer(self.register)
        return None

    def looked_at(self):
        """Its value, which Python goes by from here on."""
        capturing = _C.capturing_here()
        register = self.register_in(capturing)
        if register is not None:
            capturing.guard(register)
        return self.value

    def is_int(self):
        return isinstance(self.value, int)

    def is_float(self):
        return isinstance(self.value, float)

    def is_bool(self):
        return False

    is_nested_int = is_bool
    is_constant = is_bool

    def is_symbolic(self):
        return True

    has_hint = is_symbolic

    def guard_int(self, _file, _line):
        return int(self.looked_at())

    def guard_float(self, _file, _line):
        return float(self.looked_at())

    def guard_size_oblivious(self, _file, _line):
        return bool(self.looked_at())

    guard_bool = guard_or_false = guard_or_true = expect_true = guard_size_oblivious

    def bool_(self):
        return bool(self.looked_at())

    def int_(self):
        return int(self.looked_at())

    def maybe_as_int(self):
        return None

    maybe_as_float = maybe_as_bool = nested_int = constant_int = constant_bool = maybe_as_int

    def str(self):
        return str(self.value)

    def _graph_repr(self):
        return str(self.value)


def _plain(number):
    return number.node.looked_at() if isinstance(number, Number) else number


class Number:
    """What floats and integers have in common."""

    def _other(self, other):
        """The register of an operand, None if it is no number that is known."""
        if isinstance(other, Number):
            return other.node.register_in(self.node.capturing)
        if type(other) is float or (type(other) is int and -(2**63) <= other < 2**63):
            return self.node.capturing.constant(other)
        if type(other) is bool:
            return self.node.capturing.constant(int(other))
        return None

    def _operate(self, name, other, swapped=False):
        if isinstance(other, torch.Tensor):
            return NotImplemented
        capturing = self.node.capturing
        if not capturing.ended():
            right = self._other(other)
            if right is not None:
                left = self.node.register
                made = capturing.operate(name, *((right, left) if swapped else (left, right)))
                if made >= 0:
                    return number(capturing, made)
        values = (self.node.looked_at(), _plain(other))
        return _PYTHON[name](*(reversed(values) if swapped else values))

    def _compare(self, name, other):
        if isinstance(other, torch.Tensor):
            return NotImplemented
        capturing = self.node.capturing
        right = None if capturing.ended() else self._other(other)
        if right is not None:
            return capturing.compare(name, self.node.register, right)
        return _PYTHON[name](self.node.looked_at(), _plain(other))

    def _of_one(self, name):
        capturing = self.node.capturing
        made = -1 if capturing.ended() else capturing.operate(name, self.node.register, -1)
        return number(capturing, made) if made >= 0 else _PYTHON[name](self.node.looked_at())

    def __bool__(self):
        return bool(self._compare("ne", 0))

    def __float__(self):
        return float(self.node.looked_at())

    def __int__(self):
        return int(self.node.looked_at())

    def __hash__(self):
        return hash(self.node.looked_at())

    def __repr__(self):
        return repr(self.node.looked_at())

    def __str__(self):
        return str(self.node.looked_at())

    def __format__(self, spec):
        return format(self.node.looked_at(), spec)

    def __reduce__(self):
        value = self.node.looked_at()
        return type(value), (value,)

    def __copy__(self):
        return self

    def __deepcopy__(self, _memo):
        return self

    def __getattr__(self, name):  # is_integer(), as_integer_ratio() ...
        if name == "node" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.node.looked_at(), name)

    def __round__(self, digits=None):
        return round(self.node.looked_at(), digits)

    def __trunc__(self):
        return int(self.node.looked_at())

    def __floor__(self):
        return self.node.looked_at().__floor__()

    def __ceil__(self):
        return self.node.looked_at().__ceil__()

    def __divmod__(self, other):
        return self // other, self % other

    def __neg__(self):
        return self._of_one("neg")

    def __pos__(self):
        return self

    def __abs__(self):
        return self._of_one("abs")


def _add_operators(cls):
    def binary(name, swapped):
        return lambda self, other: self._operate(name, other, swapped)

    def comparison(name):
        return lambda self, other: self._compare(name, other)

    for name in _ARITHMETIC:
        setattr(cls, f"__{name}__", binary(name, False))
        setattr(cls, f"__r{name}__", binary(name, True))
    for name in _COMPARISONS:
        setattr(cls, f"__{name}__", comparison(name))


_add_operators(Number)


class Float(Number, torch.SymFloat):
    __class__ = property(lambda self: float)  # isinstance(x, float), as the number would be

    def __init__(self, node):
        self.node = node


class Integer(Number, torch.SymInt):
    __class__ = property(lambda self: int)

    def __init__(self, node):
        self.node = node

    def __index__(self):
        return int(self.node.looked_at())


def number(capturing, register: int):
    node = _Node(capturing, register)
    return Float(node) if node.is_float() else Integer(node)


def is_number(value) -> bool:
    """Also one of a list of scalars, which PyTorch hands to operators as a symbolic number of its own class."""
    kind = type(value)
    return kind in (Float, Integer) or (
        kind in (torch.SymFloat, torch.SymInt) and isinstance(value.node, _Node)
    )


_C.capture_number_types(Float, Integer)
