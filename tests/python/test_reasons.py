"""Nothing stays apart without a reason: between two kernels of which one reads what the other stored, there is an edge that says why.
Random nets are looked at in programs/tools.py."""

import pytest
import torch
import torch.nn.functional as F
import torch_opaque
from programs.testing import FULL
from programs.tools import unexplained
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree

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
    results = [t for t in results if isinstance(t, torch.Tensor) and t.device.type == D]
    return torch_opaque.graph(results, stage="fused") if results else None


@pytest.mark.filterwarnings("ignore")
def test_ops():
    """Samples of op_db: their values are tested elsewhere."""
    graphs, wrong = 0, []
    for op in op_db if FULL else op_db[::4]:
        if torch.float32 not in op.supported_dtypes("cpu"):
            continue
        for sample in list(op.sample_inputs("cpu", torch.float32))[: 10 if FULL else 2]:
            graph = graph_of(op, sample)
            graphs += graph is not None
            if graph is not None and (found := unexplained(graph)):
                wrong.append(f"{op.name}: {found}")
    assert not wrong and graphs > 200, wrong


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
