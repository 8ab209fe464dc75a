"""bench/: its rows, how results are compared, what is reported. Times are not tested."""

import math
import os
import subprocess
import sys
import time

import pytest
import torch
from conftest import ROOT

sys.path.insert(0, os.path.join(ROOT, "bench"))

import engines  # noqa: E402
import machine  # noqa: E402
import measure  # noqa: E402
import report  # noqa: E402
import rows  # noqa: E402, F401
import run  # noqa: E402
from registry import ROWS, Row, select  # noqa: E402

# Some of each module of rows/, in a second or two each.
SAMPLE = [
    "add_1k",
    "chain_64k",
    "log_1M",
    "small_ops_500",
    "softmax_composed_12x128x128",
    "xent_composed_1024x4096",
    "xent_1024x4096",
    "layer_norm_512x768",
    "rms_norm_composed_512x768",
    "mm_16",
    "mm_8x768x768",
    "mm_bf16_8x768x768",
    "mlp_block_128",
    "attention_12x128x64",
    "attention_composed_causal_12x128x64",
    "gpt2_block_128",
    "gpt2_block_bf16_128",
    "bert_layer_128",
    "lstm_2x512_of_50",
    "decode_growing_16_to_48",
    "train_mlp_784",
    "adam_1000x1k_foreach",
    "sgd_1000x1k_fused",
    "ema_1000x1k",
    "clip_1000x1k",
    "mandelbrot_512x50",
    "flip_1024x1024",
    "sum_rows_1M_x4",
    "max_pool_3_by_2_64x56x56",
    "bilinear_64x56x56_last",
    "depthwise_3x3_96x56x56",
    "mobilenetv2_b1",
]


def result_of(make, peers=("eager",), limit=60.0, **options):
    row = Row("made_up", make, **options)
    return measure.measure(row, ["opaque", *peers], 0.0, limit)


@pytest.fixture
def made_up(monkeypatch):
    """Registers a row and measures it in this process; returns the exit status of ./dev bench."""

    def bench(make, **options):
        monkeypatch.setitem(ROWS, "made_up", Row("made_up", make, **options))

        def run_row(name, cpu, threads, options, scratch, show):
            found = measure.measure(ROWS[name], ["opaque", *options.vs], 0.0, options.limit)
            return {**found, "cpu": cpu, "threads": threads}

        monkeypatch.setattr(run, "run_row", run_row)
        return run.main(["made_up"])

    return bench


# ---- rows


@pytest.mark.parametrize("name", ROWS)
def test_a_row_makes_what_its_kind_says(name):
    """On the device that has no memory, so that large rows cost nothing."""
    row = ROWS[name]
    if row.kind == "plan":
        assert callable(row.make()) and row.ceiling
        return
    with torch.device("meta"):
        function, arguments = row.make()
    assert callable(function) and arguments
    assert all(isinstance(argument, torch.Tensor) for argument in arguments)
    assert isinstance(function, torch.nn.Module) <= (
        "call" in (row.kind, row.of and ROWS[row.of].kind)
    )


@pytest.mark.unchanged_folders("bench")
@pytest.mark.parametrize("name", SAMPLE)
def test_a_row_runs_and_agrees(name):
    result = measure.measure(ROWS[name], ["opaque", "eager"], 0.0, 60.0)
    assert not result["notes"]
    for cell in result["engines"].values():
        assert cell["wrong"] is False and 0 < cell["min"] <= cell["median"]
        assert cell["samples"] == (1 if ROWS[name].kind == "once" else measure.LEAST_SAMPLES)


@pytest.mark.unchanged_folders("bench")
def test_first_calls_are_of_new_processes():
    """Each is a process's own; what the first of them compiled another one loads."""
    result = measure.measure_first(ROWS["first_warm_train_mlp_784"], 1, lambda text: None)
    for cell in result["engines"].values():
        assert 0 < cell["min"] <= cell["median"] and cell["samples"] == measure.LEAST_SAMPLES
    assert report.cells({**result, "cpu": "avx2", "threads": 1})["ratio"] != "0"


