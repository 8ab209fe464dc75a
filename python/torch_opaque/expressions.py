"""Expressions of the op table, for define_op(): what C has parsed as terms, their derivatives, and their text again.

C reads them (graph/expr.c), here and everywhere: a graph of its nodes comes back, of which terms are made. Equal terms are one object, so
that a derivative shares what it has in common with itself; in its text that is a named part.
"""

import functools
import json
import math

import torch

from . import _C
from .derivatives import DERIVATIVES

_OPERATORS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "bitwise_or": "|",
    "bitwise_xor": "^",
    "bitwise_and": "&",
    "eq": "==",
    "ne": "!=",
    "le": "<=",
    "ge": ">=",
    "lt": "<",
    "gt": ">",
}
_DEPTH = 12  # of what is printed in parentheses
_NAMES = tuple("abcdefghijkl")


class NoDerivative(Exception):
    """Of a function: its name."""


class Term:
    """op: a row's name with terms as operands, or "name" or "number" with `value`."""

    __slots__ = ("op", "operands", "value")

    def __init__(self, op: str, operands: tuple, value):
        self.op, self.operands, self.value = op, operands, value


class Terms:
    """Those of one derivation."""

    def __init__(self):
        self._known = {}

    def _one(self, op, operands=(), value=None) -> Term:
        key = (op, *map(id, operands), repr(value))
        return self._known.setdefault(key, Term(op, operands, value))

    def name(self, name: str) -> Term:
        return self._one("name", value=name)

    def number(self, value: float) -> Term:
        return self._one("number", value=float(value))

    def make(self, op: str, *operands: Term) -> Term:
        return self._one(op, operands)

    def read(self, names, text: str, operands) -> Term:
        """The expression, in which operands[i] stands for names[i]."""
        found = {}
        given = iter(operands)
        document = graph(names, text)
        for i, node in enumerate(document["nodes"]):
            below = [found[k] for k in node["operands"]]
            if node["op"] == "input":
                found[i] = next(given)
            elif node["op"] == "const":
                found[i] = self.number(float(node["attrs"]["value"]))
            elif node["op"] == "cast":  # reading makes it again
                found[i] = below[0]
            else:
                found[i] = self.make(node["op"], *below)
        return found[document["outputs"][0]]


@functools.lru_cache(1024)
def graph(names: tuple, text: str, dtype: str = "f64", expand: bool = False) -> dict:
    """The graph of an expression on operands of this dtype. Raises ValueError with the column of what is wrong."""
    return json.loads(_C.expression(f"opaque::expression({', '.join(names)})", text, dtype, expand))


@functools.cache
def _expansions() -> dict:
    return {row["name"]: row["expand"] for row in _C.op_table() if row["expand"]}


def _ordered(*ends: Term) -> list[Term]:
    """All that they are made of, operands first."""
    order, seen, stack = [], set(), [(end, False) for end in reversed(ends)]
    while stack:
        term, done = stack.pop()
        if done:
            order.append(term)
        elif id(term) not in seen:
            seen.add(id(term))
            stack.append((term, True))
            stack.extend((operand, False) for operand in reversed(term.operands))
    return order


def names_in(term: Term) -> set[str]:
    return {part.value for part in _ordered(term) if part.op == "name"}


# ---- derivatives


def _rules(term: Term, depends: set) -> tuple | None:
    """One for each operand; None: those of its expression."""
    rules = DERIVATIVES.get(term.op)
    wanted = [i for i, operand in enumerate(term.operands) if id(operand) in depends]
    if rules is not None and (not wanted or wanted[-1] < len(rules)):
        return rules
    if term.op in _expansions():
        return None
    raise NoDerivative(term.op)


def _expanded(terms: Terms, end: Term, wanted: set) -> tuple[Term, set]:
    """The term with rows that have no rule replaced by their expressions, and the ids of what depends on the names `wanted`."""
    made, depends = {}, set()

    def build(term, operands):
        new = terms._one(term.op, operands, term.value)
        if any(id(operand) in depends for operand in operands) or (
            term.op == "name" and term.value in wanted
        ):
            depends.add(id(new))
            if term.op != "name" and _rules(new, depends) is None:
                letters = _NAMES[: len(operands)]
                inner = terms.read(letters, _expansions()[term.op], operands)
                known = {id(operand): operand for operand in operands}
                for part in _ordered(inner):
                    if id(part) not in known:
                        known[id(part)] = build(part, tuple(known[id(x)] for x in part.operands))
                return known[id(inner)]
        return new

    for term in _ordered(end):
        made[id(term)] = build(term, tuple(made[id(operand)] for operand in term.operands))
    return made[id(end)], depends


