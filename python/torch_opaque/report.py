"""to_html() of graphs and explanations: one file with the graphs, the kernels, their code and times, and the script that
shows them (web/, bundled when the package is built). It needs no network and no server.

The file's data are JSON, in parts that the page reads when it needs them: what the core says of each stage, as it says it
(docs/ir.md), the code of each distinct kernel, and what explain() measured. The page adds up, and counts nothing
anew."""

import base64
import html
import json
import linecache
import os
import zlib
from importlib import resources

from . import summary
from .graphs import STAGES, Graph

CONTEXT = 12  # lines of source shown around one that recorded something

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{title}</title>
</head>
<body>
<noscript>This report is drawn by the script in this file; nothing is loaded from elsewhere.</noscript>
{parts}
<script>{script}</script>
</body>
</html>
"""


def write(
    path, graph: Graph, explanation=None, comparison=None, difference=None, title=None
) -> None:
    """Writes the report of a graph, and of what explain() measured of it, where there is an explanation."""
    _save(path, _page(graph, explanation, comparison, difference, _titled(title, path)))


def write_difference(path, difference, title=None) -> None:
    """Writes the page of a difference alone: the tabs that it has in a report."""
    shown, sides = _difference(difference)
    lists = {name: [] for name in ("stages", "kernels", "edges", "values")}
    _save(path, _assemble({"title": _titled(title, path)} | lists | shown, sides))


def _titled(title, path) -> str:
    return title or os.path.splitext(os.path.basename(os.fspath(path)))[0]


def _save(path, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def cell(graph: Graph, explanation=None) -> str:
    """The report as a notebook shows it: in a frame; only the text, if the package was built without the report's script."""
    if not _script_file().is_file():
        return f"<pre>{html.escape(str(explanation or graph))}</pre>"
    page = html.escape(_page(graph, explanation, None, None, "notebook"))
    style = "width:100%;height:720px;border:1px solid #8884"
    return f'<iframe title="torch_opaque report" sandbox="allow-scripts" style="{style}" srcdoc="{page}"></iframe>'


def _page(graph: Graph, explanation, comparison, difference, title: str) -> str:
    _script()  # without it nothing is compiled for the page
    stages = _stages(graph)
    fused = stages.get("fused")
    codes, code_of = _codes(fused) if fused else ([], {})
    shown, sides = _difference(difference)
    report = {
        "title": title,
        "stages": list(stages),
        "kernels": [_kernel(k, code_of) for k in fused.kernels] if fused else [],
        "edges": [_edge(e) for e in summary.distinct(fused.unfused)] if fused else [],
        "values": _values(fused) if fused else [],
        "sources": _sources(stages.values()),
        "run": _run(explanation) if explanation else None,
        "comparison": _document(comparison),
    }
    parts = {"code": codes} | {
        name: {"nodes": stage._document["nodes"], "outputs": stage._document["outputs"]}
        for name, stage in stages.items()
    }
    return _assemble(report | shown, parts | sides)


def _assemble(report: dict, parts: dict) -> str:
    parts = {"report": report} | parts
    return _PAGE.format(
        title=html.escape(report["title"]),
        parts="\n".join(_part(name, value) for name, value in parts.items()),
        script=_script(),
    )


def _script_file():
    return resources.files(__package__) / "report.js"


def _script() -> str:
    file = _script_file()
    if not file.is_file():
        raise RuntimeError(
            "to_html() needs the report's script, which is built with npm: npm was missing when this package was built. "
            "Install nodejs and npm, then build again"
        )
    return file.read_text(encoding="utf-8")


def _part(name: str, value) -> str:
    """JSON, deflated, in base64: some ten times smaller than the text."""
    packed = zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 9)
    return (
        f'<script type="text/plain" data-part="{name}">{base64.b64encode(packed).decode()}</script>'
    )


def _document(value):
    """A comparison or difference as to_json() gives it: an object that has it, its text, or what that says. JSON has no NaN and
    no infinities: they are words."""
    if hasattr(value, "to_json"):
        value = value.to_json()
    text = value if isinstance(value, str) else json.dumps(value)
    return json.loads(text, parse_constant=str)


