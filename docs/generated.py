"""What the site shows and nobody writes: tables and references made of the sources and of the package when the site is built.

A page asks for one by a comment of its own, `<!-- generated: NAME ARGUMENTS -->`, which conf.py replaces by what the function
of that name returns: Markdown.
"""

import inspect
import math
import os
import re
import sys
from collections import defaultdict

import torch
from torch_opaque import _C, settings

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.append(os.path.join(ROOT, "bench"))


def read(path: str) -> str:
    with open(os.path.join(ROOT, path)) as file:
        return file.read()


def table(head: tuple, rows) -> str:
    """A Markdown table. A bar in a cell would end it."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        f"| {' | '.join(str(c).replace('|', '&#124;') for c in row)} |" for row in lines
    )


def code(words) -> str:
    return " ".join(f"`{word}`" for word in words)


# ---- plain text as reStructuredText: docstrings and comments of C are not written for a processor


def _is_drawn(paragraph: str) -> bool:
    """Lines that are indented or in columns stay as they are."""
    return any(re.search(r"^\s|\S {2,}\S", line) for line in paragraph.split("\n"))


def _escaped(text: str) -> str:
    parts = re.split(r"`([^`]+)`", text)
    parts[::2] = [re.sub(r"([\\*_|`<>])", r"\\\1", part) for part in parts[::2]]
    parts[1::2] = [f"``{part.strip()}``\\ " for part in parts[1::2]]
    return "".join(parts)


def rst_of(text: str) -> str:
    """Paragraphs as paragraphs, and what is drawn with blanks as literal blocks."""
    blocks = []
    for paragraph in re.split(r"\n\s*\n", text.strip("\n")):
        if _is_drawn(paragraph):
            blocks.append("::\n\n" + "\n".join(f"    {line}" for line in paragraph.split("\n")))
        else:
            blocks.append(_escaped(re.sub(r"::$", ":", paragraph)))
    return "\n\n".join(blocks)


def directive(name: str, argument: str, body: str = "", **options) -> str:
    lines = [f".. {name}:: {argument}", *(f"   :{k}: {v}" for k, v in options.items()), ""]
    return "\n".join(lines + [f"   {line}" if line else "" for line in body.split("\n")]) + "\n"


def rst(text: str) -> str:
    """As a block of a Markdown page."""
    return f"````{{eval-rst}}\n{text}\n````"


# ---- the Python interface


def functions(module: str) -> str:
    """Every public function of a module: of `__all__`, or defined in its file."""
    owner = sys.modules[module]
    names = getattr(owner, "__all__", None) or [
        name
        for name, value in vars(owner).items()
        if inspect.isfunction(value) and value.__module__ == owner.__name__ and name[0] != "_"
    ]
    return rst(
        "\n".join(
            directive("autofunction", f"{module}.{name}") for name in names if name != "register"
        )
    )


def classes(*names: str) -> str:
    """What these functions return. `undoc-members` is left out: the class says what its fields are."""
    return rst("\n".join(directive("autoclass", name, members="") for name in names))


def switches() -> str:
    """The properties of torch.backends.opaque."""
    found = inspect.getmembers(type(torch.backends.opaque), lambda m: isinstance(m, property))
    return rst(
        "\n".join(
            directive("py:data", f"torch.backends.opaque.{name}", rst_of(inspect.getdoc(member)))
            for name, member in found
        )
    )


# ---- the C interface


def _comment(text: str) -> str:
    """The words of a comment."""
    text = re.sub(r"^/\*+ ?|\s*\*/$", "", text.strip())
    return re.sub(r"^ \* ?", "", text, flags=re.M)


def _declaration(comment: str, text: str) -> str:
    """One declaration with the comment before or behind it. Functions have a signature, types and macros are shown as written."""
    function = re.fullmatch(
        r"OPQ_API (.*?)(?: OPQ_MUST_CHECK| OPQ_PRINTF\(.*\))?;(?:\s*(/\*.*\*/))?", text, re.S
    )
    if function:
        body = "\n\n".join(rst_of(_comment(c)) for c in (comment, function[2]) if c)
        return directive("c:function", " ".join(function[1].split()), body)
    name = re.search(r"(?:typedef (?:enum|struct|union) |#define )(\w+)|(\w+);", text)
    lines = re.sub(r" +\\$", r" \\", text, flags=re.M).split("\n")
    shown = ".. code-block:: c\n\n" + "\n".join(f"   {line}" for line in lines)
    body = "\n\n".join(filter(None, [rst_of(_comment(comment)) if comment else "", shown]))
    kind = "c:macro" if text.startswith("#define") else "c:type"
    anonymous = name is None or text.startswith("enum {")
    return body + "\n" if anonymous else directive(kind, name[1] or name[2], body)


# A comment of whole lines, or a declaration: up to the line that ends it and closes what it opened, with the comment behind it.
_ITEM = re.compile(
    r"^(?P<comment>/\*(?:(?!\*/).)*\*/)\n"
    r"|^#define [^\n]*(?:(?<=\\)\n[^\n]*)*"
    r"|^(?:typedef|enum)\b[^;\n]*;[^\n]*"
    r"|^(?:typedef |enum )[^;\n]*\{.*?^\}[^\n]*;[^\n]*"
    r"|^OPQ_API\b[^;]*;[^\n]*",
    re.M | re.S,
)


def header(path: str) -> str:
    """A header whose parts stand under comments like `/* ---- part ---- */`."""
    text = read(path)
    parts = re.split(r"^/\* -{4} (.+?) -+ \*/$", text, flags=re.M)
    out = [rst(rst_of(_comment(parts[0].partition("*/")[0] + "*/")))]
    for title, part in zip(parts[1::2], parts[2::2], strict=True):
        pending, items = "", []
        for match in _ITEM.finditer(part):
            if match["comment"]:
                items += [rst_of(_comment(pending))] if pending else []
                pending = match["comment"]
            else:
                items.append(_declaration(pending, match[0]))
                pending = ""
        out.append(f"## {title.capitalize()}\n\n{rst(chr(10).join(items))}")
    return "\n\n".join(out)


# ---- what is native


def _dtypes(row: dict) -> str:
    bits = re.findall(r"OPQ_FLAG_(\w+) = (\d+)", read("include/opaque/opaque.h"))
    flags = {name for name, bit in bits if row["flags"] & int(bit)}
    if "NOFLOAT" in flags:
        return "integers, bool"
    if "MATH32" in flags:
        return "f32, f16, bf16"
    function = row["class"] == "EWISE" and not row["expand"] and not flags & {"CHEAP", "CHECKED"}
    if "NOINT" in flags or (function and row["rule"] == "SAME"):  # pow
        return "floats"
    return "all but bool" if "NOBOOL" in flags else "all"


def op_table() -> str:
    """Rows of ops.def that have operands of their own: what they serve and what they are."""
    rows = (
        (
            f"`{row['name']}`",
            row["class"],
            _dtypes(row),
            code(row["aten"].split()) if row["aten"] else "",
            f"`{row['expand']}`" if row["expand"] else "",
        )
        for row in _C.op_table()
    )
    return table(("op", "class", "computes", "ATen overloads of its row", "is"), rows)


def _registered() -> dict:
    """{"native": {file: functions}, "cpu": {"": functions}, "composite": {"": functions}}, from PyTorch's dispatcher. Forms of one
    function (in place, out=, overloads) count once, as the best of them."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    best = {}
    for name in torch._C._dispatch_get_all_op_names():
        space, _, rest = name.partition("::")
        base = re.sub(r"(_out|(?<=\w)_)$", "", rest.partition(".")[0])
        if space != "aten" or (base.startswith("_") and not base.startswith("_foreach")):
            continue
        dump = torch._C._dispatch_dump(name)
        file = re.search(r"^PrivateUse1: registered at \S*?([\w.]+):\d+", dump, re.M)
        if file and file[1] != "forced.cpp":
            found = (0, file[1])
        elif file or (has(name, "CPU") and not has(name, "CompositeExplicitAutograd")):
            found = (1, "")
        elif has(name, "CompositeImplicitAutograd") or has(name, "CompositeExplicitAutograd"):
            found = (2, "")
        else:
            continue
        best[base] = min(found, best.get(base, found))
    kinds = {"native": defaultdict(list), "cpu": defaultdict(list), "composite": defaultdict(list)}
    for base, (kind, file) in sorted(best.items()):
        kinds[tuple(kinds)[kind]][file].append(base)
    return kinds


