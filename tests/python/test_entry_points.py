"""Every way in has a test: what can be typed is listed from where it is written, and a new one without a test fails here.

Commands of ./dev, files of examples/, indented commands of the documents, options of build/opq-opt, python -m torch_opaque and
./dev bench. Commands of documents run here as they are written, in a folder in which the names they use exist; those that a test runs
elsewhere name it. (```console blocks are run by test_docs.py.)
"""

import argparse
import ast
import glob
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest
from conftest import PYTHON, ROOT, without_settings
from test_docs import DOCUMENTS, read
from torch_opaque import arguments

sys.path.insert(0, os.path.join(ROOT, "bench"))

import run as bench  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = os.path.join(HERE, "scripts", "loop.py")
GRAPH = (
    "graph @g {\n  %0 = input f32[3]\n  %1 = neg f32[3] %0\n  %2 = neg f32[3] %1\n  output %2\n}\n"
)

# Each command of ./dev, by the test that runs it.
DEV = {
    "build": "test_entry_points.py::test_command_of_a_document",
    "test": "test_run.py::test_all_of_it",
    "demo": "test_examples.py::test_demo",
    "bench": "test_entry_points.py::test_command_of_a_document",
    "docs": "test_site.py::site",
    "python": "test_entry_points.py::test_command_of_a_document",
    "fmt": "test_entry_points.py::test_fmt",
    "clean": "test_entry_points.py::test_clean",
    "help": "test_entry_points.py::test_help",
}
# Files of examples/ that are no program of their own.
DATA = {"CMakeLists.txt", "sentences.txt"}
# Commands of documents: what runs instead of it, where the thing itself is larger than a test; or the test that runs it; "" as it is.
COMMANDS = {
    "./dev docs": DEV["docs"],
    "./dev demo": DEV["demo"],
    "./dev test": DEV["test"],
    "./dev test --quick": DEV["test"],
    "./dev test --full": DEV["test"],
    "./dev fmt": DEV["fmt"],
    "./dev build": "",
    "./dev python program.py": "",
    "./dev python -m pytest -q tests/python/test_tensor.py": "./dev python -m pytest -q tests/python/test_tensor.py -k test_strides",
    "./dev python -m torch_opaque run train.py [ARGS]": "./dev python -m torch_opaque run train.py",
    "./dev python -m torch_opaque explain --html report.html train.py [ARGS]": "./dev python -m torch_opaque explain --html report.html train.py",
    "./dev python -m torch_opaque explain --function train_step train.py": "",
    "./dev python -m torch_opaque compare --function train_step --vs eager,cpu,inductor train.py": "./dev python -m torch_opaque compare --function train_step --vs eager,cpu --repeat 1 train.py",
    "python -m torch_opaque cache list": "test_command_line.py::test_cache",
    "python -m torch_opaque cache clear": "test_command_line.py::test_cache",
    "python -m torch_opaque cache warm": "test_command_line.py::test_cache",
    "./dev python -m torch_opaque profile --trace trace.json train.py": "",
    "./dev python -m torch.distributed.run --nproc-per-node 2 examples/ddp.py": "test_examples.py::test_distributed",
    "./dev python tests/python/programs KIND FIRST:END --out DIR": "./dev python tests/python/programs nets 0:1 --out found",
    "./dev bench chain_1M 'softmax_*'": "./dev bench add_1k 'mm_1[6]' --seconds 0.05",
    "build/opq-run classifier.so --input x.npy --output y.npy --threads 2 --repeat 100": "test_export.py::test_opq_run",
    "pip install .": "test_packaging.py::test_pip_installs_the_sources_beside_a_torch",
    "ctest --test-dir build -R graph": "ctest --test-dir build -R graph/npy",
    "build/opq-opt FILE --passes=expand,simplify,group": "",
    "build/opq-opt --run DIR": "",
    "build/opq-opt --eval-kernels DIR": "",
    "build/opq-opt --eval DIR": "",
    "build/opq-opt --reduce DIR": "test_repro.py::test_the_broken_op_is_found",
    'python -m torch_opaque diff "train.py --layers 2" "train.py --layers 3"': './dev python -m torch_opaque diff "train.py --epochs 2" "train.py --epochs 2"',
    "python -m torch_opaque graph --mode unfused --json unfused.json train.py": "./dev python -m torch_opaque graph --mode unfused --json unfused.json train.py",
}
_INDENTED = re.compile(r"^    ((?:\./dev|pip|ctest|python3?|build/\S+|cmake|npm|bash) .*?)(?:  .*)?$", re.M)  # fmt: skip