def _flow(terms: Terms, term: Term, rule: str, gradient: Term) -> Term:
    names = (*_NAMES[: len(term.operands)], "y", "g")
    return terms.read(names, rule, (*term.operands, term, gradient))


def derivatives(terms: Terms, end: Term, wanted, gradient: Term) -> dict[str, Term]:
    """What `gradient` of the term is for each of the names `wanted`; those that it does not depend on are left out. Raises NoDerivative."""
    end, depends = _expanded(terms, end, set(wanted))
    flows = {id(end): gradient}
    for term in reversed(_ordered(end)):
        here = flows.get(id(term))
        if here is None or id(term) not in depends or term.op == "name":
            continue
        for operand, rule in zip(term.operands, _rules(term, depends), strict=False):
            if rule is None or id(operand) not in depends:
                continue
            flow = _flow(terms, term, rule, here)
            before = flows.get(id(operand))
            flows[id(operand)] = flow if before is None else terms.make("add", before, flow)
    names = {term.value: term for term in _ordered(end) if term.op == "name"}
    return {
        name: flows[id(names[name])]
        for name in wanted
        if name in names and id(names[name]) in flows
    }


# ---- text


def _number(value: float) -> str:
    if math.isinf(value):
        return "inf" if value > 0 else "(-inf)"
    text = repr(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)
    return f"({text})" if text.startswith("-") else text


def _shared(order: list[Term]) -> set[int]:
    """Which get a name: used more than once, or nested too deeply."""
    uses, depth, shared = {}, {}, set()
    for term in order:
        for operand in term.operands:
            uses[id(operand)] = uses.get(id(operand), 0) + 1
    for term in order:
        if not term.operands:
            depth[id(term)] = 0
            continue
        depth[id(term)] = 1 + max(depth[id(operand)] for operand in term.operands)
        if uses.get(id(term), 0) > 1 or depth[id(term)] > _DEPTH:
            shared.add(id(term))
            depth[id(term)] = 0
    return shared


def text_of(end: Term) -> str:
    """As C reads it."""
    order = _ordered(end)
    shared, taken = _shared(order) - {id(end)}, names_in(end)
    texts, parts, number = {}, [], 0
    for term in order:
        below = [texts[id(operand)] for operand in term.operands]
        if term.op == "name":
            text = term.value
        elif term.op == "number":
            text = _number(term.value)
        elif term.op in _OPERATORS:
            text = f"({below[0]} {_OPERATORS[term.op]} {below[1]})"
        elif term.op == "neg":
            text = f"(-{below[0]})"
        else:
            text = f"{term.op}({', '.join(below)})"
        if id(term) in shared:
            while f"t{number}" in taken:
                number += 1
            parts.append(f"t{number} = {_bare(text)}")
            text = f"t{number}"
            number += 1
        texts[id(term)] = text
    return _bare(texts[id(end)]) + (f" where {'; '.join(parts)}" if parts else "")


def _bare(text: str) -> str:
    """Without parentheses around all of it."""
    if not text.startswith("("):
        return text
    depth = 0
    for i, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return text[1:-1] if i == len(text) - 1 else text
    return text


# ---- values

_CALLS = {
    "div_trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "div_floor": torch.floor_divide,
    "euclid": torch.gcd,
}


def evaluate(names: tuple, text: str, dtype: torch.dtype, operands) -> torch.Tensor:
    """The expression as operators of PyTorch on tensors of `dtype`: what the device computes, on any other."""
    document = graph(names, text, _dtype_name(dtype), True)
    given, found = iter(operands), []
    device = operands[0].device
    for node in document["nodes"]:
        below = [found[k] for k in node["operands"]]
        to = _DTYPES[node["dtype"]]
        if node["op"] == "input":
            found.append(next(given))
        elif node["op"] == "const":
            value = node["attrs"]["value"]  # infinities are words
            found.append(
                torch.tensor(
                    float(value) if isinstance(value, str) else value, dtype=to, device=device
                )
            )
        elif node["op"] == "cast":
            found.append(below[0].to(to))
        else:
            call = _CALLS.get(node["op"]) or getattr(torch, node["op"])
            found.append(call(*below))
    return found[document["outputs"][0]]


_DTYPES = {
    "bool": torch.bool,
    "u8": torch.uint8,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "f32": torch.float32,
    "f64": torch.float64,
}


def _dtype_name(dtype: torch.dtype) -> str:
    return next(name for name, known in _DTYPES.items() if known == dtype)