def registered(kind: str) -> str:
    found = _registered()[kind]
    if kind != "native":
        return f"{len(found[''])} functions: {code(found[''])}"
    rows = ((f"`registration/{file}`", len(names), code(names)) for file, names in found.items())
    return table(("registered in", "functions", ""), sorted(rows))


def operator_samples() -> str:
    """What tests/opdb expects of PyTorch's own samples."""
    names = read("tests/opdb/strict.txt").split()
    return f"{len(names)} entries: {code(names)}"


# ---- tables


def environment() -> str:
    rows = ((f"`{s.name}`", s.values, s.default, s.text, s.reader) for s in settings.SETTINGS)
    return table(("variable", "values", "default", "", "read by"), rows)


def _median(cell: str) -> float | None:
    match = re.fullmatch(r"[\d.]+ \(([\d.]+)\)", cell)
    return float(match[1]) if match else None


def benchmark_summary() -> str:
    """Of each part of RESULTS.md a line per peer: median of the peer / median of opaque."""
    import report

    rows = []
    for title, part in report.parse(read("bench/RESULTS.md"))[1].items():
        for peer in report.PEERS:
            pairs = ((_median(row["opaque"]), _median(row[peer])) for row in part)
            ratios = sorted(b / a for a, b in pairs if a and b)
            if ratios:
                mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
                won = sum(r >= 1 for r in ratios)
                rows.append(
                    (
                        title,
                        peer,
                        len(ratios),
                        won,
                        *(f"{r:.3g}" for r in (mean, ratios[0], ratios[-1])),
                    )
                )
    return table(
        ("measured", "peer", "rows", "opaque is faster in", "mean ratio", "least", "most"), rows
    )


def benchmark_results() -> str:
    """RESULTS.md without its title."""
    return read("bench/RESULTS.md").partition("\n")[2]


def document(path: str) -> str:
    """A document of the tree's root as a page: links to pages of docs/ and to others of these lead there, the rest are names."""
    text = re.sub(r"\]\(docs/([\w/]+\.md)", r"](\1", read(path))
    text = re.sub(
        r"\]\((README|ARCHITECTURE|CONTRIBUTING)\.md", lambda m: f"]({m[1].lower()}.md", text
    )
    return text.replace("](bench/RESULTS.md", "](benchmarks.md")