def test_programs_that_change_are_listed_first():
    listed = [
        {"row": name, "ratio": ratio}
        for name, ratio in [("mm_16", "0.7"), ("dynamic_trees", "1.2")]
    ]
    assert [row["row"] for row in sorted(listed, key=report.order)] == ["dynamic_trees", "mm_16"]


def test_patterns_choose_rows():
    assert select([]) == list(ROWS)
    assert select(["mm_512", "add_1?"]) == ["add_1k", "mm_512"]
    with pytest.raises(SystemExit, match="no row matches 'mm_513'; rows are: .*mm_512"):
        select(["mm_512", "mm_513"])


# ---- comparing


def test_a_wrong_result_is_reported(made_up, capsys):
    def make():
        return lambda x: x + (1e-5 if x.device.type == "opaque" else 0.0), (torch.rand(100),)

    assert made_up(make) == 1
    assert "WRONG" in capsys.readouterr().out
    assert made_up(make, tolerance=1e-4) == 0
    assert "WRONG" not in capsys.readouterr().out


def test_a_row_says_what_is_right(made_up, capsys):
    """Where eager is off, nobody else may be, and what is right is not wrong for differing from it."""

    def make(by):
        return lambda x: x + by * (x.device.type == "opaque"), (torch.arange(9),)

    right, off = (lambda x: x.double()), (lambda x: x.double() + 1)
    assert made_up(lambda: make(0), exact=right) == 0 and made_up(lambda: make(1), exact=off) == 0
    assert ") wrong" in capsys.readouterr().out
    assert made_up(lambda: make(0), exact=off) == 1


def test_a_wrong_peer_is_no_peer():
    result = made_result("mm_16", 1e-3, eager=2e-3, jax=0.1e-3)
    assert report.ratios(result) == {"eager": 2.0, "jax": 0.1}
    result["engines"]["jax"]["wrong"] = True
    assert report.ratios(result) == {"eager": 2.0} and report.problem(result) is None
    assert report.cells(result)["jax"] == "100 (100) wrong"


def test_differences():
    nan, inf = math.nan, math.inf

    def apart(a, b, chaotic=False):
        return measure.difference([torch.tensor(a)], [torch.tensor(b)], chaotic)

    assert apart([1.0, nan, inf], [1.5, nan, inf]) == (0.5, 1.5)
    assert apart([1.0, 2.0], [1.0, nan])[0] == inf
    assert apart([1.0, inf], [1.0, -inf])[0] == inf
    assert apart([1.0, 2.0], [1.0])[0] == inf
    assert apart([1, 2], [3, 2]) == (2.0, 3.0)
    assert apart([1.0, 2.0], [3.0, 2.0], chaotic=True)[0] == 1.0


def test_the_reference_does_not_need_eager_as_a_peer():
    """What is right comes from eager, also where it is not timed."""
    result = measure.measure(ROWS["add_1k"], ["opaque"], 0.0, 60.0)
    assert set(result["engines"]) == {"opaque"} and not result["engines"]["opaque"]["wrong"]
    assert 0 < result["engines"]["opaque"]["difference"] < 1e-6


def test_integers_are_exact(made_up):
    def make():
        return lambda x: x + (x.device.type == "opaque"), (torch.arange(1000),)

    assert made_up(make) == 1


def test_other_shapes_are_wrong(made_up):
    def make():
        return lambda x: x[: 5 if x.device.type == "opaque" else 6], (torch.rand(10),)

    assert made_up(make) == 1


def test_state_begins_alike_for_each_engine():
    """A step that doubles its argument in place gives every engine the same first result, and leaves the row's argument."""
    arguments = (torch.ones(4),)

    def start(compiled, x):
        return lambda: x.mul_(2).clone()

    result = result_of(lambda: (start, arguments), kind="steps")
    assert not any(cell["wrong"] for cell in result["engines"].values())
    assert arguments[0].tolist() == [1.0] * 4


# ---- failures


def test_a_failure_of_opaque_fails(made_up, capsys):
    def fails(x):
        if x.device.type == "opaque":
            raise RuntimeError("no such kernel")
        return x

    assert made_up(lambda: (fails, (torch.rand(3),))) == 1
    assert "no such kernel" in capsys.readouterr().out


