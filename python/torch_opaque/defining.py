"""define_op(): an operator of PyTorch from a line of the op table's language.

An operator has one row of the op table and five kernels: of the device, and of autograd (registration/defining.cpp); of any other device, which
is the expression as operators of PyTorch; of fake tensors; of vmap. Its derivative has a row and an operator for each tensor that has one
(ns::softcap_backward_x), which are defined with it, and their derivatives when somebody first asks for them.
"""

import re
import threading

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as PROMOTION
from torch._prims_common import elementwise_dtypes

from . import _C, expressions
from .capture_modes import take_numbers
from .expressions import NoDerivative, Terms
from .slips import meant

_KINDS = {"Tensor": "T", "float": "f", "int": "i", "bool": "b", "number": "S"}
_RULES = {
    "SAME": PROMOTION.DEFAULT,
    "FLOAT": PROMOTION.INT_TO_FLOAT,
    "BOOL": PROMOTION.ALWAYS_BOOL,
}
_ARGUMENTS_MAX = 12  # a row has up to 16 operands, and each derivative one more
_NOINT, _NOFLOAT, _NOBOOL = 16, 32, 64  # the flags of ops.def

_lock = threading.RLock()
_defined: dict[str, "_Operator"] = {}
_libraries: dict[str, torch.library.Library] = {}


def define_op(schema: str, expression: str, backward=None):
    """Defines an elementwise operator and gives it, as `torch.ops.ns.name`.

        softcap = torch_opaque.define_op("ns::softcap(Tensor x, float c) -> Tensor", "c * tanh(x / c)")

    schema: as in torch.library; arguments are Tensor, float, int, bool or Scalar, up to 12 of them and at least one Tensor, and there is one
    result. expression: what it is, of these names, in the language of include/opaque/ops.def, which docs/define_op.md explains.

    On this device it is recorded as one node and fuses; a number that changes makes no new plan. On others it is the expression in PyTorch's
    operators, f16 and bf16 computed in f32. Tensors broadcast and promote as for torch.add, numbers count as Python's; integers become floats
    where the expression makes floats of them, and a comparison's result is bool.

    backward: None for the derivative of the expression; an expression of the same names, `grad` and `out` (the result) if there is one
    Tensor; a dict or tuple of such for several, None where there is no gradient; or a function of `grad` and the arguments that returns a
    gradient for each Tensor. Numbers have no gradient. The derivative of an expression can be differentiated again.

    Raises ValueError, with the column, for a schema or an expression that is none, and RuntimeError if the name has another meaning. To define
    the same operator once more gives the one that there is. Where the expression has a function without derivative, backward() raises
    RuntimeError with its name. A dtype in which the expression is not defined raises RuntimeError at the call.
    """
    namespace, name, arguments, words, defaults = _read_schema(schema)
    with _lock:
        known = _defined.get(f"{namespace}::{name}")
        if known is not None:
            if known.meaning != (words, _one_line(expression), backward):
                raise RuntimeError(
                    f"define_op: {namespace}::{name} is defined already, as {known.words()}"
                )
            return known.packet
        return _Operator(namespace, name, arguments, words, expression, backward, defaults).packet


# ---- reading


def _one_line(text: str) -> str:
    return re.sub(r"\s", " ", text)


