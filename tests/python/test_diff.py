"""diff(): what two graphs have otherwise than each other."""

import json
import time

import pytest
import torch
import torch_opaque
from torch import nn
from torch_opaque import diff, graph


class Block(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.norm, self.up, self.down, self.act = (
            nn.LayerNorm(32),
            nn.Linear(32, 64),
            nn.Linear(64, 32),
            act,
        )

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))


def net(layers, act=nn.functional.relu):
    torch.manual_seed(0)
    blocks = nn.Sequential(*(Block(act) for _ in range(layers))).to("opaque")
    torch.opaque.synchronize()
    return blocks


@pytest.fixture
def x():
    t = torch.randn(4, 32, device="opaque")
    torch.opaque.synchronize()
    return t


@pytest.mark.parametrize("stage", ["recorded", "simplified", "fused", "kernels"])
def test_equal_graphs_do_not_differ(x, stage):
    model = net(2)
    found = diff(graph(model, x, stage=stage), graph(model, x, stage=stage))
    assert not found and found.first is None and str(found) == "no difference"
    same = graph(model, x, stage=stage)
    assert not diff(same, same)


def test_an_inserted_op_is_all_that_is_added(x):
    def before(x):
        return ((x * 2) + 1).exp().sum()

    def after(x):
        return ((x * 2).relu() + 1).exp().sum()

    found = diff(graph(before, x), graph(after, x))
    assert [n.op for n in found.added] == ["relu"]
    assert not found.removed and not found.changed and found.moved == 5
    assert found.first == ("+", found.added[0])
    back = diff(graph(after, x), graph(before, x))
    assert [n.op for n in back.removed] == ["relu"] and not back.added and not back.changed


def test_an_op_that_became_another_one_is_changed(x):
    found = diff(graph(net(12), x), graph(net(12, nn.functional.gelu), x))
    assert not found.added and not found.removed
    assert [c.fields["op"] for c in found.changed] == [("relu", "gelu")] * 12
    assert "op relu -> gelu x 12" in found.text()


def test_types_shapes_and_attributes_are_changes(x):
    def f(x, dim):
        return torch.cumsum(x * 2, dim) + 1

    y = x.double()
    torch.opaque.synchronize()
    found = diff(graph(f, x, 0), graph(f, y, 0))
    assert not found.added and not found.removed
    assert all(c.fields["dtype"] == ("f32", "f64") for c in found.changed)
    assert {c.a.op for c in found.changed} == {"input", "scalar", "mul", "scan_add", "add"}
    found = diff(graph(f, x, 0), graph(f, x, 1))
    assert [(c.a.op, list(c.fields)) for c in found.changed] == [("scan_add", ["attrs"])]
    assert "axis 0 -> 1" in str(found)
    found = diff(graph(f, x, 0), graph(f, x[:2].clone(), 0))
    assert {c.fields["shape"] for c in found.changed} >= {((4, 32), (2, 32))}


def test_a_wire_to_another_value_is_a_change(x):
    y = torch.randn(4, 32, device="opaque")
    torch.opaque.synchronize()
    found = diff(graph(lambda: (x * y).exp() + x), graph(lambda: (x * y).exp() + y))
    assert [list(c.fields) for c in found.changed] == [["operands"]] and found.changed[
        0
    ].a.op == "add"


def test_unfused_splits_kernels_and_changes_no_node(x):
    model = net(12)
    fused = graph(model, x, stage="fused")
    with torch_opaque.unfused():
        unfused = graph(model, x, stage="fused")
    found = diff(fused, unfused)
    assert not found.added and not found.removed and not found.changed
    assert {k.relation for k in found.kernels} == {"split"}
    assert {n.op for side in found.copied for n in side} <= {"reshape"}
    assert sum(len(k.b) for k in found.kernels) <= len(unfused.kernels)
    assert found.totals["kernels"] == (len(fused.kernels), len(unfused.kernels))
    assert found.totals["bytes"][0] < found.totals["bytes"][1]
    assert "x 12" in str(found) and len(str(found).splitlines()) < 40
    assert {k.relation for k in diff(unfused, fused).kernels} == {"merged"}


def test_kernels_that_are_of_one_graph_alone(x):
    found = diff(
        graph(lambda: x * 2, stage="fused"), graph(lambda: (x * 2, x.sum(0)), stage="fused")
    )
    assert [(k.relation, len(k.a), len(k.b)) for k in found.kernels] == [("added", 0, 1)]


def test_explanations_have_times(x):
    model = net(1)
    first, second = (torch_opaque.explain(model, x, show=False) for _ in range(2))
    found = diff(first, second)
    assert not found and found.totals["seconds"][0] > 0
    with torch_opaque.unfused():
        assert diff(first, torch_opaque.explain(model, x, show=False)).kernels


def test_the_first_difference_is_of_a_line(x):
    """Memory without contents is nobody's word, and nodes without a line are nobody's either."""

    def padded(rows, scale):
        y = torch.empty(rows, 32, device="opaque")
        y[:4] = x * scale
        return y

    found = diff(graph(padded, 8, 2), graph(padded, 9, 2))
    undefined = [c for c in found.changed if c.a.op == "undefined"]
    assert undefined and found.first[1] is not undefined[0] and found.first[1].b.line
    assert "undefined" not in str(found) and "= uninitialized memory f32[" in str(found)


def test_json_and_html(x, tmp_path):
    a, b = graph(net(3), x, stage="fused"), graph(net(3, torch.tanh), x, stage="fused")
    found = diff(a, b)
    document = json.loads(found.to_json())
    assert document["schema"] == "opaque.difference" and document["version"] == 1
    assert len(document["changed"]) == len(found.changed) >= 3
    assert document["changed"][0]["fields"]["op"] == ["maximum", "tanh"]
    assert document["totals"]["kernels"] == [len(a.kernels), len(b.kernels)]
    found.to_html(tmp_path / "diff.html")
    assert "<title>diff</title>" in (tmp_path / "diff.html").read_text()
    sides = found.sides()
    assert [right for _, _, right in sides if right] == [
        (n.text, n.kernel.name if n.kernel else "") for n in b.nodes
    ]
    assert sum(kind == "changed" for kind, _, _ in sides) == len(found.changed)
    assert {left[0] for _, left, _ in sides if left} == {n.text for n in a.nodes}
    # What was written and read again has no code, and is the same graph.
    again = diff(a, torch_opaque.graph(net(3), x, stage="fused").from_json(a.to_json()))
    assert not again


def test_a_training_step_is_quick(x):
    def step_of(act):
        model = net(28, act)
        optimizer = torch.optim.Adam(model.parameters())

        def step():
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        return step

    a, b = graph(step_of(torch.relu)), graph(step_of(torch.tanh))
    assert len(a.nodes) > 3000
    begin = time.process_time()
    found = diff(a, b)
    text = found.text()
    assert time.process_time() - begin < 2
    assert {c.fields["op"] for c in found.changed if "op" in c.fields} >= {("relu", "tanh")}
    assert len(text.splitlines()) < 40


def test_wrong_arguments(x):
    g = graph(lambda: x * 2)
    with pytest.raises(TypeError, match="diff\\(\\) takes two Graphs or Explanations, got str"):
        diff(g, "graph")
    with pytest.raises(ValueError, match="one stage, got 'recorded' and 'fused'"):
        diff(g, g.stage("fused"))
