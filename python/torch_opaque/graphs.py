"""Graphs as objects: what graph() returns. All they say is read from the document that the core writes (docs/ir.md, JSON)."""

import json
from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from .slips import meant

STAGES = (
    "recorded",
    "simplified",
    "fused",
    "kernels",
    "schedule",
    "c",
    "schedule_c",
    "llvm",
    "asm",
)
VERSION = 1


@dataclass(eq=False)
class Node:
    """One op of a graph. `id`: its number in the text; `operands`, `users`: Nodes; `attrs`: attributes by name;
    `line`: "train.py:41", or "", and `source`, the same with its folder; `library`: "modeling_bert.py:211", the line of an installed
    package that this line called, or ""; `module`: path of the module in whose forward() it, or what it is the gradient of, was
    recorded; `recorded`: the op that was recorded, of which this one became a part; `backward`: did autograd record it; `forward`: the Node that it
    is then the gradient of, None if that is not in the graph; `name`: of an input, what it is to the program; `kernel`: the Kernel it is
    computed in, or None; `stored`: is it in memory, for other kernels or for the caller; `output`: for the
    caller?"""

    id: int
    op: str
    dtype: str
    shape: tuple
    attrs: dict
    line: str
    module: str
    name: str
    text: str
    operands: list = field(default_factory=list)
    users: list = field(default_factory=list)
    kernel: "Kernel | None" = None
    stored: bool = False
    output: bool = False
    source: str = ""
    library: str = ""
    recorded: str = ""
    backward: bool = False
    forward: "Node | None" = None

    @property
    def place(self) -> str:
        """Its line, and that of the installed package that it called."""
        return f"{self.line} via {self.library}" if self.library else self.line

    @property
    def inlined(self) -> bool:
        """A number that stands in the line of the node it is an operand of, and has none of its own."""
        used = [o for user in self.users for o in user.operands if o is self]
        return self.op == "scalar" and len(used) == 1 and not self.output

    def __repr__(self) -> str:
        return self.text


@dataclass(eq=False)
class Kernel:
    """One kernel of a fused graph. `kind`: map, row, column, matmul, block, ...; `nodes`: its ops; `reads`, `writes`:
    the Nodes it takes from memory and leaves there; `bytes_read`, `bytes_written`, `flops`: of one run; `launch`:
    kernels of one number are one launch."""

    index: int
    kind: str
    name: str
    shape: str
    launch: int
    bytes_read: int
    bytes_written: int
    flops: int
    nodes: list = field(default_factory=list)
    _inspection: object = field(default=None, repr=False)

    @property
    def reads(self) -> list:
        found = {o.id: o for n in self.nodes for o in n.operands if o.kernel is not self}
        return [o for o in found.values() if o.stored or o.op in ("input", "scalar")]

    @property
    def writes(self) -> list:
        return [n for n in self.nodes if n.stored]

    @property
    def module(self) -> str:
        """The module of its first product, else of most of its ops that are in one."""
        products = [n.module for n in self.nodes if n.op == "matmul"]
        counts = Counter(products[:1] or [n.module for n in self.nodes if n.module])
        return counts.most_common(1)[0][0] if counts else ""

    @property
    def lines(self) -> list:
        """Source lines of its ops, each once."""
        return list(dict.fromkeys(n.line for n in self.nodes if n.line))

    @property
    def libraries(self) -> list:
        """Lines of installed packages that these called, each once."""
        return list(dict.fromkeys(n.library for n in self.nodes if n.library))

    def text(self, stage: str = "kernels") -> str:
        """Its loops ("kernels"), how those run ("schedule"), both as C ("c", "schedule_c"), or what LLVM makes of them ("llvm", "asm")."""
        if stage not in STAGES[3:]:
            raise ValueError(f"stage={stage!r}: expected one of {', '.join(STAGES[3:])}")
        if self._inspection is None:
            raise ValueError("the graph was read from JSON, which has no code")
        return self._inspection.kernel(self.index, stage)

    def __repr__(self) -> str:
        return f"<Kernel {self.index}: {self.kind} {self.name}, {len(self.nodes)} ops>"


@dataclass(eq=False)
class Edge:
    """Two kernels that stayed two: `producer` and `consumer` are Nodes, `bytes` is the size of the value between them, `refusal`
    is the rule, `reason` says it in words; `saves`: bytes that fusing these two would not move, of those that the kernels move; `remedy`: what
    one can do about it, and `acts` whether there is something."""

    producer: Node
    consumer: Node
    bytes: int
    refusal: str
    reason: str
    saves: int = 0
    remedy: str = ""
    acts: bool = False

    @property
    def ends(self) -> tuple:
        """What the two ends are to the program: ops that were recorded, or, within one of those, its parts."""
        names = self.producer.recorded, self.consumer.recorded
        parts = self.producer.op, self.consumer.op
        return parts if names[0] == names[1] and parts[0] != parts[1] else names

    def __repr__(self) -> str:
        place = f", {self.producer.place}" if self.producer.place else ""
        return (
            f"%{self.producer.id} {self.producer.op} -> %{self.consumer.id} {self.consumer.op}: "
            f"{self.refusal} ({self.reason}); would save {self.saves} bytes{place}"
        )


