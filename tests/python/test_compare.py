"""compare(): what it times, what it compares, and that everything is put back."""

import csv
import io
import json
import math
import random
import statistics
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import torch_opaque
from torch import nn
from torch_opaque import _C, compare, settings, turns
from torch_opaque.comparison import Comparison
from torch_opaque.numerics import distances
from torch_opaque.turns import Spread
from torch_opaque.twin import Twin

MODES = {"fused": nullcontext, "unfused": torch_opaque.unfused, "eager": torch_opaque.eager}
DEVICE = "opaque"
scale = torch.tensor([1.0, 2.0, 3.0], device="opaque")


def quick(fn, *args, vs=("eager",), **kwargs):
    return compare(fn, *args, vs=vs, repeat=1, show=False, **kwargs)


def training(optimizer=torch.optim.Adam):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 8))
    model.to("opaque")
    updates = optimizer(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(updates, 1)
    x, labels = torch.randn(32, 64).to("opaque"), torch.randint(0, 8, (32,)).to("opaque")
    torch.opaque.synchronize()

    def step():
        updates.zero_grad()
        loss = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        updates.step()
        schedule.step()
        return loss

    return model, updates, schedule, step


# ---- times


def hand(f, mode, count):
    """A loop as anyone would write it."""
    with MODES[mode]():
        y = f()
        begin = time.process_time()
        for _ in range(count):
            y = f()
            torch.opaque.synchronize()
        seconds = time.process_time() - begin
        del y
        return seconds / count


def functions():
    x = torch.randn(256, 512, device="opaque")
    model, updates, _, _ = training()

    def step():
        updates.zero_grad()
        loss = model[3](model[0](x[:, :64])).square().mean()
        loss.backward()
        updates.step()
        return loss

    def forward():
        with torch.no_grad():
            return model(x[:, :64])

    return {
        "map": lambda: torch.relu(x * 2 + 1) - x,
        "softmax": lambda: torch.softmax(x, -1),
        "forward": forward,
        "training": step,
    }


@pytest.fixture
def one_thread():
    """A thread that waits for others runs, and how long is chance."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.alone
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", functions())
def test_times_are_those_of_a_loop_by_hand(name, mode, monkeypatch, one_thread):
    """With many Python objects alive, which the garbage collector visits. By the time of this process, and by the fastest turn of each,
    because other load only adds: what a comparison adds to each call would be in its fastest turn too. More rounds where they differ,
    within reason: each must find a moment without other load."""
    monkeypatch.setattr(turns, "time", SimpleNamespace(perf_counter=time.process_time))
    f, compared, by_hand = functions()[name], [], []
    alive, beside = [[i] for i in range(100_000)], training()
    beside[3]()
    vs = () if mode == "fused" else (mode,)
    count = max(1, int(1e-3 / min(hand(f, mode, 3) for _ in range(4))))

    def turn():
        blocks = [hand(f, mode, count) for _ in range(20)]
        return statistics.median(blocks)

    while len(compared) < 120 and (
        len(compared) < 3 or not 0.95 <= min(compared) / min(by_hand) <= 1.05
    ):
        by_hand += [turn(), turn(), turn()]
        row = compare(f, vs=vs, repeat=6, reference=False, show=False)[mode]
        compared.append(row.low)  # of six turns the fastest
        by_hand += [turn(), turn(), turn()]
    assert 0.95 <= min(compared) / min(by_hand) <= 1.05, (compared, by_hand)
    assert alive and beside


def test_nothing_is_noted_while_a_loop_is_timed():
    """A journal would send in-place ops the long way."""
    depths, x = [], torch.ones(4, device="opaque")

    def f():
        depths.append(_C.journal_depth())
        return x.add_(1)

    quick(f, vs=("eager", "unfused"), reference=False)
    assert not any(depths) and len(depths) > 6 and x.tolist() == [1] * 4


@pytest.mark.parametrize("count", [1, 3, 6, 10, 30])
def test_the_interval_holds_the_median(count):
    """Of 95 % confidence from 6 samples on: counted over many draws of a known distribution."""
    draw, inside, rounds = random.Random(1), 0, 1000
    for _ in range(rounds):
        spread = Spread.of([draw.expovariate(1) for _ in range(count)])
        assert spread.low <= spread.median <= spread.high
        inside += spread.low <= math.log(2) <= spread.high
    assert inside >= 0.935 * rounds or count < 6
    if count == 30:
        assert inside < 0.99 * rounds


def test_rows_have_times_intervals_and_ratios():
    x = torch.randn(64, 64, device="opaque")
    result = compare(lambda: torch.tanh(x) * 2, repeat=6, show=False)
    for row in result.rows:
        assert 0 < row.low <= row.seconds <= row.high
        assert row.ratio_low <= row.ratio <= row.ratio_high
        assert row.warm_up_seconds > 0 and row.bytes_peak >= 64 * 64 * 4
    fused = result["fused"]
    assert (fused.ratio, fused.ratio_low, fused.ratio_high) == (1, 1, 1)
    assert fused.kernels == 1 and fused.bytes == 2 * 64 * 64 * 4 and result["unfused"].kernels == 2
    assert result["unfused"].bytes == 2 * fused.bytes
    with pytest.raises(KeyError, match="there are eager, unfused, fused"):
        result["cpu"]


# ---- calls that are new


def test_first_calls_and_new_shapes_run_in_pieces():
    _, _, _, step = training()
    step()
    result = quick(step, vs=("first call", "new shape", "unfused"), reference=False)
    fused, first, new = (result[way] for way in ("fused", "first call", "new shape"))
    assert first.same_bits and new.same_bits and len(first.outputs) == len(fused.outputs) > 5
    assert first.kernels == new.kernels > 1.5 * fused.kernels
    assert first.compile_seconds > 2 * new.compile_seconds > 0
    assert first.seconds > new.seconds > 0
    with torch_opaque.planned():  # the modes are the caller's
        planned = quick(step, vs="new shape", reference=False)["new shape"]
    assert planned.kernels == fused.kernels and planned.same_bits


@pytest.mark.parametrize(("way", "code"), [("first call", False), ("new shape", True)])
def test_code_that_a_call_finds(way, code):
    x, found = torch.randn(4, 6, device="opaque"), []

    def f():
        if not _C.get_modes() & settings.PLANNED:  # else it is the fused way
            found.append(_C.stats()["kernels_kept"] > 0)
        return (x * 2).sum(0) - x[0]

    quick(f, vs=way, reference=False)
    assert len(found) > 6 and set(found) == {code}


def test_forgetting_is_no_part_of_the_time(monkeypatch):
    forget, x = _C.forget, torch.randn(4, 6, device="opaque")

    def slowly(code):
        time.sleep(0.1)
        forget(code)

    monkeypatch.setattr(_C, "forget", slowly)
    row = quick(lambda: x + 1, vs="new shape", reference=False)["new shape"]
    assert 0 < row.seconds < 0.1 and row.warm_up_seconds < 0.3


# ---- everything as before


def test_all_that_python_holds_is_put_back():
    model, updates, schedule, step = training()
    step()
    model.dropped = nn.Dropout(0.5)
    model.register_buffer("count", torch.zeros(2, device="opaque"))
    frozen = model.dropped.register_buffer("mask", None)
    torch.opaque.synchronize()

    def everything():
        tensors = [*model.state_dict().values(), *(p.grad for p in model.parameters())]
        tensors += [t for s in updates.state.values() for t in s.values()]
        tensors += [torch.opaque.get_rng_state(), torch.get_rng_state()]
        numbers = schedule.last_epoch, updates.param_groups[0]["lr"], random.getstate()
        return [t.detach().cpu().clone() for t in tensors], numbers, model.dropped.training

    def f():
        loss = step()
        model.dropped.eval()
        model.count = model.count + random.random()  # another tensor
        model[0].bias.data[3] = 7
        return loss + torch.rand((), device="opaque") + model.count.sum()

    before, buffer = everything(), model.count
    result = quick(f, vs=("eager", "unfused", "cpu"))
    after = everything()
    assert all(torch.equal(a, b) for a, b in zip(before[0], after[0])) and len(before[0]) > 20
    assert before[1:] == after[1:] and model.count is buffer and frozen is None
    assert result["eager"].same_bits and result["unfused"].same_bits
    assert "random numbers" in result.text() and result["cpu"].same_bits is None


def test_a_view_a_resize_and_a_part_are_put_back():
    whole = torch.arange(12.0, device="opaque").reshape(3, 4)
    column, small = whole[:, 1], torch.ones(2, device="opaque")

    def f():
        column.mul_(2)
        whole[2] = -1
        small.resize_(8).fill_(3)
        small.resize_(2)
        return whole.sum()

    result = quick(f, vs=("eager", "unfused"))
    assert whole.tolist() == torch.arange(12.0).reshape(3, 4).tolist()
    assert column.tolist() == [1, 5, 9] and small.tolist() == [1, 1]
    assert {o.name for o in result["fused"].outputs} >= {"returned", "column"}


def test_a_raising_function_is_undone():
    x, y = torch.ones(3, device="opaque"), torch.ones(3, device="opaque")

    def f():
        x.add_(1)
        y.add_(1)
        if len(calls) > 3:
            raise KeyError("mine")
        calls.append(1)
        return x

    calls = []
    with pytest.raises(KeyError, match="mine"):
        quick(f)
    assert x.tolist() == y.tolist() == [1, 1, 1]


# ---- values


def test_outputs_have_names():
    model, _, _, step = training(torch.optim.SGD)
    result = quick(lambda: {"loss": step(), "more": [model[0].bias * 2]}, vs=("unfused",))
    names = {o.name for o in result["unfused"].outputs}
    parameters = {name for name, _ in model.named_parameters()}
    assert names >= {"returned['loss']", "returned['more'][0]", "1.running_mean", *parameters}
    assert names >= {f"{name}.grad" for name in parameters}
    assert all(o.same_bits and o.difference == 0 for o in result["unfused"].outputs)


def test_errors_against_f64():
    x = torch.randn(64, 300, device="opaque")
    w = torch.randn(300, 5, device="opaque")
    result = quick(lambda: torch.softmax(x @ w, -1), vs=("cpu",))
    exact = torch.softmax(x.cpu().double() @ w.cpu().double(), -1)
    for mode, value in (
        ("fused", torch.softmax(x @ w, -1).cpu()),
        ("cpu", torch.softmax(x.cpu() @ w.cpu(), -1)),
    ):
        (output,) = result[mode].outputs
        assert output.error == (value.double() - exact).abs().max().item() > 0
        assert output.error_relative == pytest.approx(output.error / exact.max().item())
        assert output.error_ulps > 0.01
    assert quick(lambda: x @ w, reference=False)["fused"].outputs[0].error is None


@pytest.mark.parametrize(
    ("a", "b", "want"),
    [
        ([1.0, 2.0], [1.0, 2.0], (0, 0, 0)),
        ([1.0, 1 + 2**-23], [1.0, 1.0], (2**-23, 2**-23, 1)),
        ([2.0, 1 - 2**-24], [2.0, 1.0], (2**-24, 2**-25, 0.5)),
        ([0.0, 2**-149], [0.0, 0.0], (2**-149, 2**-149, 1)),
        ([math.nan, math.inf], [math.nan, math.inf], (0, 0, 0)),
        ([3, 5], [3, 9], (4, 4 / 9, 4)),
        ([], [], (0, 0, 0)),
        ([1.0], [1.0, 2.0], (math.inf, math.inf, None)),
    ],
)
def test_distances(a, b, want):
    assert distances(torch.tensor(a), torch.tensor(b)) == want


def test_one_nan_is_a_difference():
    absolute, _, ulps = distances(torch.tensor([math.nan, 1.0]), torch.tensor([1.0, 1.0]))
    assert math.isnan(absolute) and math.isnan(ulps)


class Halves(nn.Module):
    """Of its middle layer, the first product is rounded to f16 only where it is stored."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(self.Layer(i == 1) for i in range(3))

    class Layer(nn.Module):
        def __init__(self, mixes):
            super().__init__()
            self.mixes = mixes

        def forward(self, h):
            return (h * 1.7 - h * h) * 0.3 + h if self.mixes else -h

    def forward(self, h):
        for layer in self.layers:
            h = layer(h)
        return h.relu()


def test_the_first_difference_has_a_name():
    h = torch.randn(64, 64).half().to("opaque")
    model = Halves()
    result = quick(model, h, vs=("unfused", "eager"))
    line = Halves.Layer.forward.__code__.co_firstlineno + 1
    for mode in ("unfused", "eager"):
        first = result[mode].first_difference
        assert not result[mode].same_bits and result[mode].max_difference > 0
        assert "= sub f16[64,64]" in first.node and first.line == f"test_compare.py:{line}"
        assert first.module.endswith("layers.1") and "sub" in first.kernel_ops and first.kernel
        assert first.difference > 0
    assert f"differs from fused first at {first.text()}" in result.text()
    assert result["fused"].first_difference is None
    assert quick(lambda: model(h.float()))["eager"].first_difference is None


# ---- the same function on the CPU


@torch.enable_grad()
def scaled(x):
    """What it needs are globals: a tensor, the device's name, another function."""
    return another(x) * torch.ones(3, device=DEVICE)


def another(x):
    return x * scale + torch.zeros(3, device="opaque")


def test_copies_reach_all_that_a_function_names(monkeypatch):
    x = torch.tensor([[1.0, 2, 3]], device="opaque")
    default = torch.tensor([1.0, 1, 1], device="opaque")
    kept = [lambda: scaled(x[0]), {"x": x}]

    def f(y, *, by=default):
        return kept[0]() + kept[1]["x"][0] + y + by

    twin = Twin()
    copied = twin(f)(twin(x))
    assert copied.device.type == "cpu" and copied.tolist() == f(x).tolist() == [[4, 9, 16]]
    assert scale.device.type == "opaque" and not twin.failed


def test_copies_share_memory_as_the_tensors_do():
    model = nn.Linear(3, 3).to("opaque")
    model.tied, model.view = model.weight, model.weight.data[1]
    model.weight.grad = torch.ones(3, 3, device="opaque")
    views = [torch.tensor([1 + 2j], device="opaque").conj(), model.weight.t()]
    twin = Twin()
    other, copies = twin(model), twin(views)
    assert other.tied is other.weight and isinstance(other.weight, nn.Parameter)
    other.weight.data.fill_(5)
    assert other.view.tolist() == [5, 5, 5] and other.weight.grad.tolist() == [[1] * 3] * 3
    assert copies[0].tolist() == [1 - 2j] and copies[1].tolist() == [[5] * 3] * 3
    assert model.weight.device.type == "opaque" and (model.weight != 5).any()
    double = Twin(double=True)
    assert {t.dtype for t in double([views[0], model.weight])} == {
        torch.complex128,
        torch.float64,
    }


def test_a_training_step_on_the_cpu():
    model, _, _, step = training()
    step()
    cpu = quick(step, vs=("cpu",))["cpu"]
    assert cpu.kernels is None and cpu.compile_seconds == 0
    found = {o.name: o for o in cpu.outputs}
    assert found["returned"].ulps < 100 and found["3.weight"].relative < 1e-4
    assert found["3.weight.grad"].relative < 1e-4


def test_what_stays_on_the_device_is_said():
    class Holder:
        pass

    x = torch.ones(3, device="opaque")
    Holder.tensor = x  # classes are not copied

    def f(x):
        return Holder.tensor * 2 + x

    with pytest.raises(TypeError, match="vs='cpu'.*does not run on CPU copies"):
        quick(f, x, vs=("cpu",))
    assert "no errors against f64" in quick(f, x).text()
    assert (x == 1).all()


def test_inductor():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to("opaque")
    x = torch.randn(4, 8, device="opaque")
    with torch.no_grad():
        row = quick(model, x, vs=("inductor",))["inductor"]
    assert row.compile_seconds > 0.1 and row.seconds < 0.01 and row.outputs[0].relative < 1e-5


# ---- arguments


def test_arguments_on_the_cpu_are_copied_with_a_word():
    w = torch.ones(3, device="opaque")
    with pytest.warns(UserWarning, match="compare\\(\\): x, more\\['y'\\] on the CPU"):
        result = quick(
            lambda x, number, more: x * w * number + more["y"],
            torch.ones(3),
            torch.tensor(2.0),
            {"y": torch.ones(3)},
        )
    assert result["eager"].same_bits


def test_a_function_of_the_cpu_is_refused():
    model = nn.Linear(3, 3)
    with pytest.raises(TypeError, match="computed nothing on device opaque"):
        quick(lambda: model(torch.ones(3)))


def test_wrong_arguments():
    x = torch.ones(2, device="opaque")
    with pytest.raises(
        ValueError, match="vs='fast': expected some of eager, unfused, first call, new shape, cpu"
    ):
        compare(lambda: x * 2, vs="fast")
    with pytest.raises(ValueError, match="repeat=0"):
        compare(lambda: x * 2, repeat=0)
    with pytest.raises(TypeError, match="takes a function, got Tensor"):
        compare(x)


# ---- documents


def test_documents_say_what_the_text_says():
    h = torch.randn(64, 64).half().to("opaque")
    result = quick(Halves(), h, vs=("unfused", "cpu"))
    again = Comparison.from_json(result.to_json())
    assert again == result and again.text() == result.text()
    document = json.loads(result.to_json())
    assert document["schema"] == "opaque.comparison" and document["version"] == 1
    assert document["rows"][0]["first_difference"]["line"].startswith("test_compare.py:")
    rows = list(csv.DictReader(io.StringIO(result.to_csv())))
    assert [r["mode"] for r in rows] == ["unfused", "cpu", "fused"]
    assert float(rows[2]["seconds"]) == result["fused"].seconds and rows[1]["kernels"] == ""
    lines = result.to_markdown().splitlines()
    assert lines[1].startswith("| --- |") and len(lines) == 5 and "| cpu |" in lines[3]
    result.rows[0].outputs[0].difference = math.inf
    strict = json.loads(result.to_json(), parse_constant=pytest.fail)
    assert strict["rows"][0]["outputs"][0]["difference"] == "inf"
    assert Comparison.from_json(json.dumps(strict | {"later": 1})) == result
    strict["rows"][0]["seconds"] = "soon"
    with pytest.raises(ValueError):
        Comparison.from_json(json.dumps(strict))
    for text in ("{}", "[]", '{"schema": "opaque.comparison", "version": 1}', "nonsense"):
        with pytest.raises(ValueError):
            Comparison.from_json(text)


def test_equal_layers_are_one_row():
    layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6))).to("opaque")
    x = torch.randn(2, 4, device="opaque")
    text = quick(lambda: layers(x).sum().backward(), vs=("cpu",)).text()
    assert "*.weight.grad x 6" in text and len(text.splitlines()) < 20


def test_progress_is_for_terminals(run_warm):
    program = """
import os, pty, sys, torch, torch_opaque
x = torch.ones(3, device="opaque")
torch_opaque.compare(lambda: x * 2, repeat=1, show=False)
parent, child = pty.openpty()
sys.stderr = os.fdopen(child, "w")
for rich in (True, False):
    if not rich:
        sys.modules["rich"] = None
    torch_opaque.compare(lambda: x * 2, repeat=1, show=False)
    sys.stderr.flush()
    print(os.read(parent, 1 << 16).count(b"timing fused, turn 1 of 1"))
"""
    result = run_warm(program, TERM="xterm")
    assert all(int(count) > 0 for count in result.stdout.split()) and "timing" not in result.stderr
