"""What explain() prints."""

import pytest
import torch
import torch_opaque
from torch_opaque.summary import fold, pattern, table

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
        int(line.split("%")[0].split()[-1]) for line in text.split("\n\n")[0].splitlines()[2:]
    ]
    assert shares == sorted(shares, reverse=True) and 90 <= sum(shares) <= 110


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
    assert (
        lines[0].startswith("  matmul -> softmax x 2: after_matmul") and "save 295 kB" in lines[0]
    )
    assert len(lines) > 2 and "would save" in lines[-1]
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
