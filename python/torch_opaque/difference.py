"""diff(): two graphs side by side: nodes added, removed and changed, kernels split and merged, totals."""

import json
from collections import defaultdict
from dataclasses import dataclass, field

from .alignment import Alignment
from .explanation import Explanation
from .graphs import STAGES, Graph
from .summary import bytes_text, fold, pattern, seconds_text, table

VERSION = 1
_ROWS = 12  # lines shown of each kind
_FIELDS = ("op", "dtype", "shape", "attrs", "module", "name", "operands")
_NO_OPS = ("input", "scalar", "const")
_QUIET = (*_NO_OPS, "undefined")  # rarely what somebody looks for


@dataclass
class Change:
    """A node that both graphs have: `fields` that differ, by name: (in a, in b). A line that differs is among them if anything else does."""

    a: object
    b: object
    fields: dict


@dataclass
class KernelChange:
    """Kernels that share nodes. `relation`: "split" (one of `a`, several of `b`), "merged", "regrouped", or of one and one "changed",
    which computes more or less; "added" and "removed" share nodes with none."""

    relation: str
    a: list
    b: list


@dataclass
class Difference:
    """What graph `b` has otherwise than graph `a`; false where nothing differs. `added`, `removed`: Nodes; `changed`: Changes; `moved`:
    how many nodes differ in their line alone; `copied`: Nodes of `a` and of `b` that compute again what another one does;
    `kernels`: KernelChanges; `totals`: of each figure (in a, in b); `first`: the first of added, removed, changed and kernels, or None."""

    a: Graph
    b: Graph
    added: list = field(default_factory=list)
    removed: list = field(default_factory=list)
    changed: list = field(default_factory=list)
    moved: int = 0
    copied: tuple = ((), ())
    kernels: list = field(default_factory=list)
    totals: dict = field(default_factory=dict)
    first: object = None
    alignment: Alignment | None = field(default=None, repr=False)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.kernels or any(self.copied))

    def text(self) -> str:
        """At most some sixty lines: equal changes once, with their number."""
        if not self:
            return "no difference" + (f", {self.moved} nodes on other lines" if self.moved else "")
        parts = [
            self._summary(),
            _totals_table(self.totals),
            f"first difference: {_line(self.first)}",
        ]
        for title, items in self._sections():
            lines = _folded(items)
            if lines:
                more = [f"  ... {len(lines) - _ROWS} more"] if len(lines) > _ROWS else []
                parts.append("\n".join([f"{title}:", *lines[:_ROWS], *more]))
        return "\n\n".join(filter(None, parts))

    def _sections(self) -> tuple:
        return (
            ("removed", [("-", n) for n in self.removed]),
            ("added", [("+", n) for n in self.added]),
            ("changed", [("~", c) for c in self.changed]),
            (
                "computed again",
                [("-", n) for n in self.copied[0]] + [("+", n) for n in self.copied[1]],
            ),
            ("kernels", [("", k) for k in self.kernels]),
        )

    def _summary(self) -> str:
        counts = [
            f"{len(self.added)} added",
            f"{len(self.removed)} removed",
            f"{len(self.changed)} changed",
        ]
        if self.moved:
            counts.append(f"{self.moved} on other lines")
        found = defaultdict(int)
        for k in self.kernels:
            found[k.relation] += 1
        kernels = ", ".join(f"{count} {relation}" for relation, count in found.items())
        return f"nodes: {', '.join(counts)}" + (f"; kernels: {kernels}" if kernels else "")

    def to_dict(self) -> dict:
        """What to_json() writes. Nodes are {"id", "text", "line", "module"}."""
        return {
            "schema": "opaque.difference",
            "version": VERSION,
            "totals": {name: list(pair) for name, pair in self.totals.items()},
            "first": _line(self.first) if self.first else None,
            "added": [_node_dict(n) for n in self.added],
            "removed": [_node_dict(n) for n in self.removed],
            "changed": [
                {
                    "a": _node_dict(c.a),
                    "b": _node_dict(c.b),
                    "fields": {k: list(v) for k, v in c.fields.items()},
                }
                for c in self.changed
            ],
            "moved": self.moved,
            "copied": [[_node_dict(n) for n in side] for side in self.copied],
            "kernels": [
                {"relation": k.relation, "a": [x.name for x in k.a], "b": [x.name for x in k.b]}
                for k in self.kernels
            ],
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1)

    def to_html(self, path, *, title=None) -> None:
        """Writes a page for a browser: one file, which needs no network (docs/report.md)."""
        from . import report

        report.write_difference(path, self, title)

    def sides(self) -> list:
        """(kind, node of a or None, node of b or None) in the order of b. `kind`: "same", "changed", "added" or "removed"; a node is its
        text and the name of its kernel."""
        return [(kind, _side(x), _side(y)) for kind, x, y in _rows(self)]

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<Difference: {self._summary() if self else 'none'}>"


def _node_dict(node) -> dict:
    return {"id": node.id, "text": node.text, "line": node.line, "module": node.module}


# ---- in words


