"""Nested tensors of both layouts, the fast path of transformers that makes them, and attention under vmap: against the CPU."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import grad, vmap

D = "opaque"
LAYOUTS = [torch.strided, torch.jagged]
pytestmark = pytest.mark.filterwarnings("ignore")


def rows(layout, device, requires_grad=False):
    torch.manual_seed(0)
    parts = [torch.randn(2, 4), torch.randn(3, 4)]
    return torch.nested.nested_tensor(
        parts, layout=layout, device=device, requires_grad=requires_grad
    )


def padded(x):
    return torch.nested.to_padded_tensor(x, 0.0)


def both(f, **tolerance):
    want, got = f("cpu"), f(D)
    for w, g in zip(
        *[r if isinstance(r, (list, tuple)) else [r] for r in (want, got)], strict=True
    ):
        assert g.device.type == D
        torch.testing.assert_close(g.cpu(), w, **tolerance)


CALLS = {
    "unbind": lambda x: x.unbind(),
    "padded": padded,
    "relu": lambda x: padded(torch.relu(x)),
    "gelu": lambda x: padded(F.gelu(x)),
    "times a number": lambda x: padded(x * 2),
    "sum of two": lambda x: padded(x + x),
    "linear": lambda x: padded(F.linear(x, torch.ones(5, 4, device=x.device))),
    "linear, bias": lambda x: padded(
        F.linear(x, torch.ones(5, 4, device=x.device), torch.ones(5, device=x.device))
    ),
    "softmax": lambda x: padded(torch.softmax(x, -1)),
    "layer_norm": lambda x: padded(
        F.layer_norm(x, (4,), torch.ones(4, device=x.device), torch.ones(4, device=x.device))
    ),
    "clone": lambda x: x.clone().unbind(),
    "detach": lambda x: x.detach().unbind(),
    "float64": lambda x: x.to(torch.float64).unbind(),
    "a part": lambda x: x[1],
}


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_calls(layout, name):
    both(lambda device: CALLS[name](rows(layout, device)))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_from_and_to_the_cpu(layout):
    x = rows(layout, "cpu")
    for part, moved in zip(x.unbind(), x.to(D).unbind(), strict=True):
        assert moved.device.type == D and torch.equal(moved.cpu(), part)
    for part, moved in zip(x.unbind(), rows(layout, D).cpu().unbind(), strict=True):
        assert moved.device.type == "cpu" and torch.equal(moved, part)
    assert "nested" in repr(rows(layout, D)).lower()


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_gradients(layout):
    def run(device):
        x = rows(layout, device, requires_grad=True)
        (padded(torch.relu(x) * 2) ** 2).sum().backward()
        return padded(x.grad)

    both(run)


def test_attention_of_jagged_tensors():
    def run(device):
        x = rows(torch.jagged, device).unflatten(-1, [2, 2]).transpose(1, 2)
        return F.scaled_dot_product_attention(x, x, x).transpose(1, 2).values()

    both(run)


def test_views_share_memory():
    x = rows(torch.strided, D)
    x.unbind()[1].fill_(7)
    assert torch.equal(padded(x)[1].cpu(), torch.full((3, 4), 7.0))
    x.mul_(2)
    assert torch.equal(x[1].cpu(), torch.full((3, 4), 14.0))


@pytest.mark.parametrize("options", [{}, {"activation": "gelu"}, {"norm_first": True}], ids=str)
def test_transformer_encoder_with_a_padding_mask(options):
    mask = torch.tensor([[False, False, False, True], [False, False, True, True]])

    def run(device):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, **options)
        encoder = nn.TransformerEncoder(layer, 2).to(device).eval()
        x = torch.randn(2, 4, 16).to(device)
        with torch.no_grad():
            return encoder(x, src_key_padding_mask=mask.to(device))

    both(run, rtol=1e-4, atol=1e-5)


# ---- attention under vmap: logical tensors of four dims take the fused way


def tensors(*shapes, device):
    torch.manual_seed(0)
    return [torch.randn(shape).to(device) for shape in shapes]


ATTENTION = F.scaled_dot_product_attention
SHAPE = (5, 3, 2, 4, 8)


@pytest.mark.parametrize(
    "f, shapes, dims",
    [
        (ATTENTION, [SHAPE] * 3, 0),
        (ATTENTION, [SHAPE, SHAPE[1:], SHAPE[1:]], (0, None, None)),
        (lambda *qkv: ATTENTION(*qkv, is_causal=True), [(3, 5, 2, 4, 8)] * 3, 1),
        (ATTENTION, [SHAPE] * 3 + [(5, 3, 2, 4, 4)], 0),
        (ATTENTION, [SHAPE] * 3 + [(4, 4)], (0, 0, 0, None)),
        (lambda q, b: ATTENTION(q, q, q, b), [SHAPE, (5, 4, 4)], 0),
        (grad(lambda q, k: ATTENTION(q, k, k).sin().sum()), [SHAPE] * 2, 0),
        (grad(lambda q: ATTENTION(q, q, q, is_causal=True).sin().sum()), [SHAPE], 0),
        (grad(lambda b, q: ATTENTION(q, q, q, b).sin().sum()), [(5, 1, 2, 4, 4), SHAPE], 0),
    ],
)
def test_attention_under_vmap(f, shapes, dims):
    both(
        lambda device: vmap(f, in_dims=dims)(*tensors(*shapes, device=device)),
        rtol=1e-4,
        atol=1e-5,
    )
