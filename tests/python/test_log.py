"""The log: topics, levels and the file; and names of kernels for debuggers."""

import os
import re
import shutil
import subprocess

import pytest
import torch
import torch_opaque
from torch_opaque import _C, settings


@pytest.fixture
def logged(tmp_path):
    """Runs a function with topics of the log on; returns the lines."""

    def run(log: str, function) -> list:
        path = tmp_path / "log.txt"
        path.write_text("")
        _C.set_log_file(str(path))
        try:
            with torch.backends.opaque.flags(log=log):
                function()
        finally:
            _C.set_log_file("")
        lines = path.read_text().splitlines()
        assert all(line.startswith("[opaque] ") for line in lines)
        return [line.removeprefix("[opaque] ") for line in lines]

    return run


def fresh(rows: int):
    """A program whose plan and kernels are new for each number of rows."""

    def run():
        x = torch.ones(rows, 40, device="opaque")
        for _ in range(rows):  # as many ops: another kernel
            x = torch.tanh(x * 1.5)
        x.sum(0).cpu()

    return run


def test_topics_are_those_of_the_core():
    assert list(settings.LOG_TOPICS) == _C.log_topics()


@pytest.mark.usefixtures("planned")
def test_a_run_is_a_line(logged):
    (line,) = logged("flush", fresh(3))
    expected = r"run \(copy_to_host\) at test_log.py:\d+: \d+ kernels, \d+ compiled, [\d.]+ ms"
    assert re.fullmatch(expected, line)


def test_launches_at_level_debug(logged):
    run = fresh(4)
    run()
    torch_opaque.reset_stats()
    lines = logged("flush:debug", run)
    launches = [line for line in lines if line.startswith("launch: ")]
    assert len(launches) == torch_opaque.stats()["kernels_run"] == len(lines) - 1
    numbers = [re.search(r"(\d+) bytes read, (\d+) written", line) for line in launches]
    stats = torch_opaque.stats()
    assert sum(int(n[1]) for n in numbers) == stats["bytes_read"]
    assert sum(int(n[2]) for n in numbers) == stats["bytes_written"]


@pytest.mark.usefixtures("planned")
def test_plans_and_kernels_are_told_once(logged):
    run = fresh(5)
    lines = logged("plan,compile", run)
    plans = [line for line in lines if line.startswith("plan: ")]
    kernels = [line for line in lines if line.startswith("compile: ")]
    assert len(plans) == torch_opaque.stats()["plans_built"] == 1
    assert len(kernels) == torch_opaque.stats()["kernels_compiled"] > 0
    assert re.match(r"plan: \d+ kernels in \d+ launches, \d+ compiled, ", plans[0])
    assert re.fullmatch(r"compile: \w*tanh\w*_\d+, [\d.]+ ms", kernels[0])
    assert logged("plan,compile", run) == []
    assert [line.partition(",")[0] for line in logged("plan:debug", run)] == ["plan: reused"]


def test_code_that_is_there_is_told_at_level_debug(logged):
    fresh(6)()
    with torch_opaque.unfused():  # another plan
        lines = logged("compile:debug", fresh(7))
    assert any(line.endswith(" is there already") for line in lines)


@pytest.mark.usefixtures("planned")
def test_edges_and_reasons(logged):
    w = torch.ones(64, 64, device="opaque")
    torch.opaque.synchronize()

    def model():
        return torch.softmax(w @ w, -1) @ w

    edges = torch_opaque.graph(model, stage="fused").unfused
    line, *told = logged("fusion:debug", lambda: model().cpu())
    assert re.match(
        rf"fusion: \d+ nodes became \d+ kernels; {len(edges)} edges are not fused", line
    )
    assert len(told) == len(edges)
    for edge, text in zip(edges, told):
        assert f": {edge.refusal} ({edge.reason}); {edge.bytes} bytes, test_log.py:" in text
    with torch_opaque.unfused():
        (line,) = logged("fusion", lambda: model().cpu())
    assert line.startswith("fusion: ")


def test_fallbacks_name_op_and_line(logged):
    def run():
        torch.linalg.eigvals(torch.eye(3, device="opaque")).cpu()

    assert any(
        re.fullmatch(r"fallback: aten::_linalg_eig\w* at test_log.py:\d+", line)
        for line in logged("fallback", run)
    )


def test_the_first_fallback_is_told_with_its_line(run_warm):
    text = "import torch, torch_opaque\nx = torch.randn(4).to('opaque')\nfor _ in range(2):\n    x.digamma()"
    lines = run_warm(text).stderr.splitlines()
    assert [
        re.match(r"\[opaque\] \S+:4: aten::digamma has no native", line) is not None
        for line in lines
    ] == [True]


