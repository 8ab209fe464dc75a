"""What explain() prints."""

import random

import pytest
import torch
import torch_opaque
from torch_opaque.samples import Samples
from torch_opaque.summary import by_time, fold, pattern, table

D = "opaque"


@pytest.mark.parametrize(
    "names, folded",
    [
        (["h.0.attn", "h.1.attn"], "h.*.attn"),
        (["h.0.attn"], "h.0.attn"),
        (["h.0.attn", "h.0.mlp", "h.1.mlp"], "h.*.*"),
        (["a", "a.b"], "*"),
        (["", ""], ""),
    ],
)
def test_fold(names, folded):
    assert fold(names) == folded


def test_pattern():
    assert pattern("h.11.attn.c_attn") == "h.*.attn.c_attn" and pattern("conv1") == "conv1"


def test_a_column_without_words_is_left_out():
    assert table(("a", "b", "c"), [("1", "", "2")]).splitlines() == ["a  c", "----", "1  2"]


@pytest.fixture(scope="module")
def layers():
    layer = torch.nn.TransformerEncoderLayer(
        64, 4, 128, dropout=0.0, batch_first=True, norm_first=True
    )
    return torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).to(D)


def test_layers_are_shown_once(layers):
    x = torch.randn(2, 32, 64, device=D)
    torch.opaque.synchronize()
    result = torch_opaque.explain(layers, x, show=False)
    text = result.text()
    assert len(text.splitlines()) <= 60
    assert " x 12 " in text and "layers.*.linear1" in text and "layers.3." not in text
    assert sum(k["rows"] for k in result.kernels) == len(result.graph.kernels)
    assert all(k["module"].startswith("layers.") for k in result.kernels if "matmul" in k["name"])
    shares = [
        int(line.split("%")[1].split()[-1]) for line in text.split("\n\n")[0].splitlines()[2:]
    ]  # behind the spread; what the runs do not tell apart stands by its bytes
    assert 2 * shares[0] >= max(shares) and 90 <= sum(shares) <= 110


def test_a_training_step_fits_on_a_screen(layers):
    x = torch.randn(2, 32, 64, device=D)
    optimizer = torch.optim.AdamW(layers.parameters())

    def step():
        layers(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    torch.opaque.synchronize()
    text = torch_opaque.explain(step, show=False).text()
    assert len(text.splitlines()) <= 60 and "more rows" in text


def test_edges_are_sorted_by_what_they_cost():
    x, w = torch.randn(64, 64, device=D), torch.randn(64, 512, device=D)
    torch.opaque.synchronize()
    result = torch_opaque.explain(
        lambda: torch.softmax(x @ w, -1).sum(0) @ w.T + torch.softmax(x @ x, -1)[0], show=False
    )
    lines = result.text().partition("not fused:\n")[2].partition("\n\n")[0].splitlines()
    products = {e.producer.id: e for e in result.unfused if e.producer.op == "matmul"}.values()
    assert sorted(e.bytes for e in products) == [64 * 64 * 4, 64 * 512 * 4]
    assert all(e.saves == 2 * e.bytes and e.ends == ("matmul", "softmax") for e in products)
    (product,) = [
        line for line in lines if line.startswith("  matmul -> softmax x 2: after_matmul")
    ]
    assert "save 295 kB" in product and "axes" in lines[0]  # what can be changed comes first
    assert len(lines) > 2
    held = torch_opaque.explain(lambda: (h := x @ w, torch.softmax(h, -1)), show=False).unfused
    assert all(e.saves == e.bytes for e in held)


def test_unfused_runs_say_that_grouping_is_off():
    x = torch.randn(8, device=D)
    with torch_opaque.unfused():
        text = torch_opaque.explain(lambda: (x + 1).exp() * 2, show=False).text()
    assert "grouping is off" in text and "not fused" not in text


def test_lines_are_those_of_the_program_that_runs():
    """Two programs of one plan."""
    x = torch.randn(9, device=D)
    torch.opaque.synchronize()
    first = torch_opaque.explain(x * 3 - 7, show=False).kernels[0]["lines"]
    second = torch_opaque.explain(x * 3 - 7, show=False).kernels[0]["lines"]
    assert first != second


# ---- times of several runs


def launches(*seconds) -> list:
    return [
        {
            "name": f"k{i}",
            "shape": "f32[8]",
            "kind": "map",
            "seconds": s,
            "busy": s,
            "bytes_read": i,
            "bytes_written": 0,
            "flops": 0,
        }
        for i, s in enumerate(seconds)
    ]


def test_times_are_medians_of_the_warm_runs_unless_most_are_cold():
    found = Samples()
    found.add(launches(9.0, 9.0), True)
    for seconds in (1.0, 1.1, 0.9, 1.0, 1.0):
        found.add(launches(seconds, 2.0), False)
    found.runs[3][0] = (1.0, 50.0)
    shown = launches(0.0, 0.0)
    assert found.warm and found.apply(shown) == 1  # run that was interrupted
    assert [k["seconds"] for k in shown] == [1.0, 2.0] and shown[0]["worst"] == 50.0
    assert shown[0]["low"] <= 1.0 <= shown[0]["high"] < 2
    for _ in range(7):
        found.add(launches(3.0, 3.0), True)
    assert not found.warm and found.each == 6.0 and found.times == 13


def test_on_a_busy_machine_times_are_those_of_work():
    """Each launch was interrupted in more runs than not, and each time by another while."""
    draw, found, shown = random.Random(1), Samples(), launches(0.0, 0.0, 0.0)
    clean = (1e-3, 8e-4, 1e-5)
    for _ in range(6):
        run = launches(*clean)
        for launch in run:
            launch["seconds"] += draw.choice([0, 1e-3, 3e-3, 7e-3])
        found.add(run, False)
    assert found.apply(shown) == 6 and found.each == pytest.approx(sum(clean))
    assert tuple(k["seconds"] for k in shown) == clean and shown[0]["worst"] >= 4e-3


def test_an_extern_call_that_took_several_times_as_long_was_interrupted():
    found, shown = Samples(), [launches(0.0)[0] | {"kind": "extern"}]
    for seconds in (1e-3, 1.1e-3, 9e-3, 8e-3, 1e-3):
        (launch,) = launches(seconds)
        found.add([launch | {"kind": "extern", "busy": 1e-6}], False)
    assert found.apply(shown) == 2 and shown[0]["seconds"] == 1e-3 and shown[0]["worst"] == 9e-3


def test_what_the_runs_do_not_tell_apart_stands_by_its_bytes():
    orders = set()
    for noise in (0.95, 1.0, 1.05):
        groups = [[k] for k in launches(1.0 * noise, 1.0, 5.0, 1.02 / noise)]
        orders.add(tuple(g[0]["name"] for g in by_time(groups)))
    assert orders == {("k2", "k3", "k1", "k0")}
