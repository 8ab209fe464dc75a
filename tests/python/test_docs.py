"""What the documents show is what happens.

README.md: all ```python blocks in order are one program, tour.py; a ```text block that follows one
is what it prints. docs/ir.md: every ```ir block parses, verifies and prints back byte for byte; its
tables of ops and reasons are those of the sources.
Names of files, functions and environment variables that the documents mention exist.

    ./dev python tests/python/test_docs.py    writes README's outputs anew

Times, rates and addresses differ from run to run and are left out of the comparison; graphs, names,
kernel counts, bytes and reasons are compared.
"""

import json
import os
import re
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/ir.md", "docs/accuracy.md")

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```\n", re.M | re.S)
_PROGRAM = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.M | re.S)

# Runs blocks under the name tour.py with the line numbers of their concatenation; prints a JSON list of outputs.
_DRIVER = """
import contextlib, io, json, sys
names, outputs, line = {"__name__": "__main__"}, [], 0
for block in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile("\\n" * line + block, "tour.py", "exec"), names)
    outputs.append(output.getvalue())
    line += block.count("\\n")
json.dump(outputs, sys.stdout)
"""


def read(name: str) -> str:
    with open(os.path.join(ROOT, name)) as file:
        return file.read()


def outputs_of(blocks: list) -> list:
    """What each block prints, run in order in one fresh process."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OPAQUE_")}
    result = subprocess.run(
        [sys.executable, "-c", _DRIVER],
        input=json.dumps(blocks),
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def stable(text: str) -> str:
    """`text` without what differs from run to run: times, rates, ratios, addresses, column widths."""
    text = re.sub(r"\d[\d.]*(e[+-]\d+)? ?(us|ms|s|GB/s|GFLOP/s|x)(?=\s|$)", "T", text, flags=re.M)
    text = re.sub(r"cell \d+", "cell N", text)
    text = re.sub(r"\d+%", "T", text)
    text = re.sub(r"seconds': [\d.e+-]+", "seconds': T", text)
    return re.sub(r"-{3,}", "---", re.sub(r"[ \t]+", " ", text)).strip()


def test_readme_prints_what_it_shows():
    shown = _PROGRAM.findall(read("README.md"))
    assert len(shown) >= 4
    printed = outputs_of([program for program, _ in shown])
    for (program, expected), actual in zip(shown, printed, strict=True):
        assert stable(actual) == stable(expected), program


def ir_blocks() -> list:
    return [text for kind, text in _FENCE.findall(read("docs/ir.md")) if kind == "ir"]


@pytest.mark.parametrize("number", range(len(ir_blocks())))
def test_ir_blocks_round_trip(tmp_path, opq_opt, number):
    text = ir_blocks()[number]
    (tmp_path / "graph.ir").write_text(text)
    assert opq_opt(tmp_path / "graph.ir", "--verify", "--print").rstrip("\n") == text.rstrip("\n")


def test_ir_reference_is_complete():
    from torch_opaque import _C

    rows = dict(re.findall(r"^\| ([A-Z]+) \| (.*?) \|", read("docs/ir.md"), re.M))
    table = {}
    for row in _C.op_table():
        table.setdefault(row["class"], []).append(row["name"])
    assert {name: re.findall(r"`(\w+)`", text) for name, text in rows.items()} == table
    refusals = read("fusion/lower.h").partition("#define OPQ_REFUSALS")[2].partition("typedef")[0]
    reasons = re.findall(r'X\((\w+), "(.*?)"\)', refusals)
    for name, text in reasons[1:]:  # the first says "fused"
        assert f"| `{name}` | {text} |" in read("docs/ir.md")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_mentioned_exist(document):
    folders = "include|graph|fusion|codegen_llvm|runtime|opaque|registration|python|tools|examples|tests|bench|docs|cmake"
    paths = set(re.findall(rf"(?<![\w/.])((?:{folders})/[\w./-]*\w\.\w+)", read(document)))
    missing = [path for path in paths if not os.path.exists(os.path.join(ROOT, path))]
    assert paths and not missing


@pytest.mark.parametrize("document", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_names_mentioned_exist(document):
    """Every C function or constant (opq_..., OPQ_...) in backquotes is in the sources."""
    names = set(re.findall(r"`(opq_\w+|OPQ_\w+)(?:\(\))?`", read(document)))
    sources = subprocess.run(
        ["git", "-C", ROOT, "grep", "-hoE", r"\b(opq|OPQ)_\w+", "--", "*.c", "*.h", "*.cpp"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert names <= set(sources.stdout.split())


def test_readme_lists_every_environment_variable():
    from torch_opaque import settings

    documented = set(re.findall(r"\bOPAQUE_[A-Z_]+\b", read("README.md")))
    assert documented == {row.name for row in settings.SETTINGS}


def test_readme_explains_every_counter():
    import torch_opaque

    documented = set(re.findall(r"^\| `(\w+)`", read("README.md"), re.M))
    assert set(torch_opaque.stats()) <= documented


def bless() -> None:
    """Writes README's text blocks anew from what the programs print."""
    text = read("README.md")
    printed = iter(outputs_of([match[1] for match in _PROGRAM.finditer(text)]))

    def fresh(match: re.Match) -> str:
        output = next(printed)
        shown = "" if match[2] is None else f"\n```text\n{output.rstrip()}\n```\n"
        return f"```python\n{match[1]}```\n{shown}"

    with open(os.path.join(ROOT, "README.md"), "w") as file:
        file.write(_PROGRAM.sub(fresh, text))


if __name__ == "__main__":
    bless()
