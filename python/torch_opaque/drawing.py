"""Graphs in Graphviz's language."""


def _quoted(*lines) -> str:
    text = "\\n".join(line.replace("\\", "\\\\").replace('"', '\\"') for line in lines if line)
    return f'"{text}"'


def _type(node) -> str:
    return f"{node.dtype}[{','.join(map(str, node.shape))}]"


def _box(node) -> str:
    attrs = node.text.partition(" {")[2].rpartition("}")[0] if node.attrs else ""
    style = ", style=rounded" if node.op == "input" else ""
    numbers = ", ".join(str(o.attrs["value"]) for o in node.operands if o.inlined)
    label = _quoted(
        " ".join(filter(None, (f"%{node.id} {node.op}", numbers))),
        f"{{{attrs}}}" if attrs else "",
        node.name or node.line,
    )
    return f"  n{node.id} [label={label}{style}];"


def dot_of_nodes(graph) -> str:
    """Boxes are ops, edges are values with their types, clusters are kernels."""
    lines = ["digraph opaque {", '  node [shape=box, fontname="monospace"];']
    for kernel in graph.kernels:
        label = _quoted(f"{kernel.kind} {kernel.name}")
        lines += [f"  subgraph cluster_{kernel.index} {{", f"  label={label};"]
        lines += [*map(_box, kernel.nodes), "  }"]
    lines += [_box(n) for n in graph.nodes if n.kernel is None and not n.inlined]
    lines += [
        f"  n{operand.id} -> n{node.id} [label={_quoted(_type(operand))}];"
        for node in graph.nodes
        for operand in node.operands
        if not operand.inlined
    ]
    return _end(graph, lines, lambda node: f"n{node.id}")


def dot_of_kernels(graph) -> str:
    """Boxes are kernels and inputs, edges are values in memory."""
    lines = ["digraph opaque {", '  node [shape=box, fontname="monospace"];']
    for kernel in graph.kernels:
        moved = kernel.bytes_read + kernel.bytes_written
        lines.append(
            f"  k{kernel.index} [label={_quoted(kernel.name, kernel.kind, f'{moved} bytes')}];"
        )

    def name(node):
        return f"k{node.kernel.index}" if node.kernel else f"n{node.id}"

    shown = {o.id: o for kernel in graph.kernels for o in kernel.reads if o.kernel is None}
    lines += [
        _box(node)
        for node in (shown | {o.id: o for o in graph.outputs if o.kernel is None}).values()
    ]
    lines += [
        f"  {name(operand)} -> k{kernel.index} [label={_quoted(_type(operand))}];"
        for kernel in graph.kernels
        for operand in kernel.reads
    ]
    return _end(graph, lines, name)


def _end(graph, lines: list, name) -> str:
    for i, node in enumerate(graph.outputs):
        lines.append(f'  out{i} [label="output {i}", style=rounded];')
        lines.append(f"  {name(node)} -> out{i} [label={_quoted(_type(node))}];")
    return "\n".join([*lines, "}"]) + "\n"