def commands() -> dict:
    """{command: the documents that have it}"""
    found = {}
    for document in DOCUMENTS:
        text = re.sub(r"^```.*?^```", "", read(document), flags=re.M | re.S)
        for command in _INDENTED.findall(text):
            found.setdefault(command, []).append(document)
    return found


def is_test(text: str) -> bool:
    return bool(re.fullmatch(r"test_\w+\.py::\w+", text))


def exists(test: str) -> bool:
    """test_file.py::name, which is a test or a fixture of tests."""
    file, name = test.split("::")
    with open(os.path.join(HERE, file)) as source:
        tree = ast.parse(source.read())
    return any(isinstance(n, ast.FunctionDef) and n.name == name for n in tree.body)


def run(command, folder=ROOT, **environment):
    """With the environment's programs on the path, and without settings of ours."""
    kept = {k: v for k, v in without_settings().items() if not k.startswith("PYTHONPATH")}
    kept["PATH"] = os.path.dirname(sys.executable) + os.pathsep + kept["PATH"]
    return subprocess.run(
        command,
        shell=isinstance(command, str),
        cwd=folder,
        env=kept | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )


# ---- that nothing is missing


def test_every_command_of_dev_has_a_test():
    listed = re.findall(r"^  \./dev (\w+)", run(["./dev", "help"]).stdout, re.M)
    with open(os.path.join(ROOT, "dev")) as file:
        cases = re.findall(r"^    (\w+)\)", file.read().partition("case $command in")[2], re.M)
    assert set(listed) == set(cases) and {*listed, "help"} == set(DEV)
    assert all(map(exists, DEV.values()))


def test_every_example_has_a_test():
    names = {os.path.basename(path) for path in glob.glob(os.path.join(ROOT, "examples", "*"))}
    with open(os.path.join(HERE, "test_examples.py")) as file:
        tree = ast.parse(file.read())
    words = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)}
    missing = [n for n in names - DATA - {"__pycache__"} if not {n, n.removesuffix(".c")} & words]
    assert not missing, f"test_examples.py runs no {missing}"


def test_every_command_of_the_documents_has_a_test():
    found = commands()
    missing = {command: where for command, where in found.items() if command not in COMMANDS}
    assert not missing, f"to be entered in COMMANDS: {missing}"
    assert set(COMMANDS) == set(found), "no document has this any more"
    assert all(exists(test) for test in COMMANDS.values() if is_test(test))