def _read_schema(schema: str):
    """Namespace, name, [(name, kind)], the schema behind the namespace, default values."""
    try:
        read = torch._C.parse_schema(schema)
    except RuntimeError as error:
        raise ValueError(f"define_op: {error}") from None
    namespace, colons, name = read.name.partition("::")
    if not colons or "::" in name:
        raise ValueError(f"define_op: the name of {schema!r} wants a namespace, as in ns::name")
    if namespace in ("aten", "prim", "prims", "_"):
        raise ValueError(f"define_op: the namespace {namespace} is PyTorch's")
    if read.overload_name:
        raise ValueError(f"define_op: {schema!r} is an overload, which no definition can be")
    for argument in read.arguments:
        if str(argument.type) not in _KINDS or argument.alias_info is not None:
            mark = "!" if argument.alias_info is not None else ""
            raise ValueError(
                f"define_op: argument {argument.name} of {schema!r} is {argument.type}{mark}; arguments are Tensor, float, "
                "int, bool or Scalar"
            )
    arguments = [(argument.name, str(argument.type)) for argument in read.arguments]
    if len(arguments) > _ARGUMENTS_MAX:
        raise ValueError(
            f"define_op: {schema!r} has {len(arguments)} arguments, at most {_ARGUMENTS_MAX}"
        )
    if not any(kind == "Tensor" for _, kind in arguments):
        raise ValueError(f"define_op: {schema!r} has no Tensor")
    if (
        len(read.returns) != 1
        or str(read.returns[0].type) != "Tensor"
        or read.returns[0].alias_info
    ):
        raise ValueError(f"define_op: {schema!r} has to return one Tensor")
    defaults = {a.name: a.default_value for a in read.arguments if a.has_default_value()}
    if any(argument.kwarg_only for argument in read.arguments):
        raise ValueError(
            f"define_op: {schema!r} has arguments that go by name only; all have a place"
        )
    return namespace, name, arguments, str(read).partition("::")[2], defaults


def _pointed(error: ValueError, text: str) -> ValueError:
    """The same with the text, and a mark at the column."""
    message = str(error)
    column = re.search(r"expression, column (\d+)", message)
    function = re.search(r"no function is named '(\w+)'", message)
    if function:
        names = [row["name"] for row in _C.op_table() if row["class"] == "EWISE"]
        message += meant(function[1], names)
    if column and _one_line(text)[int(column[1]) - 2 :].startswith("**"):
        message += "; a power is pow(a, b)"
    if column:
        message += f"\n    {_one_line(text)}\n    {' ' * (int(column[1]) - 1)}^"
    return ValueError(f"define_op: {message}")


# ---- an operator