def test_a_first_call_has_a_limit():
    def slow(x):
        if x.device.type == "opaque":
            time.sleep(30)
        return x + 1

    result = result_of(lambda: (slow, (torch.rand(3),)), limit=0.5)
    assert result["notes"] == [["opaque", "failed", "TimeoutError: over 0.5 s"]]
    assert report.cells({**result, "name": "add_1k"})["opaque"] == "over 0.5 s"


def test_below_the_floor_fails(made_up):
    def slow_on_opaque(x):
        for _ in range(1000 if x.device.type == "opaque" else 1):
            y = x + 1
        return y

    make = lambda: (slow_on_opaque, (torch.rand(3),))  # noqa: E731
    assert made_up(make) == 0
    assert made_up(make, floor=0.9) == 1


@pytest.mark.alone
def test_one_thread_does_not_pay_for_other_processes():
    start = machine.processor_seconds(), time.perf_counter()
    time.sleep(0.2)
    assert machine.processor_seconds() - start[0] < 0.1 < time.perf_counter() - start[1]
    start = machine.processor_seconds()
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    assert machine.processor_seconds() - start > 0.02
    assert machine.clock(1) is machine.processor_seconds and machine.clock(2) is time.perf_counter


def test_a_crash_costs_its_row(tmp_path):
    options = run.parse_arguments([])
    options.peaks = {"avx2": None}
    result = run.run_row("no_such_row", "avx2", 1, options, str(tmp_path), lambda text: None)
    assert result["crash"] == "exit status 1: KeyError: 'no_such_row'"
    assert report.cells(result)["to"] == "crashed"


# ---- peers and processors


def test_a_missing_peer_is_skipped_with_a_word(monkeypatch, capsys):
    monkeypatch.setattr(run.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(run.shutil, "which", lambda name: None)
    assert run.available(["eager", "inductor", "jax"]) == ["eager"]
    assert capsys.readouterr().err.splitlines() == [
        "bench: there is no C++ compiler; inductor is skipped",
        "bench: jax is not installed; jax is skipped",
    ]
    monkeypatch.setitem(sys.modules, "jax", None)
    result = measure.measure(ROWS["add_1k"], ["opaque", "eager", "inductor-max", "jax"], 0.0, 60.0)
    assert result["notes"] == [
        ["inductor-max", "skipped", "no weights to freeze"],
        ["jax", "skipped", "not installed"],
    ]
    assert set(result["engines"]) == {"opaque", "eager"}


def test_processors(monkeypatch, capsys):
    monkeypatch.setenv("OPAQUE_CPU", "avx2")
    assert run.processors(None) == ["avx2"]
    assert machine.environment("avx2", 1)["ATEN_CPU_CAPABILITY"] == "avx2"
    assert "OPAQUE_CPU" not in machine.environment("avx512", 1)
    monkeypatch.setattr(machine, "has_avx512", lambda: False)
    with pytest.raises(SystemExit, match="no AVX-512"):
        run.processors(["avx2", "avx512"])
    assert run.thread_counts([1, 10000]) == [1]
    assert "10000 threads" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="nothing is left"):
        run.main(["add_1k", "--threads", "10000", "--cpu", "avx2"])


def test_the_roofline(tmp_path):
    limits = machine.Roofline(machine.compile_peak("avx2", str(tmp_path)), 1)
    peak = limits.flops()
    assert peak > 1e9 and limits.bandwidth(1 << 15) > limits.bandwidth(1 << 28) > 1e8
    assert limits.seconds(Row("r", None)) is None
    assert 0.2 < limits.seconds(Row("r", None, flops=peak)) < 5
    assert limits.seconds(Row("r", None, flops=1.0, bytes=1 << 28)) > 0.001


# ---- the report


def made_result(name, opaque, threads=1, **peers):
    cells = {"opaque": opaque, **peers}
    return {
        "name": name,
        "cpu": "avx2",
        "threads": threads,
        "engines": {
            peer: {"first": 0.5, "min": t, "median": t, "difference": 1e-7, "wrong": False}
            for peer, t in cells.items()
        },
        "notes": [["inductor", "failed", "TimeoutError: over 120 s"]],
        "least": opaque / 4,
    }