class Graph:
    """A graph at one stage of its way to the machine; `print` shows its text. It holds no tensors.

    stage_name         "recorded", "simplified", "fused", "kernels", "schedule", "c", "schedule_c", "llvm" or "asm"
    nodes, inputs, outputs   Nodes; inputs have names: parameters and buffers, arguments, variables
    kernels, unfused   Kernels and Edges, from "fused" on
    fallbacks          {"kernel", "reason"} of what could not be made as one kernel: each of its ops is one, called KERNEL.OP
    """

    def __init__(self, document: dict, inspection=None):
        if document.get("schema") != "opaque.graph" or document.get("version") != VERSION:
            raise ValueError(f"expected a graph of version {VERSION}")
        self._document, self._inspection = document, inspection
        self.stage_name, self.text = document["stage"], document["text"]
        self.kernels = [
            Kernel(
                index=i,
                **{"shape": "", "launch": i, "bytes_read": 0, "bytes_written": 0, "flops": 0} | k,
            )
            for i, k in enumerate(document["kernels"])
        ]
        self.nodes = []
        for i, row in enumerate(document["nodes"]):
            self._add_node(i, row)
        self.inputs = [n for n in self.nodes if n.op == "input"]
        self.outputs = [self.nodes[i] for i in document["outputs"]]
        for node in self.outputs:
            node.stored = node.output = True
        for node, row in zip(self.nodes, document["nodes"], strict=True):
            if "forward" in row:
                node.forward = self.nodes[row["forward"]]
        for kernel in self.kernels:
            kernel._inspection = inspection
        self.unfused = [self._edge(row) for row in document["unfused"]]
        self.fallbacks = document.get("fallbacks", [])

    def _add_node(self, i: int, row: dict) -> None:
        node = Node(
            id=i,
            op=row["op"],
            dtype=row["dtype"],
            shape=tuple(row["shape"]),
            attrs=row["attrs"],
            line=row.get("line", ""),
            module=row.get("module", ""),
            name=row.get("name", ""),
            text=row["text"],
            source=row.get("source", ""),
            library=row.get("library", ""),
            recorded=row.get("recorded", row["op"]),
            backward=row.get("backward", False),
            operands=[self.nodes[k] for k in row["operands"]],
        )
        if row["kernel"] >= 0:
            node.kernel = self.kernels[row["kernel"]]
            node.kernel.nodes.append(node)
        for operand in dict.fromkeys(node.operands):
            operand.users.append(node)
            operand.stored |= operand.kernel is not node.kernel and operand.kernel is not None
        self.nodes.append(node)

    def _edge(self, row: dict) -> Edge:
        ends = (self.nodes[row[end]] for end in ("producer", "consumer"))
        more = {key: row[key] for key in ("saves", "remedy", "acts") if key in row}
        return Edge(*ends, row["bytes"], row["refusal"], row["reason"], **more)

    def stage(self, name: str) -> "Graph":
        """The same graph at another stage."""
        if name not in STAGES:
            raise ValueError(
                f"stage={name!r}: expected one of {', '.join(STAGES)}{meant(name, STAGES)}"
            )
        if name == self.stage_name:
            return self
        if self._inspection is None:
            raise ValueError(
                f"the graph was read from JSON, which has its stage {self.stage_name!r} only"
            )
        return read(self._inspection, name)

    def find(
        self,
        op: str = "*",
        *,
        dtype: str = "*",
        line: str = "*",
        module: str = "*",
        name: str = "*",
        kernel: str = "*",
    ) -> list:
        """Nodes for which all patterns (as in a shell: "*" stands for anything) fit. `kernel`: name of their kernel."""

        def fits(n) -> bool:
            values = (n.op, n.dtype, n.line, n.module, n.name, n.kernel.name if n.kernel else "")
            return all(map(fnmatchcase, values, (op, dtype, line, module, name, kernel)))

        return list(filter(fits, self.nodes))

    def fold(self) -> str:
        """The text with what follows itself, as equal layers do, shown once: "x 11 { ... }". Of the stages made of nodes; ValueError for
        those of kernels' code."""
        from .folding import fold

        if self.stage_name not in STAGES[:3]:
            raise ValueError(f"stage {self.stage_name!r} has no nodes to fold")
        return fold(self)

    def to_json(self) -> str:
        """The document that docs/ir.md describes. Graph.from_json() makes a Graph of it, which has no other stages and no code."""
        return json.dumps(self._document, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Graph":
        """Raises ValueError for what is no graph of this version."""
        try:
            return cls(json.loads(text))
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise ValueError(f"not a graph: {error!r}") from error

    def to_dot(self) -> str:
        """In Graphviz's language. Boxes are ops and kernels are clusters; from stage "kernels" on, boxes are kernels."""
        from .drawing import dot_of_kernels, dot_of_nodes

        return dot_of_nodes(self) if self.stage_name in STAGES[:3] else dot_of_kernels(self)

    def to_html(self, path, *, title=None, comparison=None, difference=None) -> None:
        """Writes a report for a browser: one file, which needs no network (docs/report.md). Code of its kernels is made for it."""
        from . import report

        report.write(path, self, None, comparison, difference, title)

    def _repr_html_(self) -> str:
        """In a notebook: the report, without times."""
        from . import report

        return report.cell(self)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text


def read(inspection, stage: str) -> Graph:
    """The Graph of an _C.Inspection at a stage."""
    document = json.loads(inspection.json(stage))
    head = {"schema": document.pop("schema"), "version": document.pop("version"), "stage": stage}
    return Graph(head | document | {"text": inspection.text(stage)}, inspection)
