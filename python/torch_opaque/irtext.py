"""Reads the text IR far enough to count bytes and to draw it. The C core has the real parser; this
one trusts its printer.

%3 = matmul f32[128,3072] %0, %1 {transpose_b=1}   # train.py:41
"""

import re
from dataclasses import dataclass

_NODE = re.compile(
    r"^\s*%(?P<ref>\d+) = (?P<op>\w+) (?P<type>\w+\[[\d,]*\])(?P<operands>[^{#]*)"
    r"(?:\{(?P<attrs>.*?)\})?\s*(?:#\s*(?P<line>.*))?$"
)
_OUTPUT = re.compile(r"^\s*output\s+(?P<refs>%.*?)\s*(?:#.*)?$")
_BYTES = {
    "bool": 1,
    "u8": 1,
    "i8": 1,
    "i16": 2,
    "i32": 4,
    "i64": 8,
    "f16": 2,
    "bf16": 2,
    "f32": 4,
    "f64": 8,
}
_BYTES |= {f"raw{bits}": bits // 8 for bits in (8, 16, 32, 64, 128)}
_FREE = {"input", "const", "scalar", "permute", "reshape", "expand", "slice", "strided"}


@dataclass(frozen=True)
class Node:
    """One line of a graph: result number, op, type as text, operand numbers, attributes as text, source line."""

    ref: int
    op: str
    type: str
    operands: tuple
    attrs: str
    line: str


def parse(text: str) -> tuple:
    """(nodes in order, numbers of the outputs). Lines that are neither (braces, kernels) are skipped."""
    nodes, outputs = [], []
    for line in text.splitlines():
        if match := _NODE.match(line):
            refs = tuple(int(r) for r in re.findall(r"%(\d+)", match["operands"]))
            nodes.append(
                Node(
                    int(match["ref"]),
                    match["op"],
                    match["type"],
                    refs,
                    match["attrs"] or "",
                    match["line"] or "",
                )
            )
        elif match := _OUTPUT.match(line):
            outputs += [int(r) for r in re.findall(r"%(\d+)", match["refs"])]
    return nodes, outputs


def type_bytes(text: str) -> int:
    """Bytes of a dense value of type `text`, e.g. 12 for "f32[3]"; 0 for a dtype without a size here."""
    name, _, shape = text.partition("[")
    count = 1
    for size in filter(None, shape.rstrip("]").split(",")):
        count *= int(size)
    return count * _BYTES.get(name, 0)


def unfused_bytes(text: str) -> int:
    """Bytes moved if each op of the graph were a kernel that reads its operands and writes its
    result. Views move nothing, and a view of a value is read at the view's size."""
    nodes, _ = parse(text)
    types = {node.ref: node.type for node in nodes}
    small = {node.ref for node in nodes if node.op in ("const", "scalar", "iota")}
    total = 0
    for node in nodes:
        if node.op in _FREE:
            continue
        total += type_bytes(node.type)
        total += sum(
            type_bytes(types[ref]) for ref in node.operands if ref in types and ref not in small
        )
    return total


def to_dot(text: str) -> str:
    """The graph in Graphviz's language: boxes are ops, edges are values with their types."""
    nodes, outputs = parse(text)
    types = {node.ref: node.type for node in nodes}
    lines = ["digraph opaque {", '  node [shape=box, fontname="monospace"];']
    for node in nodes:
        label = (
            node.op
            + (f"\\n{{{node.attrs}}}" if node.attrs else "")
            + (f"\\n{node.line}" if node.line else "")
        )
        label = label.replace('"', '\\"')
        style = ", style=rounded" if node.op == "input" else ""
        lines.append(f'  n{node.ref} [label="%{node.ref} {label}"{style}];')
        lines += [
            f'  n{ref} -> n{node.ref} [label="{types.get(ref, "")}"];' for ref in node.operands
        ]
    for i, ref in enumerate(outputs):
        lines.append(f'  out{i} [label="output {i}", style=rounded];')
        lines.append(f'  n{ref} -> out{i} [label="{types.get(ref, "")}"];')
    return "\n".join([*lines, "}", ""])
