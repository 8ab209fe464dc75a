"""Nothing stays apart without a reason: between two kernels of which one reads what the other stored, there is an edge that says why.
Random nets are looked at in programs/tools.py."""

import json
import re

import pytest
import torch
import torch.nn.functional as F
import torch_opaque
from programs.testing import FULL
from programs.tools import overstated, unexplained
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree
from torch_opaque.snapshot import is_opaque
from torch_opaque.summary import distinct

D = "opaque"


def moved(x):
    return x.detach().to(D) if isinstance(x, torch.Tensor) else x


def graph_of(op, sample):
    """The fused graph of one call; None where it does not exist: refused, run at once, or nothing on the device."""
    args, kwargs = _pytree.tree_map(moved, ((sample.input, *sample.args), sample.kwargs))
    try:
        results = _pytree.tree_leaves(op(*args, **kwargs))
    except (RuntimeError, TypeError, ValueError, IndexError, AssertionError):
        return None
    results = [t for t in results if is_opaque(t)]
    return torch_opaque.graph(results, stage="fused") if results else None


@pytest.mark.filterwarnings("ignore")
def test_ops():
    """Samples of op_db: their values are tested elsewhere."""
    graphs, wrong = 0, []
    for op in op_db if FULL else op_db[::8]:
        if torch.float32 not in op.supported_dtypes("cpu"):
            continue
        for sample in list(op.sample_inputs("cpu", torch.float32))[: 10 if FULL else 2]:
            graph = graph_of(op, sample)
            graphs += graph is not None
            if graph is not None and (found := unexplained(graph) or overstated(graph)):
                wrong.append(f"{op.name}: {found}")
    assert not wrong and graphs > (200 if FULL else 100), wrong


class Attention(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.qkv = torch.nn.LayerNorm(width), torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(heads.transpose(1, 2).flatten(2))


MODELS = {
    "attention": lambda: (torch.nn.Sequential(Attention(16), Attention(16)), (2, 6, 16)),
    "convolutions": lambda: (
        torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1),
            torch.nn.BatchNorm2d(8),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Conv2d(8, 8, 3, groups=8),
            torch.nn.AdaptiveAvgPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Linear(32, 5),
        ),
        (2, 3, 12, 12),
    ),
    "recurrent": lambda: (torch.nn.GRU(6, 5, batch_first=True), (2, 4, 6)),
    "encoder": lambda: (
        torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True),
        (2, 5, 16),
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_training_steps(name):
    model, shape = MODELS[name]()
    model.to(D)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    x = torch.randn(shape).to(D)

    def step():
        optimizer.zero_grad()
        result = model(x)
        (result[0] if isinstance(result, tuple) else result).square().mean().backward()
        optimizer.step()

    graph = torch_opaque.graph(step, stage="fused")
    assert len(graph.kernels) > 5 and graph.unfused and not unexplained(graph)
    assert not overstated(graph)


# ---- what fusing would save


UPDATES = {
    "stack": lambda x: torch.stack([(x + i).exp() @ x for i in range(20)]),
    "cat": lambda x: torch.cat([x.exp() @ x, x.sin() @ x, x]),
    "row": lambda x: row_written(x.exp(), x),
    "rows": lambda x: rows_written(x),
    "index": lambda x: x.exp().index_add(0, torch.tensor([1, 1], device=D), x[:2] @ x),
    "columns": lambda x: torch.stack([x.sum(0), x.amax(0), x.prod(0)], 1),
}


def row_written(y, x):
    y[3] = (x @ x)[0]
    return y.tanh()


def rows_written(x):
    y = torch.zeros(64, 96, device=D)
    for i in range(8):
        y[i] = (x @ x)[i]
    return y


@pytest.mark.parametrize("name", UPDATES)
def test_an_update_costs_what_it_writes(name):
    x = torch.rand(96, 96, device=D)
    torch.opaque.synchronize()
    graph = torch_opaque.graph(UPDATES[name], x, stage="fused")
    assert not overstated(graph), graph
    updates = ("update", "index", "concat")
    for edge in graph.unfused:
        kernel = edge.consumer.kernel
        if kernel.kind in updates and edge.producer is edge.consumer.operands[0]:
            assert edge.saves <= kernel.bytes_read + kernel.bytes_written


def test_a_chain_of_updates_saves_nothing():
    """Each writes its own rows of one buffer: nothing is read, and nothing written twice."""
    parts = [torch.rand(48, 48, device=D) for _ in range(20)]
    torch.opaque.synchronize()
    explained = torch_opaque.explain(lambda: torch.stack([p @ p for p in parts]), show=False)
    chain = [e for e in explained.unfused if e.producer.op == e.consumer.op == "update"]
    assert all(e.saves == 0 and e.bytes == 20 * 48 * 48 * 4 for e in chain)
    assert sum(e.saves for e in distinct(explained.unfused)) <= explained.bytes_moved


# ---- what can be done


def refusals(root) -> dict:
    """The table in fusion/lower.h: name to (text, whether there is something to do, remedy)."""
    with open(f"{root}/fusion/lower.h") as file:
        text = re.sub(r"\\\n\s*", "", file.read())
    rows = re.findall(r'X\((\w+), *"([^"]*)", *(true|false), *"([^"]*)"\)', text)
    return {name: (words, acts == "true", remedy) for name, words, acts, remedy in rows}


def test_the_page_has_the_remedy_of_each_refusal(root):
    found = refusals(root)
    with open(f"{root}/docs/reading.md") as file:
        table = dict(re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", file.read(), re.MULTILINE))
    assert len(found) > 12 and found.pop("none")
    assert {name: remedy for name, (_, _, remedy) in found.items()} == {
        name: table[name] for name in found
    }


def test_edges_that_one_can_do_something_about_come_first():
    a, b = torch.rand(512, 512, device=D), torch.rand(1, 200_000, device=D)
    torch.opaque.synchronize()
    explained = torch_opaque.explain(lambda: ((a.exp() @ a), torch.softmax(b, -1)), show=False)
    acts = [e.acts for e in explained.unfused if e.saves]
    assert acts == sorted(acts, reverse=True) and len(set(acts)) == 2
    lines = explained.text().partition("not fused:\n")[2].splitlines()
    assert "row_size" in lines[0] and "boundary" in "\n".join(lines)
    assert "  row_size: reduce in two steps: reshape a row into shorter ones" in lines
    assert any(line.startswith("  boundary: nothing") for line in lines)
    edge = explained.unfused[0]
    row = json.loads(explained.to_json())["graph"]["unfused"]
    assert {e["refusal"]: e["remedy"] for e in row}[edge.refusal] == edge.remedy


def test_what_only_says_that_it_is_on_the_device_is_no_keeper():
    """Nested and batched tensors hold others, and have no values of their own."""
    a = torch.rand(4, 4, device=D)
    nested = torch.nested.nested_tensor([torch.rand(2, 3), torch.rand(4, 3)]).to(D)
    assert torch_opaque.explain(lambda: a.exp() @ a, show=False).kernels
    seen = []

    def inside(x):
        seen.append(torch_opaque.explain(lambda: a.exp() @ a, show=False).kernels)
        return x * 2

    torch.func.vmap(inside)(a)
    assert seen[0] and nested.is_nested
