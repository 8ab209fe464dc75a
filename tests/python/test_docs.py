"""What the documents show is what happens.

Pages (README.md and those of docs/): all ```python blocks of a page in order are one program, named after the page (README's
is tour.py); a ```text, ```ir or ```{graphviz} block that follows one is what it prints. A ```console block has commands, each
behind a `$`, with what they print; they run in a folder in which the program, as far as it has come, is a file. docs/ir.md:
every ```ir block parses, verifies and prints back byte for byte; its tables of ops and reasons are those of the sources.
Names of files, functions and environment variables that the documents mention exist.

    ./dev python tests/python/test_docs.py [PAGE ...]    writes the outputs of the pages anew

Times, rates, addresses and the sizes of JSON files differ from run to run and are left out of the comparison; graphs, names,
kernel counts, bytes and reasons are compared.
"""

import glob
import json
import os
import re
import subprocess
import sys
import tempfile

import pytest
from conftest import PYTHON, without_settings

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DOCUMENTS = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"]
DOCUMENTS += sorted(glob.glob("docs/**/*.md", root_dir=ROOT, recursive=True))

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```\n", re.M | re.S)
# Program; fence and options of what follows it; what it prints.
_PROGRAM = re.compile(
    r"^```python\n(.*?)^```\n(?:\n(```(?:text|ir|\{graphviz\})\n(?::\w+: [^\n]*\n)*\n?)(.*?)^```\n)?",
    re.M | re.S,
)
_CONSOLE = re.compile(r"^```console\n(.*?)^```\n", re.M | re.S)
_COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.M)

# Runs blocks under the name given with the line numbers of their concatenation; prints a JSON list of outputs.
_DRIVER = """
import contextlib, io, json, sys
names, outputs, line = {"__name__": "__main__"}, [], 0
for block in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile("\\n" * line + block, sys.argv[1], "exec"), names)
    outputs.append(output.getvalue())
    line += block.count("\\n")
json.dump(outputs, sys.stdout)
"""


def read(name: str) -> str:
    with open(os.path.join(ROOT, name)) as file:
        return file.read()


def pages() -> list:
    """Documents that have programs or commands."""
    return [p for p in DOCUMENTS if _PROGRAM.search(text := read(p)) or _CONSOLE.search(text)]


def program_name(page: str) -> str:
    return "tour.py" if page == "README.md" else os.path.basename(page).replace(".md", ".py")


def environment() -> dict:
    """Without settings of ours but for the instruction set, on which it depends what products share, and with the tree's tools on the path."""
    kept = without_settings()
    tools = [
        os.path.dirname(PYTHON[-1]),
        os.path.dirname(sys.executable),
        os.path.join(ROOT, "build"),
    ]
    return kept | {
        "PATH": os.pathsep.join([*tools, kept["PATH"]]),
        "WARM_EXECUTABLE": PYTHON[-1],
        "OPAQUE_CACHE": "off",
        "OPAQUE_CPU": "avx2",
        "PYTHONUNBUFFERED": "1",  # both streams in the order in which they were written
    }


def outputs_of(page: str) -> list:
    """What each block of the page prints, run in order in one fresh process and folder."""
    with tempfile.TemporaryDirectory() as folder:
        result = subprocess.run(
            [*PYTHON, "-c", _DRIVER, program_name(page)],
            input=json.dumps([match[1] for match in _PROGRAM.finditer(read(page))]),
            capture_output=True,
            text=True,
            timeout=120,
            env=environment(),
            cwd=folder,
        )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def output_of(page: str, block: re.Match, command: str) -> str:
    """What a command of a console block prints, on both streams. The page's program ends where the block stands."""
    program = "".join(match[1] for match in _PROGRAM.finditer(block.string[: block.start()]))
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, program_name(page)), "w") as file:
            file.write(program)
        return subprocess.run(
            ["bash", "-c", command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            env=environment(),
            cwd=folder,
        ).stdout


def stable(text: str) -> str:
    """`text` without what differs from run to run: times, interruptions, rates, ratios, addresses, column widths, the order of rows by time,
    how many kernels ran until a plan came, and how many plans it took until compiling one paid."""
    text = re.sub(r"running \d+ kernels", "running N kernels", text)
    text = re.sub(r"compiling \d+ in \d+ plans", "compiling N in N plans", text)
    text = re.sub(
        r"\d[\d.]*(e[+-]\d+)? ?(us|ms|s|GB/s|GFLOP/s|x)(?=[\s,:]|$)", "T", text, flags=re.M
    )
    text = re.sub(r"cell \d+", "cell N", text)
    text = re.sub(r"; \d+ of them (was|were) interrupted.*", "", text)
    text = re.sub(r"(?<=\.json )[ \d,]+ bytes", "N bytes", text)
    text = re.sub(r">?\d+%", "T", text)
    text = re.sub(r"seconds': [\d.e+-]+", "seconds': T", text)
    text = re.sub(r"-{3,}", "---", re.sub(r"[ \t]+", " ", text)).strip()
    rows = r"(?<=^---\n)(?:.+\n?)+"
    return re.sub(rows, lambda m: "\n".join(sorted(m[0].split("\n"))), text, flags=re.M)


@pytest.mark.parametrize("page", pages())
def test_pages_print_what_they_show(page):
    text = read(page)
    shown = _PROGRAM.findall(text)
    for (program, _, expected), actual in zip(
        shown, outputs_of(page) if shown else [], strict=True
    ):
        assert stable(actual) == stable(expected), program
    for block in _CONSOLE.finditer(text):
        for command, expected in _COMMAND.findall(block[1]):
            assert stable(output_of(page, block, command)) == stable(expected), command


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
    reasons = re.findall(r'X\((\w+), "(.*?)"', refusals)
    for name, text in reasons[1:]:  # the first says "fused"
        assert f"| `{name}` | {text} |" in read("docs/ir.md")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_mentioned_exist(document):
    folders = "include|graph|fusion|codegen_llvm|runtime|opaque|registration|python|tools|examples|tests|bench|docs|cmake"
    paths = set(re.findall(rf"(?<![\w/.])((?:{folders})/[\w./-]*\w\.\w+)", read(document)))
    missing = [path for path in paths if not os.path.exists(os.path.join(ROOT, path))]
    assert not missing


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

    documented = set(re.findall(r"\bOPAQUE_[A-Z0-9_]+\b", read("README.md")))
    assert documented == {row.name for row in settings.SETTINGS}


def test_readme_explains_every_counter():
    import torch_opaque

    documented = set(re.findall(r"^\| `(\w+)`", read("README.md"), re.M))
    assert set(torch_opaque.stats()) <= documented


def bless(page: str) -> None:
    """Writes the outputs of a page anew from what its programs and commands print."""
    text = read(page)
    printed = iter(outputs_of(page) if _PROGRAM.search(text) else [])

    def program(match: re.Match) -> str:
        output = next(printed).rstrip()
        fence = match[2] or "```text\n"
        return f"```python\n{match[1]}```\n" + (f"\n{fence}{output}\n```\n" if output else "")

    def commands(match: re.Match) -> str:
        parts = [f"$ {c}\n{output_of(page, match, c)}" for c, _ in _COMMAND.findall(match[1])]
        return f"```console\n{''.join(parts)}```\n"

    text = _PROGRAM.sub(program, _CONSOLE.sub(commands, text))
    with open(os.path.join(ROOT, page), "w") as file:
        file.write(text)


if __name__ == "__main__":
    for page in sys.argv[1:] or pages():
        bless(page)
