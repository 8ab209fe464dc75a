"""tests/run.py: what it counts, that a crash or a hang costs one process, what it prints last. Also on a tree with a file of each kind."""

import importlib.util
import json
import os
import subprocess
import sys
import types

import pytest
from conftest import ROOT

# Under a name of its own: bench/run.py is another module `run`.
spec = importlib.util.spec_from_file_location("test_runner", os.path.join(ROOT, "tests", "run.py"))
run = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run)

OUTPUT = "[==========] Running 3 test(s).\n[  PASSED  ] 2 test(s).\n[  FAILED  ] 1 test(s), listed below:\n"


@pytest.mark.parametrize(
    "output, status, counts",
    [
        ("", 0, (1, 0)),
        ("", 1, (0, 1)),
        ("[  PASSED  ] 7 test(s).\n", 0, (7, 0)),
        ("[  PASSED  ] 7 test(s).\n", -11, (7, 1)),  # it ended badly afterwards
        (OUTPUT, 1, (2, 1)),
    ],
)
def test_c_tests_count_as_what_they_print(output, status, counts):
    assert run.counts_of_c(output, status) == counts


def options(root, full=False, quick=False):
    return types.SimpleNamespace(root=str(root), full=full, quick=quick)


@pytest.fixture
def tree(tmp_path):
    """A tree whose builds have a C test each, and which has Python tests that pass, fail, crash and hang."""
    for folder in ("build", "build-asan", "build-tsan"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "CTestTestfile.cmake").write_text(
            'add_test([=[packed]=] "sh" "-c" "echo $A; echo \'[  PASSED  ] 5 test(s).\'")\n'
            'set_tests_properties([=[packed]=] PROPERTIES ENVIRONMENT "A=1")\n'
        )
    tests = tmp_path / "tests" / "python"
    tests.mkdir(parents=True)
    texts = {
        "passes": "def test_a(): pass\ndef test_b(): pass\n",
        "fails": "import pytest\ndef test_a(): assert 1 == 2\ndef test_b(): pass\n"
        "@pytest.mark.skip(reason='not here')\ndef test_c(): pass\n",
        "crashes": "import os\ndef test_a(): pass\ndef test_b(): os.abort()\n",
        "hangs": "import time\ndef test_a(): time.sleep(1000)\n",
    }
    for name, text in texts.items():
        (tests / f"test_{name}.py").write_text(text)
    return tmp_path


def test_all_of_it(tree, capsys):
    """./dev test ends in this."""
    tasks = run.tasks_of(options(tree, full=True), [])
    parts = {task.part for task in tasks}
    assert parts == {"C", "C, ASan and UBSan", "C, TSan", "Python"}
    hanging = [task for task in tasks if task.name == "hangs"]
    run.run_all(hanging, 1, 3.0, {})
    others = [task for task in tasks if task.name != "hangs"]
    run.run_all(others, 2, 100.0, {})
    counts = {task.key: (task.passed, task.failed) for task in tasks}
    assert counts == {
        "C: packed": (5, 0),
        "C, ASan and UBSan: packed": (5, 0),
        "C, TSan: packed": (5, 0),
        "Python: passes": (2, 0),
        "Python: fails": (1, 1),
        "Python: crashes": (0, 1),
        "Python: hangs": (0, 1),
    }
    out = capsys.readouterr().out
    assert "assert 1 == 2" in out and "exit status -6" in out and "exit status -9" in out
    text = run.table(tasks, 1.0, 2.0, 2)
    assert "longest:" in text and "1 s building, then 2 s, 2 processes at a time" in text
    assert [line.split()[-4:-1] for line in text.splitlines() if line.startswith("Python")] == [
        ["4", "3", "3"]
    ]


def test_the_last_line_and_the_exit_status(tree):
    for name in ("fails", "crashes", "hangs"):
        (tree / "tests" / "python" / f"test_{name}.py").unlink()
    (tree / "conftest.py").write_text(
        "def pytest_addoption(parser):\n    for name in ('--skip-unchanged', '--sample'):\n        parser.addoption(name, action='store_true')\n"
        "def pytest_configure(config):\n    config.addinivalue_line('markers', 'alone: x')\n"
    )
    timing = "import pytest, time\n@pytest.mark.alone\ndef test_a(): time.sleep(0.1)\n"
    (tree / "tests" / "python" / "test_passes.py").write_text(timing + "def test_b(): pass\n")
    command = [sys.executable, os.path.join(ROOT, "tests", "run.py"), "--root", str(tree)]
    kept = {k: v for k, v in os.environ.items() if k != "OPAQUE_TEST_FULL"}
    for words in ([], ["--quick"], ["-k", "test_a"]):
        done = subprocess.run([*command, *words], env=kept, capture_output=True, text=True)
        passed = {"": 12, "--quick": 5, "-k": 11}[words[0] if words else ""]
        assert done.stdout.splitlines()[-1] == f"{passed} passed, 0 failed", done.stderr
        assert done.returncode == 0
    known = json.loads((tree / "build" / "test-seconds.json").read_text())
    assert set(known) == {
        "C: packed",
        "C, ASan and UBSan: packed",
        "Python: passes",
        "Python: alone",
    }
    (tree / "tests" / "python" / "test_fails.py").write_text("def test(): assert False\n")
    done = subprocess.run(command, env=kept, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "12 passed, 1 failed" and done.returncode == 1


def test_the_longest_begin_first(capsys):
    tasks = [run.Task("C", name, ["true"]) for name in ("a", "b", "c", "opdb")]
    run.run_all(tasks, 1, 10.0, {"C: b": 3.0, "C: c": 100.0})
    order = [line.split(":")[1].strip() for line in capsys.readouterr().out.splitlines()]
    assert order == ["c", "opdb", "b", "a"]


def test_names_in_the_runner_exist():
    for name in [*run.QUICK, *run._ASAN_FILES, *run._LONG]:
        assert os.path.exists(os.path.join(ROOT, "tests", "python", f"test_{name}.py")), name
    known = {name for name, *_ in run.c_tests(os.path.join(ROOT, "build"))}
    assert known.issuperset(run._LONG_C), known


def test_the_table_is_written_into_the_page(tmp_path):
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "trust.md"
    page.write_text(
        "a\n\n`./dev test`:\n\n```text\nold\n```\n\n`./dev test --full`:\n\n```text\n```\n"
    )
    run.record(str(tmp_path), "./dev test", "part  x")
    run.record(str(tmp_path), "./dev test --full", "full")
    assert page.read_text() == (
        "a\n\n`./dev test`:\n\n```text\npart  x\n```\n\n`./dev test --full`:\n\n```text\nfull\n```\n"
    )
    with pytest.raises(SystemExit, match="no block"):
        run.record(str(tmp_path), "./dev test --quick", "")