def test_the_report_has_losses_first_and_reads_back():
    results = [
        made_result("mm_16", 1e-3, eager=2e-3, jax=3e-3),
        made_result("mm_32", 1e-3, eager=5e-3, jax=0.5e-3),
        made_result("mm_64", 1e-3, threads=2, eager=123.456e-6),
        {"name": "mm_128", "cpu": "avx2", "threads": 1, "crash": "exit status -11: "},
        {"name": "plan_gpt_24_layers", "cpu": "avx2", "threads": 1, "plan": 0.1},
    ]
    sections = report.merged({}, results)
    text = report.render("Some CPU; torch 1", sections)
    machine_line, read = report.parse(text)
    assert machine_line == "Some CPU; torch 1"
    assert report.render(machine_line, read) == text
    assert "Made by `./dev bench --write --vs eager,inductor,jax --cpu avx2 --threads 1,2`." in text
    first = read["avx2, 1 thread"]
    assert [(row["row"], row["ratio"], row["to"]) for row in first] == [
        ("mm_128", "0", "crashed"),
        ("mm_32", "0.500", "jax"),
        ("mm_16", "2.00", "eager"),
    ]
    assert first[1]["inductor"] == "over 120 s" and first[1]["roofline"] == "25%"
    assert read["avx2, 2 threads"][0]["eager"] == "123 (123)"
    assert "3 rows, 2 lost." in text

    again = report.merged(read, [made_result("mm_32", 1e-3, eager=4e-3)])
    assert {row["row"]: row["ratio"] for row in again["avx2, 1 thread"]} == {
        "mm_128": "0",
        "mm_32": "4.00",
        "mm_16": "2.00",
    }


def test_the_results_of_the_tree_read_back():
    with open(run.RESULTS) as file:
        text = file.read()
    line, sections = report.parse(text)
    assert sections and report.render(line, sections) == text
    assert {texts["row"] for part in sections.values() for texts in part} <= set(ROWS)


def test_dev_bench_measures_and_writes(monkeypatch, tmp_path, capsys):
    """A row in a process of its own, from the command line to the file."""
    monkeypatch.setattr(run, "RESULTS", str(tmp_path / "RESULTS.md"))
    status = run.main(
        ["--rows", "add_64k", "--cpu", "avx2", "--seconds", "0.05", "--limit", "100", "--write"]
    )
    out = capsys.readouterr().out.splitlines()
    assert status == 0, out
    assert out[0] == "avx2, 1 thread" and out[2].startswith("add_64k ")
    line, sections = report.parse((tmp_path / "RESULTS.md").read_text())
    assert line.startswith(machine.cpu_name())
    (row,) = sections["avx2, 1 thread"]
    assert row["to"] == "eager" and row["roofline"].endswith("%")


@pytest.mark.parametrize("way", ["captured", "compiled"])
def test_ways_of_running_here(way, monkeypatch, capsys):
    made = []
    monkeypatch.setattr(
        run, "run_row", lambda *given, _run=run.run_row: made.append(_run(*given)) or made[-1]
    )
    run.main(["softmax_12x128x128", "--way", way, "--cpu", "avx2", "--seconds", "0.05"])
    (result,) = made
    assert not result["engines"]["opaque"]["wrong"] and not result["notes"]
    with pytest.raises(SystemExit):
        run.main(["softmax_12x128x128", "--way", way, "--write"])
    assert "--write goes with no --way" in capsys.readouterr().err


def test_writing_keeps_what_was_measured_on_the_same_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(run, "RESULTS", str(tmp_path / "RESULTS.md"))
    names = []
    for name, processor in (("mm_16", "One"), ("mm_32", "One"), ("mm_64", "Other")):
        monkeypatch.setattr(machine, "cpu_name", lambda: processor)
        run.write([made_result(name, 1e-3, eager=2e-3)], ["eager"])
        _, sections = report.parse((tmp_path / "RESULTS.md").read_text())
        names.append([row["row"] for row in sections["avx2, 1 thread"]])
    assert names == [["mm_16"], ["mm_16", "mm_32"], ["mm_64"]]


def test_every_engine_is_offered():
    assert set(engines.ENGINES) == {"opaque", *engines.PEERS}
