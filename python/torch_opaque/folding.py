"""Graphs with what repeats shown once: layers of a network, states of an optimizer.

A repetition is a stretch of nodes, or of kernels, that follows itself: the same ops of the same types, wired in the same way among themselves. What
they take from outside is of the same type, and of the same name but for a layer's number. The first one is shown.
"""

from .summary import pattern

_OUTPUTS = 12


def _operand_key(node) -> tuple:
    value = str(node.attrs) if node.op in ("scalar", "const", "extent") else ""
    layer = pattern(node.name)
    return (node.dtype, node.shape, layer if "*" in layer else "", value)


def _node_key(node) -> tuple:
    own = pattern(node.name), pattern(node.module), node.line, str(node.attrs)
    return (node.op, node.dtype, node.shape, *own, *map(_operand_key, node.operands))


class _Item:
    """What stands in a line of the text, or a kernel with its lines. `key`: equal for items that are equal."""

    def __init__(self, nodes: list, kernel=None):
        self.nodes, self.kernel = nodes, kernel
        self.key = (kernel.kind if kernel else "", *map(_node_key, nodes))

    def lines(self, indent: str) -> list:
        if self.kernel is None:
            return [indent + self.nodes[0].text]
        head = f"{indent}kernel {self.kernel.kind} @{self.kernel.name} {{"
        return [head, *(f"{indent}  {n.text}" for n in self.nodes), indent + "}"]


def _items(graph) -> list:
    items, done = [], set()
    for node in graph.nodes:
        if node.kernel is None and not node.inlined:
            items.append(_Item([node]))
        elif node.kernel is not None and node.kernel.index not in done:
            done.add(node.kernel.index)
            items.append(_Item(node.kernel.nodes, node.kernel))
    return items


def _wiring(items: list) -> list:
    """Where each operand is within these items, None outside."""
    place = {n.id: k for k, n in enumerate(n for item in items for n in item.nodes)}
    return [[place.get(o.id) for o in n.operands] for item in items for n in item.nodes]


def _repeats(items: list, i: int, after: dict) -> tuple:
    """(items in one repetition, repetitions) of the best one that begins at i: the most items that need not be shown."""
    best, saved = (1, 1), 0
    for j in after.get(i, ()):
        period, k = j - i, 0
        while j + k < len(items) and items[i + k].key == items[j + k].key:
            k += 1
        if (k // period) * period <= saved:
            continue
        first, times = _wiring(items[i:j]), 1
        while times <= k // period and first == _wiring(
            items[i + times * period : j + times * period]
        ):
            times += 1
        if (times - 1) * period > saved:
            best, saved = (period, times), (times - 1) * period
    return best


def _next_ones(keys: list, most: int = 6) -> dict:
    """For each place, the next places of an equal key."""
    places, after = {}, {}
    for i in range(len(keys) - 1, -1, -1):
        seen = places.setdefault(keys[i], [])
        after[i] = seen[:most]
        seen.insert(0, i)
        del seen[most:]
    return after


def _range(items: list, period: int) -> str:
    """Where the repetitions are: "%12 to %341, layers.0 to layers.10"."""
    first, last = items[0].nodes[0].id, items[-1].nodes[-1].id
    modules = [
        next((n.module or n.name for n in item.nodes if n.module or n.name), "")
        for item in (items[0], items[-period])
    ]
    where = f", {modules[0]} to {modules[1]}" if all(modules) and modules[0] != modules[1] else ""
    return f"%{first} to %{last}{where}"


def _fold(items: list, indent: str) -> list:
    lines, i = [], 0
    after = _next_ones([item.key for item in items])
    while i < len(items):
        period, times = _repeats(items, i, after)
        if times == 1 or period * times < 3:
            lines += items[i].lines(indent)
            i += 1
            continue
        run = items[i : i + period * times]
        lines.append(f"{indent}x {times} {{  # {_range(run, period)}")
        lines += [*_fold(run[:period], indent + "  "), indent + "}"]
        i += period * times
    return lines


def fold(graph) -> str:
    """The text of a graph of nodes, in which what follows itself stands once, in "x 11 { }"."""
    outputs = ", ".join(f"%{n.id}" for n in graph.outputs[:_OUTPUTS])
    more = f", and {len(graph.outputs) - _OUTPUTS} more" if len(graph.outputs) > _OUTPUTS else ""
    tail = [f"  output {outputs}{more}"] if outputs else []
    return (
        "\n".join([graph.text.partition("\n")[0], *_fold(_items(graph), "  "), *tail, "}"]) + "\n"
    )
