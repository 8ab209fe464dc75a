"""Which nodes of two graphs are the same one.

Numbers say nothing: an op more moves all that follow. Nodes are paired by what they are computed from, else by what is computed from
them, else by op and module; of each kind only as many as both graphs have. Then neighbours of a pair, then what is alike but for types
or numbers, and at last whatever stands in the same place. Each step is one pass over the nodes, so graphs of thousands take
milliseconds.
"""

from collections import defaultdict

_LEAVES = ("input", "scalar")


class Alignment:
    """`of_a`, `of_b`: Node of one graph to that of the other. `copies_a`, `copies_b`: nodes without a partner that compute what a
    node with a partner does: a value that one of the graphs computes several times."""

    def __init__(self, a, b):
        self.of_a, self.of_b = {}, {}
        numbers = _Numbers()

        def pair(key, even: bool, *rest):
            keys = [key(g, *rest) for g in (a, b)]
            self._pair(a, b, *keys, even)
            return keys

        full = pair(numbers.below, True, True)
        pair(numbers.above, True, True)
        pair(numbers.own, True)
        self._neighbours(a)
        pair(numbers.below, False, True)
        for key in (numbers.below, numbers.above):
            pair(key, False, False)
        pair(numbers.own, False)
        self._neighbours(a)
        self._places(a)
        self._made = dict(zip(a.nodes, full[0], strict=True)) | dict(
            zip(b.nodes, full[1], strict=True)
        )
        self.copies_a = self._copies(a, self.of_a)
        self.copies_b = self._copies(b, self.of_b)

    def alike(self, x, y) -> bool:
        """Are they one node, or made alike from the same inputs?"""
        return self.of_a.get(x) is y or self._made[x] == self._made[y]

    def _copies(self, graph, partner: dict) -> set:
        known = {self._made[n] for n in graph.nodes if n in partner}
        return {
            n
            for n in graph.nodes
            if n not in partner and n.op not in _LEAVES and self._made[n] in known
        }

    def _join(self, x, y) -> None:
        self.of_a[x], self.of_b[y] = y, x

    def _free(self, x, y) -> bool:
        return x not in self.of_a and y not in self.of_b

    def _pair(self, a, b, keys_a: list, keys_b: list, even: bool) -> None:
        """Free nodes of equal keys, in order. `even`: where both graphs have as many; else who belongs to whom is not known yet."""
        groups = defaultdict(lambda: ([], []))
        for side, (g, keys, partner) in enumerate(((a, keys_a, self.of_a), (b, keys_b, self.of_b))):
            for n, key in zip(g.nodes, keys, strict=True):
                if n not in partner:
                    groups[key][side].append(n)
        for left, right in groups.values():
            if not even or len(left) == len(right):
                for x, y in zip(left, right, strict=False):
                    self._join(x, y)

    def _neighbours(self, a) -> None:
        """Operands of a pair in the same place, and its users, if their ops are equal."""
        queue = [x for x in a.nodes if x in self.of_a]
        while queue:
            x = queue.pop()
            y = self.of_a[x]
            near = [*zip(x.operands, y.operands, strict=False)]
            users = (
                [u for u in x.users if u not in self.of_a],
                [v for v in y.users if v not in self.of_b],
            )
            if len(users[0]) == len(users[1]):
                near += zip(*users, strict=True)
            for u, v in near:
                if u.op == v.op and self._free(u, v):
                    self._join(u, v)
                    queue.append(u)

    def _places(self, a) -> None:
        """Operands in the same place of a pair: one op became another."""
        for x in reversed(a.nodes):
            if x in self.of_a:
                y = self.of_a[x]
                for u, v in zip(x.operands, y.operands, strict=False):
                    if self._free(u, v) and u.op not in _LEAVES and v.op not in _LEAVES:
                        self._join(u, v)


class _Numbers:
    """A number for each key, so that keys of keys stay short."""

    def __init__(self):
        self._numbers, self._kinds = {}, {}

    def _number(self, key) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _kind(self, node, typed: bool):
        if not typed:
            return node.op
        if node not in self._kinds:
            attrs = tuple((k, str(v)) for k, v in node.attrs.items())
            self._kinds[node] = self._number((node.op, node.dtype, node.shape, attrs))
        return self._kinds[node]

    def own(self, graph) -> list:
        return [(self._kind(n, n.op in _LEAVES), n.module) for n in graph.nodes]

    def below(self, graph, typed: bool) -> list:
        """Per node a number that equals another's if both are made alike from the same inputs: those of one name, or place."""
        found, inputs = {}, 0
        for n in graph.nodes:
            leaf = ()
            if n.op == "input":
                leaf, inputs = (n.name or inputs,), inputs + (not n.name)
            operands = (found[o] for o in n.operands)
            found[n] = self._number(("below", self._kind(n, typed), *leaf, *operands))
        return list(found.values())

    def above(self, graph, typed: bool) -> list:
        """Per node a number that equals another's if the same is made of both, down to the outputs."""
        found, uses, outputs = {}, defaultdict(list), set(graph.outputs)
        for n in reversed(graph.nodes):
            key = ("above", self._kind(n, typed), n.name, n in outputs, *sorted(uses[n]))
            found[n] = self._number(key)
            for place, o in enumerate(n.operands):
                uses[o].append((found[n], place))
        return [found[n] for n in graph.nodes]