def test_memory_of_the_system(logged):
    def run():
        x = torch.ones(3 << 20, device="opaque")
        torch.opaque.synchronize()
        del x
        torch.opaque.empty_cache()

    torch.opaque.empty_cache()
    lines = logged("memory", run)
    sizes = [int(n) for line in lines for n in re.findall(r"took (\d+) bytes", line)]
    back = [int(n) for line in lines for n in re.findall(r"gave (\d+) bytes", line)]
    assert any(size >= 12 << 20 for size in sizes) and sorted(sizes) == sorted(back)
    made = [
        line
        for line in logged("memory:debug", run)
        if "memory: made a buffer of 12582912 bytes" in line
    ]
    assert len(made) == 1


def test_settings_in_python():
    backend = torch.backends.opaque
    assert backend.log == "" and not backend.verbose
    with backend.flags(log="plan,flush:debug"):
        assert backend.verbose and set(backend.log.split(",")) == {"flush:debug", "plan:info"}
        backend.verbose = False
        assert backend.log == "plan:info"
        for wrong in ("fast", "flush:loud", "flush;plan"):
            with pytest.raises(ValueError, match="expected"):
                backend.log = wrong
        assert backend.log == "plan:info"
    assert backend.log == ""
    with pytest.raises(ValueError, match="topic"):
        _C.set_log({"fast": "info"})
    with pytest.raises(ValueError, match="level"):
        _C.set_log({"flush": "loud"})
    with pytest.raises(ValueError, match="cannot write the log"):
        _C.set_log_file("/no such folder/log")
    assert backend.log == ""


PROGRAM = 'import torch; torch.ones(3, device="opaque").add(1).tolist()'


def test_from_the_environment(run_warm, tmp_path):
    path = tmp_path / "log.txt"
    result = run_warm(PROGRAM, OPAQUE_LOG="flush,plan:debug", OPAQUE_LOG_FILE=str(path))
    assert "[opaque]" not in result.stderr
    lines = path.read_text().splitlines()
    assert [line.split()[1] for line in lines] == ["plan:", "run"]
    assert "[opaque] run (" in run_warm(PROGRAM, OPAQUE_LOG="flush").stderr


@pytest.mark.parametrize(
    "name, value", [("OPAQUE_LOG", "flush:loud"), ("OPAQUE_LOG_FILE", "/no such folder/log")]
)
def test_wrong_settings_are_told(run_python, name, value):
    result = run_python("import torch; print(hasattr(torch, 'opaque'))", **{name: value})
    assert result.stdout.split() == ["False"] and f"{name}={value}: " in result.stderr


# ---- perf and gdb


def test_map_for_perf(run_warm):
    text = """
import os, torch
x = torch.ones(50, device="opaque")
torch.tanh(x * 3 + 1).tolist()
path = f"/tmp/perf-{os.getpid()}.map"
print(open(path).read() if os.path.exists(path) else "")
if os.path.exists(path):
    os.remove(path)
"""
    lines = run_warm(text, OPAQUE_PERF_MAP="1", OPAQUE_MODE="planned").stdout.splitlines()
    (kernel,) = [line for line in lines if "tanh" in line]
    start, size, name = kernel.split()
    assert re.fullmatch(r"mul_add_tanh_\d+_\d+", name)
    assert int(start, 16) > 4096 and 16 < int(size, 16) < 1 << 20
    assert run_warm(text).stdout.strip() == ""


GRAPH = """graph @g {
  %0 = input f32[64]
  %1 = mul f32[64] %0, %0
  %2 = tanh f32[64] %1
  output %2
}
"""


@pytest.mark.skipif(not shutil.which("gdb"), reason="there is no gdb")
def test_gdb_knows_kernels(root, tmp_path):
    """A breakpoint on a kernel by its name, and its name in the stack."""
    numpy = pytest.importorskip("numpy")
    (tmp_path / "graph.ir").write_text(GRAPH)
    numpy.save(tmp_path / "input0.npy", numpy.ones(64, dtype="float32"))
    commands = [
        "set confirm off",
        "set breakpoint pending on",
        "break mul_tanh_0_0",
        "run",
        "backtrace 3",
    ]
    program = [os.path.join(root, "build", "opq-opt"), "--run", str(tmp_path)]

    def backtrace(**environment):
        return subprocess.run(
            ["gdb", "-nx", "-batch", *(f"-ex={c}" for c in commands), "--args", *program],
            env={**os.environ, "DEBUGINFOD_URLS": "", **environment},
            capture_output=True,
            text=True,
            timeout=120,
        ).stdout

    text = backtrace(OPAQUE_GDB_JIT="1")
    if "ptrace" in text or "not permitted" in text:
        pytest.skip("gdb may not trace here")
    assert re.search(r"#0 .*\bmul_tanh_0_0 \(", text) and re.search(
        r"#1 .*\bopq_run_code\b", text
    ), text
    assert not re.search(r"^#0 ", backtrace(), re.M)
