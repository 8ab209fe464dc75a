"""python -m torch_opaque: programs that know nothing of the device, what is shown of them, exit statuses."""

import gc
import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
import torch_opaque
from conftest import PYTHON, without_settings
from torch_opaque import _C, arguments, watch
from torch_opaque import __main__ as command_line
from torch_opaque.graphs import Graph
from torch_opaque.program import Stopped
from torch_opaque.samples import Samples

WARM = {"WARM_EXECUTABLE": PYTHON[-1]}  # of what compare starts
SCRIPTS = os.path.join(os.path.dirname(__file__), "scripts")


def run(*words, status=0):
    """A process of its own, in the folder of the scripts."""
    result = subprocess.run(
        [*PYTHON, "-m", "torch_opaque", *map(str, words)],
        cwd=SCRIPTS,
        env=without_settings() | WARM,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == status, result.stdout + result.stderr
    return result


# ---- programs that know nothing


def test_what_programs_write_for_the_cpu():
    assert "all of them" in run("run", "habits.py").stdout


def test_run_counts(tmp_path):
    result = run("run", "--mode", "unfused", "--json", tmp_path / "run.json", "loop.py")
    assert "on opaque:0" in result.stdout and "8 optimizer_step" in result.stderr
    counted = json.loads((tmp_path / "run.json").read_text())
    assert counted["status"] == 0 and counted["stats"]["flushes"]["optimizer_step"] == 8


def test_a_script_is_the_main_program():
    result = run("run", "options.py", "--status", "3", status=3)
    assert result.stdout == "[2.0, 2.0] Namespace(status=3)\n"
    assert run("run", "-m", "package", "--x").stdout == "package ['--x'] opaque:0\n"


def test_an_exception_has_the_frames_of_the_program():
    error = run("run", "raises.py", status=1).stderr
    first, note = error.split("Expected all tensors to be on the same device")
    assert first.startswith("Traceback") and first.count("  File ") == 2
    assert first.count("raises.py") == 2 and "Move it with .to('opaque')" in note


def test_transformers(tmp_path):
    assert "torch.Size([1, 7]) opaque:0" in run("run", "language_model.py", tmp_path).stdout


# ---- runs


def test_explain_a_program():
    result = run("explain", "loop.py")
    kinds, report = result.stdout.split("\n\nrun ", 1)
    rows = [line.split() for line in kinds.splitlines()[2:]]
    steps = [row for row in rows if "optimizer_step" in row]
    assert sum(int(row[1]) for row in steps) == 8 and {row[-1] for row in steps} == {"loop.py:23"}
    assert "copy_to_host" in kinds and "model.0" in report and "not fused:" in report
    assert "accuracy" in result.stderr  # the program's own output


PLANS = """
import time
import torch

x = torch.randn(64, 64)
x.sum().item()
for n in [*range(6), 6]:
    y = x[: 32 if n == 6 else 48] @ x  # the last one is smaller
    z = y.exp().sum(-1)
    z.sum().item()
"""


def test_times_are_medians_of_the_runs_of_one_plan(tmp_path):
    """Of those that took most of the time; the graph is that plan's, and a run that was planned counts where there is no other."""
    (tmp_path / "plans.py").write_text(PLANS)
    path = tmp_path / "e.json"
    report = run("explain", "--json", path, tmp_path / "plans.py").stdout
    assert "times are medians of 5 runs" in report and ", 7 times:" in report
    document = json.loads(path.read_text())
    assert document["watched"] == 5 and "[48,64]" in {k["shape"][3:] for k in document["kernels"]}
    for kernel in document["kernels"]:
        assert kernel["low"] <= kernel["seconds"] <= kernel["high"] <= kernel["worst"]


def test_an_interrupted_run_changes_no_time_and_is_told(runs):
    """Of nine reports one says so much more: as if another program had the processor."""
    x = torch.rand(64, 64).to("opaque")
    with runs.watched():
        for _ in range(2):
            (x @ x).exp().sum().item()
    (kind,) = runs.kinds
    (variant,) = kind.variants.values()
    variant.samples = Samples()
    there = [run | {"why": None} for run in variant.planned]
    for i in range(8):
        times = {"seconds": 1e-3 + 1e-6 * i, "busy": 1e-3}
        even = [launch | times for launch in variant.launches]
        kind.add({"launches": even, "runs": there})
    quiet = kind.explanation()
    slow = [launch | {"seconds": 1.0, "busy": 1e-3} for launch in variant.launches]
    kind.add({"launches": slow, "runs": there})
    told = kind.explanation()
    assert told.seconds < 1.01 * quiet.seconds and (quiet.interrupted, told.interrupted) == (0, 1)
    assert "interrupted, as by another program" in told.text() and "took 1 s once" in told.text()
    long = [slow[0] | {"seconds": 2.0, "busy": 2.0}]
    kind.add({"launches": long, "runs": [there[0] | {"why": "other"}]})  # another plan
    assert len(kind.variants) == 2 and kind.seconds > 1


def test_why_runs_were_planned_again():
    kinds = run("explain", "batches.py").stdout.split("\n\nrun ", 1)[0]
    table, reasons = kinds.split("\n\n")
    header = table.split()
    assert "plans" in header[:8]
    assert (
        "planned again" in reasons and "shape [10,8] -> [16,8] of expand at batches.py:7" in reasons
    )


def test_a_function_that_reads_its_result(tmp_path):
    """All that it computed ran on the way."""
    report = run("explain", "--function", "train", "--html", tmp_path / "r.html", "reads.py").stdout
    assert "all of it ran when a value was read: item at reads.py:" in report
    assert "addmm" not in report and "matmul" in report and (tmp_path / "r.html").exists()
    assert "matmul" in run("graph", "--function", "train", "reads.py").stdout
    assert (
        "no part 2; there are 1"
        in run("explain", "--function", "train", "--part", 2, "reads.py", status=2).stderr
    )
    twice = run("explain", "--function", "twice", "--part", 1, "reads.py").stdout
    assert "this is part 1 of 2, because of item at reads.py" in twice
    # not json.dumps(), which is called before it
    assert "reads.py:" in run("explain", "--function", "dumps", "reads.py").stdout


def test_graph_of_a_run_and_of_a_function(tmp_path):
    result = run("graph", "--run", 2, "--json", tmp_path / "run.json", "loop.py")
    assert result.stdout == "" and "the graph of run 2" in result.stderr
    graph = Graph.from_json((tmp_path / "run.json").read_text())
    assert graph.stage_name == "fused" and graph.find("matmul", module="model.*", line="loop.py:*")
    assert {"model.0.weight", "model.0.bias", "model.2.weight"} <= {n.name for n in graph.inputs}
    text = run("graph", "--function", "model", "--stage", "recorded", "loop.py").stdout
    assert text.startswith("graph @g {\n  %0 = input f32[320]  # input\n") and "# 2.bias" in text
    assert "backward" not in text and "accuracy" not in text


@pytest.fixture
def runs():
    watched = watch.Runs()
    yield watched
    _C.watch_runs(None)


def test_what_is_shown_of_a_run_is_what_ran(runs):
    """Each kind has as many launches as its graph says, and one graph for all of its runs."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).to(
        "opaque"
    )
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(5, 8).to("opaque")
    with runs.watched():
        for _ in range(3):
            loss = model(x).square().mean()
            loss.item()
            loss.backward()
            kept = [p.grad.abs().sum() for p in model.parameters()]
            print(float(kept[0]))
            optimizer.step()
            optimizer.zero_grad()
    kinds = {(run.reason, run.times) for run in runs.kinds}
    assert ("item", 3) in kinds and ("optimizer_step", 2) in kinds and len(kinds) < 7
    for run_ in runs.kinds:
        explanation = run_.explanation()
        assert len(run_.launches) == 1 + max(k.launch for k in explanation.graph.kernels), run_
        moved = sum(k.bytes_read + k.bytes_written for k in explanation.graph.kernels)
        assert explanation.bytes_moved == moved and explanation.bytes_saved >= 0
    step = runs.kinds[-1]
    assert {n.module for n in runs.kinds[0].graph("recorded").nodes} >= {"0", "2"}
    assert {"0.weight", "0.weight.grad", "0.weight.exp_avg"} <= {
        n.name for n in step.graph().inputs
    }


@pytest.mark.usefixtures("planned")
def test_watching_keeps_and_changes_nothing(runs):
    x = torch.ones(4).to("opaque")
    torch.opaque.synchronize()
    before = torch_opaque.stats()["bytes_written"]
    (x + 1).sum().item()
    alone = torch_opaque.stats()["bytes_written"] - before
    with runs.watched():
        (x + 1).sum().item()
    assert torch_opaque.stats()["bytes_written"] - before == 2 * alone
    assert torch_opaque.explain(lambda: x + 1, show=False).kernels  # its report is its own again


def test_what_a_watcher_raises_is_raised():
    def watcher(tensors, reason, line):
        raise KeyError(f"{len(tensors)} {reason} {line}")

    x = torch.ones(4).to("opaque")
    torch.opaque.synchronize()
    _C.watch_runs(watcher)
    try:
        with pytest.raises(KeyError, match=r"1 item test_command_line.py:\d+"):
            (x * 2).sum().item()
    finally:
        _C.watch_runs(None)
    assert (x * 2).sum().item() == 8


# ---- calls


def calls_of(name, program, call=9):
    """What looks at `name` were given while the program ran."""
    given = []

    def look(function, *args, **kwargs):
        given.append((function, args, kwargs))
        return len(given)

    calls = watch.Calls(name, call, look)
    with calls.watched():
        program()
    assert calls.error is None and calls.seen == len(given)
    return given


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)

    def forward(self, x, scale=1.0):
        return self.inner(x) * scale


def everything(a, b=2, *rest, key, other=4, **more):
    total = a + b + sum(rest) + key + other + sum(more.values())
    return total, locals()


def test_a_call_is_looked_at_with_its_arguments():
    expected, seen = everything(1, 3, 5, key=6, extra=7)[0], []
    given = calls_of("everything", lambda: seen.append(everything(1, 3, 5, key=6, extra=7)))
    assert given == [(everything, (1, 3, 5), {"key": 6, "other": 4, "extra": 7})]
    assert seen[0][0] == expected  # and is then made as ever


def test_names_of_functions():
    model = Model()
    x = torch.ones(1, 2)

    def outer(value):
        def step(x):
            return model(x) * value

        return step

    for name in ("Model.forward", "test_command_line.Model.forward", "model", "model.forward"):
        assert calls_of(name, lambda: model(x, scale=2.0)) == [(model, (x, 2.0), {})]
    assert calls_of("model.inner", lambda: model(x))[0][0] is model.inner
    assert len(calls_of("Linear.forward", lambda: model(x))) == 1
    step, other = outer(1), outer(2)
    assert [function for function, _, _ in calls_of("outer.step", lambda: step(x))] == [step]
    assert [function for function, _, _ in calls_of("step", lambda: other(x))] == [other]
    assert calls_of("nothing.like.it", lambda: model(x)) == []


def test_functions_that_the_garbage_collector_does_not_visit():
    model, x = Model(), torch.ones(1, 2)
    gc.freeze()
    try:
        assert calls_of("Model.forward", lambda: model(x)) == [(model, (x, 1.0), {})]
        assert len(calls_of("Linear.forward", lambda: model(x))) == 1
        assert calls_of("everything", lambda: everything(1, key=2))[0][0] is everything
    finally:
        gc.unfreeze()


def test_a_look_ends_the_program():
    def function():
        return 1

    calls = watch.Calls("function", 2, lambda f: 7)
    with pytest.raises(Stopped), calls.watched():
        for _ in range(5):
            function()
    assert calls.seen == 2 and calls.result == 7 and sys.gettrace() is None


# ---- comparing


def test_compare_a_function(tmp_path):
    words = ["--function", "train_step", "--repeat", 1, "--vs", "unfused,cpu", "--tolerance", 1e-4]
    words += ["--fail-if-different", "--fail-if-slower", 1e9, "--json", tmp_path / "c.json"]
    result = run("compare", *words, "loop.py", status=1)
    assert "slower: unfused takes" in result.stderr and "different" not in result.stderr
    rows = json.loads((tmp_path / "c.json").read_text())["rows"]
    assert [row["mode"] for row in rows] == ["unfused", "cpu", "fused"]
    assert rows[0]["same_bits"] and rows[1]["kernels"] is None and "accuracy" not in result.stdout


def test_compare_a_program(tmp_path):
    words = [
        "--repeat",
        1,
        "--vs",
        "unfused,cpu",
        "--fail-if-different",
        "--json",
        tmp_path / "c.json",
    ]
    result = run("compare", *words, "options.py")
    ways = [line.split() for line in result.stdout.splitlines()[2:]]
    assert [way[0] for way in ways] == ["unfused", "cpu", "fused"]
    assert all(way[-1] == "yes" for way in ways)
    rows = json.loads((tmp_path / "c.json").read_text())["rows"]
    assert rows[2]["mode"] == "fused" and rows[2]["kernels"] == 1 and rows[1]["kernels"] == 0


@pytest.mark.parametrize(
    "text",
    [
        "import sys, torch\nprint(sum(map(int, sys.stdin)), torch.ones(2).sum().item())\n",
        "import torch\nprint(input(), torch.ones(2).sum().item())\n",
    ],
    ids=["all of it", "a part"],
)
def test_each_way_has_all_of_stdin(text, tmp_path):
    """It is longer than a pipe holds."""
    (tmp_path / "program.py").write_text(text)
    command = ["compare", "--vs", "unfused", "--repeat", "1", "--fail-if-different", "program.py"]
    result = subprocess.run(
        [*PYTHON, "-m", "torch_opaque", *command],
        cwd=tmp_path,
        env=os.environ | WARM,
        input="".join(f"{i}\n" for i in range(20000)),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0 and result.stdout.count(" yes") == 2, result


def test_nobody_waits_for_stdin_that_nobody_reads(tmp_path):
    """A pipe that stays open."""
    (tmp_path / "one.py").write_text("import torch\nprint(torch.ones(2).sum().item())\n")
    words = ["compare", "--vs", "cpu", "--repeat", "1", "one.py"]
    with subprocess.Popen(
        [*PYTHON, "-m", "torch_opaque", *words],
        env=os.environ | WARM,
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.wait(timeout=300) == 0
        assert process.stdout.read().count(" yes") == 2


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["explain", "--fnction", "f", "x.py"], "did you mean --function"),
        (["explian", "x.py"], "did you mean explain"),
        (["graph", "--stage", "recordd", "x.py"], "did you mean recorded"),
        (["compare", "--vs", "unfusd", "x.py"], "did you mean unfused"),
        (["run", "--mode", "egaer", "loop.py"], "did you mean eager"),
    ],
)
def test_a_slip_is_told_with_what_was_meant(words, meant):
    assert meant in run(*words, status=2).stderr


@pytest.mark.parametrize(
    "words, row, status",
    [
        (["--fail-if-slower", "1"], {"seconds": 1.0}, 0),
        (["--fail-if-slower", "1.1"], {"seconds": 1.0}, 1),
        (["--fail-if-slower", "1"], {"seconds": float("nan")}, 1),
        (["--fail-if-different"], {"same_bits": True}, 0),
        (["--fail-if-different"], {"same_bits": False, "max_difference": 1e-6}, 1),
        (["--fail-if-different"], {"same_bits": None, "max_difference": None}, 1),
        (
            ["--fail-if-different", "--tolerance", "1e-5"],
            {"same_bits": False, "max_difference": 1e-6},
            0,
        ),
        (
            ["--fail-if-different", "--tolerance", "1e-5"],
            {"same_bits": False, "max_difference": float("nan")},
            1,
        ),
    ],
)
def test_exit_status_of_compare(words, row, status):
    options = arguments.parser().parse_args(["compare", *words, "x.py"])
    peer = SimpleNamespace(**{"mode": "eager", "seconds": 1.0, "same_bits": True} | row)
    assert command_line._judge([peer, SimpleNamespace(seconds=1.0)], options) == status


def test_diff_of_files(tmp_path, capsys):
    x = torch.ones(4, 4).to("opaque")
    paths = []
    for name, function in (("a", lambda: x + 1), ("b", lambda: (x + 1).relu())):
        path = tmp_path / f"{name}.json"
        path.write_text(torch_opaque.graph(function, stage="fused").to_json())
        paths.append(str(path))
    assert command_line.main(["diff", paths[0], paths[0]]) == 0
    assert command_line.main(["diff", *paths]) == 1
    assert "maximum" in capsys.readouterr().out
    assert command_line.main(["diff", paths[0], str(tmp_path / "none.json")]) == 2


# ---- cache


def test_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OPAQUE_CACHE", str(tmp_path / "mine"))
    assert run("cache", "list").stdout.startswith(f"{tmp_path / 'mine'}: 0 kernels")
    made = run("cache", "warm", "--into", tmp_path / "all").stdout
    assert made.startswith(f"{len(list((tmp_path / 'all').iterdir()))} kernels in ")
    assert run("cache", "clear").stdout == "0 kernels removed\n"
    assert "--into" in run("cache", "list", "--into", "all", status=2).stderr
    monkeypatch.setenv("OPAQUE_CACHE", "off")
    assert "nowhere" in run("cache", "warm", status=2).stderr


# ---- profile


def test_profile(tmp_path):
    result = run("profile", "--mode", "planned", "--trace", tmp_path / "trace.json", "options.py")
    assert "opaque::mul_maximum" in result.stdout and "Namespace" in result.stderr
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert any(event["name"] == "opaque::run" for event in events)


def test_profile_options(tmp_path):
    """Rows of the table, a row for each shape, Python's calls in the trace."""
    words = ["--rows", 2, "--shapes", "--stacks", "--trace", tmp_path / "trace.json"]
    table = run("profile", *words, "options.py").stdout
    assert "Input Shapes" in table and len(re.findall(r"^ +\S+::\S+ ", table, re.M)) <= 2
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert any(event.get("cat") == "python_function" for event in events)


def test_graph_as_dot(tmp_path):
    run("graph", "--dot", tmp_path / "graph.dot", "options.py")
    text = (tmp_path / "graph.dot").read_text()
    assert text.startswith("digraph") and "mul" in text


# ---- files


def test_pages(tmp_path):
    """explain and compare write pages; a page of a comparison has the function's graphs, too."""
    run("explain", "--html", tmp_path / "explain.html", "--json", tmp_path / "e.json", "options.py")
    words = ["--function", "double", "--vs", "unfused", "--repeat", 1]
    run("compare", *words, "--html", tmp_path / "compare.html", "options.py")
    for name in ("explain.html", "compare.html"):
        assert (tmp_path / name).read_text().startswith("<!doctype html>")
    document = json.loads((tmp_path / "e.json").read_text())
    assert [launch["bytes_written"] for launch in document["kernels"]] == [8]
    assert Graph.from_json(json.dumps(document["graph"])).find("mul")


# ---- wrong usage


@pytest.mark.parametrize(
    "words, said",
    [
        ([], "usage: python -m torch_opaque"),
        (["run", "--device", "none", "no_such_file.py"], "can't open 'no_such_file.py'"),
        (["run", "--device", "none", "-m", "no_such_module"], "no module 'no_such_module'"),
        (["run", "--device", "none", "--mode", "fast", "x.py"], "OPAQUE_MODE=fast"),
        (["explain", "--device", "none", "--call", "2", "x.py"], "--call is of a function"),
        (["compare", "--vs", "inductor", "x.py"], "expected some of unfused, eager, cpu"),
        (["compare", "--vs", "first call", "x.py"], "cpu, or name a function: --function"),
        (["compare", "--html", "x.html", "x.py"], "name it with --function"),
        (["compare", "--function", "f", "--vs", "gpu", "x.py"], "expected some of eager, unfused"),
        (["explain", "--html", "/no/such/x.html", "x.py"], "there is no folder /no/such"),
        (["explain", "--part", "2", "x.py"], "--part is of a function"),
        (["explain", "--json", "/", "x.py"], "it cannot be written"),
        (["profile", "--trace", "/no/such/x.json", "x.py"], "--trace /no/such/x.json: there is no"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_wrong_usage(words, said, capsys, monkeypatch):
    monkeypatch.setenv("OPAQUE_MODE", "")
    assert command_line.main(words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [["run"], ["graph", "--run", "0", "x"], ["graph", "--run", "1", "--function", "f", "x"]],
)
def test_what_argparse_refuses(words, capsys):
    with pytest.raises(SystemExit) as end:
        command_line.main(words)
    assert end.value.code == 2 and "usage" in capsys.readouterr().err


def test_slips_are_told():
    error = run(
        "explain", "--function", "trian_step", "loop.py", "--html", "x.html", status=2
    ).stderr
    before, after = error.split("accuracy")
    assert "did you mean train_step?" in before
    assert "--html stands after loop.py and is an argument of it" in before
    assert "called trian_step() 0 times; it called train_step" in after
    assert "torch_opaque: " not in run("graph", "--function", "train_step", "loop.py").stderr


@pytest.mark.parametrize(
    ("source", "slip"),
    [
        ("import torch.nn.functional as F", True),
        ("parser.add_argument('--function')", False),
        ("@click.option('-f', '--function', 'name')", False),
    ],
)
def test_an_option_of_ours_that_the_program_does_not_read(tmp_path, source, slip):
    script = tmp_path / "script.py"
    script.write_text(source)
    options = arguments.parser().parse_args(["explain", str(script), "--function", "train_step"])
    assert bool(arguments.hints(options)) == slip


def test_a_reader_that_goes_ends_it_quietly():
    process = subprocess.Popen(
        [*PYTHON, "-m", "torch_opaque", "explain", "batches.py"],
        cwd=SCRIPTS,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.close()
    error = process.stderr.read()
    assert process.wait(timeout=300) == 141 and "pipe" not in error and "Exception" not in error


def test_nothing_to_show():
    assert (
        "called missing() 0 times"
        in run("graph", "--function", "missing", "options.py", status=2).stderr
    )
    assert "no run 9; there are\nrun" in run("explain", "--run", 9, "options.py", status=2).stderr
    assert "nothing ran" in run("explain", "-m", "json.tool", "-h", status=2).stderr