def _difference(value) -> tuple:
    """(what the report says of it, its part): both graphs side by side, where the object itself was given."""
    has_sides = hasattr(value, "sides")
    shown = {"difference": _document(value), "sides": has_sides}
    return shown, {"sides": value.sides()} if has_sides else {}


def _stages(graph: Graph) -> dict:
    """The stages that are graphs, by name. One read from JSON has its own alone."""
    if graph._inspection is None:
        return {graph.stage_name if graph.stage_name in STAGES[:3] else "fused": graph}
    return {name: graph.stage(name) for name in STAGES[:3]}


# ---- kernels


def _codes(fused: Graph) -> tuple:
    """(texts of each distinct kernel by stage, index into them by kernel): kernels of equal loops share their code."""
    codes, code_of, known = [], {}, {}
    for kernel in fused.kernels if fused._inspection else ():
        loops = kernel.text("kernels")
        if not loops:
            continue
        body = loops.replace(f"@{kernel.name}(", "@(")
        if body not in known:
            known[body] = len(codes)
            codes.append(
                {"kernels": loops} | {s: kernel.text(s) for s in ("schedule", "c", "llvm", "asm")}
            )
        code_of[kernel.index] = known[body]
    return codes, code_of


def _kernel(kernel, code_of: dict) -> dict:
    return {
        "name": kernel.name,
        "kind": kernel.kind,
        "shape": kernel.shape,
        "launch": kernel.launch,
        "bytes_read": kernel.bytes_read,
        "bytes_written": kernel.bytes_written,
        "flops": kernel.flops,
        "module": kernel.module,
        "layer": summary.pattern(kernel.module),
        "lines": kernel.lines,
        "nodes": [n.id for n in kernel.nodes],
        "reads": [n.id for n in kernel.reads],
        "writes": [n.id for n in kernel.writes],
        "code": code_of.get(kernel.index),
    }


def _edge(edge) -> dict:
    ends = edge.producer, edge.consumer
    return {
        "producer": edge.producer.id,
        "consumer": edge.consumer.id,
        "bytes": edge.bytes,
        "saves": edge.saves,
        "remedy": edge.remedy,
        "acts": edge.acts,
        "ends": edge.ends,
        "layers": [summary.pattern(n.module) for n in ends],
        "modules": [n.module for n in ends],
        "line": edge.producer.place,
        "refusal": edge.refusal,
        "reason": edge.reason,
    }


def _values(fused: Graph) -> list:
    """Values in memory: (node, first launch that writes it, last that reads it). An output lives to the end."""
    end = max((k.launch for k in fused.kernels), default=0)
    rows = []
    for node in fused.nodes:
        if node.stored and node.kernel:
            readers = [u.kernel.launch for u in node.users if u.kernel]
            last = end if node.output else max(readers, default=node.kernel.launch)
            rows.append((node.id, node.kernel.launch, last))
    return rows


# ---- what explain() measured, and the program's text


def _run(explanation) -> dict:
    fields = (
        "kernels",
        "keepers",
        "machine",
        "why",
        "unwatched",
        "grouping",
        "bytes_unfused",
        "part",
        "cold",
        "timing",
    )
    sums = ("bytes_moved", "bytes_saved")
    return {name: getattr(explanation, name) for name in fields + sums}


def _sources(stages) -> dict:
    """By file: runs of lines around those that recorded something, as (number of the first, lines)."""
    used = {}
    for source in {n.source for stage in stages for n in stage.nodes if n.source}:
        path, _, number = source.rpartition(":")
        if number.isdigit():
            used.setdefault(path, set()).add(int(number))
    excerpts = {}
    for path, numbers in sorted(used.items()):
        lines = linecache.getlines(path)
        shown = sorted(
            {
                i
                for n in numbers
                for i in range(n - CONTEXT, n + CONTEXT + 1)
                if 1 <= i <= len(lines)
            }
        )
        runs = []
        for i in shown:
            if not runs or runs[-1][0] + len(runs[-1][1]) != i:
                runs.append((i, []))
            runs[-1][1].append(lines[i - 1].rstrip("\n"))
        excerpts[path] = runs
    return excerpts