def _change_text(fields: dict) -> str:
    texts = []
    for name, (x, y) in fields.items():
        if name == "shape":
            x, y = list(x), list(y)
        if name == "attrs":
            keys = [k for k in {**x, **y} if x.get(k) != y.get(k)]
            texts += [f"{k} {x.get(k, '-')} -> {y.get(k, '-')}" for k in keys]
        elif name == "operands":
            texts.append(f"operands {', '.join(x)} -> {', '.join(y)}")
        else:
            texts.append(f"{name} {x or '-'} -> {y or '-'}")
    return "; ".join(texts)


def _line(item) -> str:
    """An item of Difference in one line."""
    sign, item = item
    if isinstance(item, Change):
        return f"~ {_said(item.b)}: {_change_text(item.fields)}"
    if isinstance(item, KernelChange):
        ends = [
            " + ".join(k.name for k in side[:6]) + (" ..." if len(side) > 6 else "")
            for side in (item.a, item.b)
        ]
        return f"{item.relation}: {' -> '.join(filter(None, ends))}"
    return f"{sign} {_said(item)}"


def _said(node) -> str:
    """Its text, without the one name of an op that says something else to a reader."""
    return node.text.replace(" = undefined ", " = uninitialized memory ", 1)


def _key(sign: str, item) -> tuple:
    """Equal for what differs in the number of a layer alone."""
    if isinstance(item, Change):
        fields = {k: v for k, v in item.fields.items() if k not in ("operands", "line")}
        return (
            "~",
            item.b.op,
            pattern(item.b.module),
            pattern(_change_text(fields)),
            "operands" in item.fields,
        )
    if isinstance(item, KernelChange):
        names = tuple(tuple(k.name.rstrip("0123456789") for k in side) for side in (item.a, item.b))
        modules = tuple(tuple(pattern(k.module) for k in side) for side in (item.a, item.b))
        return item.relation, names, modules
    return sign, item.op, item.dtype, item.shape, pattern(item.module), item.line


def _folded(items: list) -> list:
    groups = defaultdict(list)
    for sign, item in items:
        groups[_key(sign, item)].append((sign, item))
    lines = []
    for group in groups.values():
        text = f"  {_line(group[0])}"
        if len(group) > 1:
            text += f" x {len(group)}{_modules([item for _, item in group])}"
        lines.append(text)
    return lines


def _modules(items: list) -> str:
    nodes = [
        i.b if isinstance(i, Change) else i.a[0] if isinstance(i, KernelChange) and i.a else i
        for i in items
    ]
    name = fold([n.module for n in nodes if hasattr(n, "module")])
    return f" ({name})" if name and name != "*" else ""


def _totals_table(totals: dict) -> str:
    texts = {"bytes": bytes_text, "seconds": seconds_text}
    rows = [
        (
            name,
            texts.get(name, str)(x),
            texts.get(name, str)(y),
            f"{y / x:.2f}x" if x and x != y else "",
        )
        for name, (x, y) in totals.items()
    ]
    return table(("total", "before", "after", ""), rows)


# ---- side by side


def _rows(difference: Difference):
    """(kind, node of a or None, node of b or None), in the order of b, what only a has before what followed it there."""
    alignment, changed = difference.alignment, {c.b for c in difference.changed}
    before, removed = {}, []
    for x in difference.a.nodes:
        if x in alignment.of_a:
            before[x], removed = removed, []
        else:
            removed.append(x)
    for y in difference.b.nodes:
        x = alignment.of_b.get(y)
        yield from (("removed", n, None) for n in before.get(x, ()))
        yield ("added" if x is None else "changed" if y in changed else "same"), x, y
    yield from (("removed", n, None) for n in removed)


def _side(node) -> tuple | None:
    return node and (node.text, node.kernel.name if node.kernel else "")


# ---- comparing


def _changes(a: Graph, alignment: Alignment) -> tuple:
    """(Changes, how many nodes differ in their line alone)."""
    changes, moved = [], 0
    for x in a.nodes:
        y = alignment.of_a.get(x)
        if y is None:
            continue
        fields = {
            n: (getattr(x, n), getattr(y, n))
            for n in _FIELDS[:-1]
            if getattr(x, n) != getattr(y, n)
        }
        if _rewired(x, y, alignment):
            fields["operands"] = tuple([f"%{o.id}" for o in n.operands] for n in (x, y))
        if fields and x.line != y.line:
            fields["line"] = (x.line, y.line)
        if fields:
            changes.append(Change(x, y, fields))
        moved += not fields and x.line != y.line
    return changes, moved


def _rewired(x, y, alignment: Alignment) -> bool:
    """Does it read something else? Not if what is between is all that was added or removed."""
    if len(x.operands) != len(y.operands):
        return True
    for o, p in zip(x.operands, y.operands, strict=True):
        if alignment.alike(o, p):
            continue
        sources = {alignment.of_a[s] for s in _sources(o, alignment.of_a)}
        if not sources & _sources(p, alignment.of_b):
            return True
    return False