class _Operator:
    """A derivative's row has `arguments` in some order, `backward` None, and is told the gradient of `lazily`."""

    def __init__(
        self, namespace, name, arguments, words, text, backward=None, defaults=None, lazily=False
    ):
        self.name = f"{namespace}::{name}"
        self.arguments = arguments
        self.names = tuple(argument for argument, _ in arguments)
        self.defaults = defaults or {}
        self.tensors = [argument for argument, kind in arguments if kind == "Tensor"]
        self.text = _one_line(text)
        self.backward = backward
        self.meaning = (words, self.text, backward)
        self.missing = None  # why there is no gradient
        self._rows = None
        row = self._define_row()
        self.rule, self.flags = row["rule"], row["flags"]
        known = "_jit_get_schemas_for_operator"
        if getattr(torch._C, known)(self.name):
            raise RuntimeError(f"define_op: {self.name} is an operator already, of somebody else")
        terms = None if lazily else self._gradients()
        self._register(namespace, name, words, terms)
        _defined[self.name] = self
        if terms is not None:
            self._define_rows(terms)

    def words(self) -> str:
        return f"{self.meaning[0]} = {self.text}"

    def _define_row(self) -> dict:
        try:
            self.number = _C.define_row(f"{self.name}({', '.join(self.names)})", self.text)
        except ValueError as error:
            if " is defined already" in str(error):
                raise RuntimeError(f"define_op: {error}") from None
            raise _pointed(error, self.text) from None
        return _C.row_of(self.number)

    def _register(self, namespace, name, words, terms):
        library = _libraries.get(namespace)
        if library is None:
            library = _libraries[namespace] = torch.library.Library(namespace, "FRAGMENT")
        schema = re.sub(r"\b(float|int) (?=\w+)", "Scalar ", words)  # see check_numbers()
        library.define(schema, tags=(torch.Tag.pt2_compliant_tag, torch.Tag.pointwise))
        library.impl(name, self._elsewhere, "CompositeExplicitAutograd")
        torch.library.register_fake(self.name, self._fake, lib=library)
        torch.library.register_vmap(self.name, self._batched, lib=library)
        used = (
            self.names if terms is None else set().union(*map(expressions.names_in, terms.values()))
        )
        saved = [kind == "Tensor" and argument in used for argument, kind in self.arguments]
        node = "".join(word.capitalize() for word in name.split("_")) + "Backward0"
        kinds = "".join(_KINDS[kind] for _, kind in self.arguments)
        _C.define_kernels(self.name, self.number, kinds, saved, node, self._gradient, self._tangent)
        self.packet = getattr(getattr(torch.ops, namespace), name)
        take_numbers(self.packet, self.packet.default)

    # ---- kernels

    def _all(self, arguments, named) -> list:
        """Every argument, which PyTorch leaves out where it has its default; numbers as the schema has them (autograd's kernel, if there was
        one, did that already)."""
        values = {**self.defaults, **dict(zip(self.names, arguments, strict=False)), **named}
        return [
            torch.sym_float(values[n]) if kind == "float" else values[n]
            for n, kind in self.arguments
        ]

    def _dtypes(self, arguments) -> tuple:
        """In which it is computed, f16 and bf16 in f32, and of the result."""
        compute, result = elementwise_dtypes(*arguments, type_promotion_kind=_RULES[self.rule])
        promoted = elementwise_dtypes(*arguments, type_promotion_kind=PROMOTION.DEFAULT)[1]
        if promoted.is_floating_point:
            refused = self.flags & _NOFLOAT
        else:
            refused = promoted.is_complex or self.flags & (
                _NOINT | (_NOBOOL if promoted == torch.bool else 0)
            )
        if refused:
            hint = "; masks are joined by logical_and and its like" if refused == _NOFLOAT else ""
            raise RuntimeError(f"\"{self.name}\" not implemented for '{promoted}'{hint}")
        return compute, result

    def _elsewhere(self, *arguments, **named):
        arguments = self._all(arguments, named)
        compute, dtype = self._dtypes(arguments)
        tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
        device = next((t.device for t in tensors if t.dim() > 0), tensors[0].device)
        operands = [torch.as_tensor(a, dtype=compute, device=device) for a in arguments]
        result = expressions.evaluate(self.names, self.text, compute, operands)
        shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
        if result.shape != shape or any(result is operand for operand in operands):
            result = result.expand(shape).clone()
        return result.to(dtype)

    def _fake(self, *arguments, **named):
        arguments = self._all(arguments, named)
        _, dtype = self._dtypes(arguments)
        whole, *others = [a for a in arguments if isinstance(a, torch.Tensor)]
        for other in others:
            whole = torch.add(whole, other)
        return torch.empty_like(whole, dtype=dtype)

    def _batched(self, info, in_dims, *arguments):
        rank = max(
            a.dim() - (dim is not None)
            for a, dim in zip(arguments, in_dims, strict=True)
            if isinstance(a, torch.Tensor)
        )
        given = []
        for argument, dim in zip(arguments, in_dims, strict=True):
            if isinstance(argument, torch.Tensor) and dim is not None:
                first = argument.movedim(dim, 0)
                ones = (1,) * (rank - first.dim() + 1)
                argument = first.reshape(first.shape[0], *ones, *first.shape[1:])
            given.append(argument)
        return self.packet(*given), 0

    # ---- gradients

    def _gradients(self) -> dict | None:
        """Terms by tensor. None: a function has them, or there are none."""
        if callable(self.backward):
            return None
        terms = Terms()
        grad = self._grad_name()
        operands = [terms.name(name) for name in self.names]
        try:
            if self.backward is None:
                end = terms.read(self.names, self.text, operands)
                return expressions.derivatives(terms, end, self.tensors, terms.name(grad))
        except NoDerivative as error:
            self.missing = f"{error.args[0]} has none"
            return None
        except ValueError:
            self.missing = "it computes integers"
            return None
        if grad != "grad" or "out" in self.names:
            raise ValueError(
                f"define_op: {self.name}: `grad` and `out` have a meaning in backward=, and are arguments"
            )
        given = {name: text for name, text in self._given().items() if text is not None}
        try:
            out = terms.read(self.names, self.text, operands)
        except ValueError:
            raise ValueError(
                f"define_op: {self.name} computes integers, which have no gradient"
            ) from None
        return {
            name: self._read_gradient(terms, text, [*operands, terms.name(grad), out])
            for name, text in given.items()
        }

    def _read_gradient(self, terms, text, operands):
        try:
            return terms.read((*self.names, "grad", "out"), _one_line(text), operands)
        except ValueError as error:
            message = str(error).replace("opaque::expression", f"{self.name}, backward")
            raise _pointed(ValueError(message), text) from None

    def _given(self) -> dict:
        """backward= by tensor."""
        given = self.backward
        if isinstance(given, str):
            given = (given,)
        if isinstance(given, (tuple, list)):
            if len(given) != len(self.tensors):
                raise ValueError(
                    f"define_op: {self.name} has {len(self.tensors)} Tensors ({', '.join(self.tensors)}), and backward= has "
                    f"{len(given)} expressions"
                )
            given = dict(zip(self.tensors, given, strict=True))
        if not isinstance(given, dict) or not all(
            isinstance(text, (str, type(None))) for text in given.values()
        ):
            raise ValueError(
                f"define_op: {self.name}: backward= is an expression, a dict or tuple of them, or a function"
            )
        for name in given:
            if name not in self.tensors:
                raise ValueError(
                    f"define_op: {self.name} has no Tensor {name}, which backward= has{meant(name, self.tensors)}"
                )
        return given

    def _grad_name(self) -> str:
        name, number = "grad", 2
        while name in self.names:
            name, number = f"grad{number}", number + 1
        return name

    def _define_rows(self, terms: dict):
        """An operator for each gradient: of the names that its expression has."""
        namespace, _, name = self.name.partition("::")
        kinds = {self._grad_name(): "Tensor", **dict(self.arguments)}
        rows = {}
        for tensor, term in terms.items():
            used = expressions.names_in(term)
            arguments = [
                (n, kind) for n, kind in kinds.items() if n in used or n == self._grad_name()
            ]
            own = f"{name}_backward_{tensor}"
            listed = ", ".join(
                f"{'Scalar' if kind == 'number' else kind} {n}" for n, kind in arguments
            )
            words, text = f"{own}({listed}) -> Tensor", expressions.text_of(term)
            try:
                rows[tensor] = _Operator(namespace, own, arguments, words, text, lazily=True)
            except ValueError:  # operands or parts are beyond what a row may have
                self.missing = "that is too long"
                return
        self._rows = rows

    def _row_of_each(self) -> dict:
        """The derivatives' operators by tensor. Raises RuntimeError where there are none."""
        with _lock:
            if self._rows is None and self.missing is None:
                terms = self._gradients()
                if terms is not None:
                    self._define_rows(terms)
        if self.missing is not None:
            raise RuntimeError(
                f"{self.name} has no derivative, because {self.missing}; give define_op a backward="
            )
        return self._rows

    def _flow(self, row, grad, arguments):
        values = dict(zip(self.names, arguments, strict=True))
        values[self._grad_name()] = grad
        return row.packet(*(values[name] for name in row.names))

    def _gradient(self, needed, grad, arguments):
        """What the node of autograd asks for."""
        if callable(self.backward):
            return self._called(grad, arguments)
        rows = self._row_of_each()
        return [
            self._flow(rows[tensor], grad, arguments) if wanted and tensor in rows else None
            for tensor, wanted in zip(self.tensors, needed, strict=True)
        ]

    def _tangent(self, tangents, arguments, result):
        """Of an elementwise operator a gradient times the tangent of its tensor is what that adds to the result's."""
        if callable(self.backward):
            raise NotImplementedError(
                f"{self.name}: its backward= is a function, which forward mode cannot use"
            )
        rows = self._row_of_each()
        total = torch.zeros_like(result)
        for tensor, tangent in zip(self.tensors, tangents, strict=True):
            if tangent is not None and tensor in rows:
                total = total + self._flow(rows[tensor], tangent, arguments)
        return total.to(result.dtype)

    def _called(self, grad, arguments):
        result = self.backward(grad, *arguments)
        result = tuple(result) if isinstance(result, (tuple, list)) else (result,)
        if len(result) != len(self.tensors):
            raise RuntimeError(
                f"the backward= of {self.name} returned {len(result)} gradients, for {len(self.tensors)} Tensors"
            )
        return result