def words_of(*files) -> set:
    """The words that tests of these files pass to a program: literals, and both sides of a =."""
    words = set()
    for file in files:
        with open(os.path.join(HERE, file)) as source:
            for node in ast.walk(ast.parse(source.read())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    words.update(part for word in node.value.split() for part in word.split("="))
    return words


def options_of(parser) -> list:
    """The spellings of each option."""
    return [a.option_strings for a in parser._actions if a.option_strings and a.dest != "help"]


def lacking(options: list, words: set) -> list:
    return [spellings for spellings in options if not words & set(spellings)]


def test_every_option_of_opq_opt_has_a_test():
    usage = run(["build/opq-opt", "--nonsense"]).stderr
    options = set(re.findall(r"--[\w-]+", usage))
    stages = set(re.search(r"--emit=([\w|]+)", usage)[1].split("|"))
    assert len(options) > 8 and len(stages) > 4
    assert options | stages <= words_of("test_tools.py", "test_repro.py", "test_graphs.py")


def subcommands() -> dict:
    (found,) = (a for a in arguments.parser()._actions if isinstance(a, argparse._SubParsersAction))
    return found.choices


@pytest.mark.parametrize("name", subcommands())
def test_every_option_of_the_command_line_has_a_test(name):
    """In a call of this command, or of another one that takes the same option in the same way."""
    options = options_of(subcommands()[name])
    with open(os.path.join(HERE, "test_command_line.py")) as file:
        assert f'"{name}"' in file.read()
    assert not lacking(options, words_of("test_command_line.py", "test_first_nan.py"))


def test_every_option_of_bench_has_a_test():
    parsers = []

    def stop(parser, *_):
        parsers.append(parser)
        raise SystemExit

    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(argparse.ArgumentParser, "parse_args", stop)
        bench.parse_arguments([])
    options = options_of(parsers[0])
    assert len(options) > 5 and not lacking(options, words_of("test_bench.py"))


# ---- commands of ./dev


def test_help():
    for words in (["./dev"], ["./dev", "help"]):
        result = run(words)
        assert result.returncode == 0 and result.stdout.startswith("The one entry"), result
    result = run(["./dev", "nonsense"])
    assert result.returncode == 2 and "./dev test" in result.stdout


@pytest.fixture
def tree(tmp_path):
    """What ./dev needs of a tree to do something to the files in it."""
    for name in ("dev", "requirements-dev.txt", ".clang-format", "pyproject.toml"):
        shutil.copy(os.path.join(ROOT, name), tmp_path)
    os.symlink(os.path.realpath(os.path.join(ROOT, ".venv")), tmp_path / ".venv")
    return tmp_path


def test_clean(tree):
    built = ["build/x.o", "build-asan/x.o", "web/node_modules/x.js"]
    built += [f"python/torch_opaque/{name}" for name in ("_C.so", "_built.py", "report.js")]
    kept = ["python/torch_opaque/__init__.py", "web/src/x.js", "builder.txt", ".venv-bench/stamp"]
    for name in built + kept:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).touch()
    for _ in range(2):  # also where nothing was built
        assert run(["./dev", "clean"], tree).returncode == 0
        assert not any((tree / name).exists() for name in built)
        assert all((tree / name).exists() for name in kept) and (tree / ".venv/stamp").exists()
    assert not (tree / "build").exists() and not (tree / "build-asan").exists()


def test_fmt(tree):
    (tree / "a.c").write_text("int  f( void ){return 1;}\n")
    (tree / "ops.def").write_text("OP( a )\n")
    (tree / "b.py").write_text("import sys\nimport os\nx = {  'a':os.sep}\n")
    run("git init -q . && git add a.c ops.def b.py", tree)
    result = run(["./dev", "fmt"], tree)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "int f(void)" in (tree / "a.c").read_text()
    assert (tree / "b.py").read_text() == 'import os\n\nx = {"a": os.sep}\n'
    assert (tree / "ops.def").read_text() == "OP( a )\n"


# ---- commands of the documents


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the tree in it, by links, and the files that commands name."""
    folder = tmp_path_factory.mktemp("place")
    for name in ("dev", "build", "examples", "tests", "bench", "python"):
        os.symlink(os.path.join(ROOT, name), folder / name)
    shutil.copy(SCRIPT, folder / "train.py")
    (folder / "program.py").write_text("import torch\nprint(torch.ones(1, device='opaque') + 1)\n")
    (folder / "FILE").write_text(GRAPH)
    (folder / "DIR").mkdir()
    (folder / "DIR" / "graph.ir").write_text(GRAPH)
    import numpy as np

    np.save(folder / "DIR" / "input0.npy", np.arange(3, dtype=np.float32))
    return folder


@pytest.mark.parametrize("command", [c for c, how in COMMANDS.items() if not is_test(how)])
def test_command_of_a_document(place, command):
    """./dev python is what two of them begin with; for the others, which are commands of the package, it is another Python."""
    text = COMMANDS[command] or command
    package = "./dev python -m torch_opaque "
    if text.startswith(package):
        text = text.replace(package, shlex.join([*PYTHON, "-m", "torch_opaque", ""])[:-2])
    done = run(text, place, WARM_EXECUTABLE=PYTHON[-1])
    assert done.returncode == 0, done.stdout + done.stderr