def _sources(node, partner: dict) -> set:
    """The nodes with a partner that it is, or is computed from through others."""
    found, waiting, seen = set(), [node], set()
    while waiting:
        n = waiting.pop()
        if n in seen:
            continue
        seen.add(n)
        if n in partner:
            found.add(n)
        else:
            waiting += n.operands
    return found


def _relation(left: list, right: list) -> str:
    if not left or not right:
        return "added" if right else "removed"
    if len(left) == len(right) == 1:
        return "changed"
    return "split" if len(left) == 1 else "merged" if len(right) == 1 else "regrouped"


def _kernel_changes(a: Graph, b: Graph, alignment: Alignment) -> list:
    """Kernels that share nodes belong together: each connected set that is not one and one of the same nodes is a change."""
    partners = defaultdict(set)  # of (side, kernel)
    for x, y in alignment.of_a.items():
        if x.kernel and y.kernel:
            partners[0, x.kernel].add((1, y.kernel))
            partners[1, y.kernel].add((0, x.kernel))
    changes, seen = [], set()
    for start in [*((0, k) for k in a.kernels), *((1, k) for k in b.kernels)]:
        sides, waiting = ([], []), [start]
        while waiting:
            each = waiting.pop()
            if each not in seen:
                seen.add(each)
                sides[each[0]].append(each[1])
                waiting += partners[each]
        left, right = (sorted(side, key=lambda k: k.index) for side in sides)
        if left == right == []:
            continue
        if len(left) != 1 or len(right) != 1 or _kernel_differs(left[0], right[0], alignment):
            changes.append(KernelChange(_relation(left, right), left, right))
    return changes


def _kernel_differs(x, y, alignment: Alignment) -> bool:
    """Is it another kind, or has one a node of the other that is in no kernel there? Nodes added or removed are shown as such."""
    pairs = [(alignment.of_a.get(n), y) for n in x.nodes] + [
        (alignment.of_b.get(n), x) for n in y.nodes
    ]
    return x.kind != y.kind or any(n and n.kernel is not kernel for n, kernel in pairs)


def _totals(graph: Graph) -> dict:
    found = {"ops": sum(n.op not in _NO_OPS for n in graph.nodes)}
    if graph.kernels:
        found["kernels"] = len(graph.kernels)
        found["launches"] = len({k.launch for k in graph.kernels})
        found["bytes"] = sum(k.bytes_read + k.bytes_written for k in graph.kernels)
    return found


def _first(difference: Difference):
    """The item that comes first in the program, by its number in its own graph: of ops that a line of the program recorded, where
    there are any; numbers, inputs and memory without contents only if nothing else differs."""
    items = [("-", n, n) for n in difference.removed] + [("+", n, n) for n in difference.added]
    items += [("~", c, c.a) for c in difference.changed]
    items = items or [("", k, difference.a.nodes[0]) for k in difference.kernels[:1]]
    items = items or [
        (s, n, n) for s, side in zip("-+", difference.copied, strict=True) for n in side
    ]
    first = min(items, key=lambda i: (i[2].op in _QUIET, not i[2].line, i[2].id), default=None)
    return first and first[:2]


def diff(a, b) -> Difference:
    """What `b` has otherwise than `a`: two Graphs of one stage, or two Explanations, whose graphs are fused ones and whose times are
    compared too. Prints as text. Nodes are paired by structure, names, modules and lines, not by their numbers.

    Raises TypeError for anything else, ValueError for graphs of two stages.
    """
    seconds = ()
    if isinstance(a, Explanation) and isinstance(b, Explanation):
        seconds = tuple(sum(k["seconds"] for k in e.kernels) for e in (a, b))
    a, b = (x.graph if isinstance(x, Explanation) else x for x in (a, b))
    for x in (a, b):
        if not isinstance(x, Graph):
            raise TypeError(f"diff() takes two Graphs or Explanations, got {type(x).__name__}")
    # From "fused" on, all stages have the nodes of the fused graph.
    if min(STAGES.index(a.stage_name), 2) != min(STAGES.index(b.stage_name), 2):
        raise ValueError(
            f"diff() takes graphs of one stage, got {a.stage_name!r} and {b.stage_name!r}"
        )
    alignment = Alignment(a, b)
    changed, moved = _changes(a, alignment)
    found = Difference(
        a,
        b,
        added=[n for n in b.nodes if n not in alignment.of_b and n not in alignment.copies_b],
        removed=[n for n in a.nodes if n not in alignment.of_a and n not in alignment.copies_a],
        changed=changed,
        moved=moved,
        copied=tuple(
            [n for n in g.nodes if n in copies]
            for g, copies in ((a, alignment.copies_a), (b, alignment.copies_b))
        ),
        kernels=_kernel_changes(a, b, alignment),
        alignment=alignment,
    )
    left, right = _totals(a), _totals(b)
    found.totals = {name: (left.get(name, 0), right.get(name, 0)) for name in left | right}
    if seconds:
        found.totals["seconds"] = seconds
    found.first = _first(found)
    return found
