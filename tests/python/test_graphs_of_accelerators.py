"""PyTorch's own doors to captured work: torch.accelerator.Graph and make_graphed_callables."""

import pytest
import torch
import torch_opaque
from torch import nn

D = "opaque"

pytestmark = pytest.mark.skipif(
    not hasattr(torch.accelerator, "Graph"), reason="this PyTorch has no graphs of accelerators"
)


def test_a_replay_does_what_was_captured():
    x = torch.zeros(4, device=D)
    graph = torch.accelerator.Graph()
    with graph:
        x += 1
        y = x * 2
    assert x.tolist() == [0.0] * 4  # nothing was done
    for i in range(1, 4):
        graph.replay()
        assert x.tolist() == [float(i)] * 4 and y.tolist() == [2.0 * i] * 4
    x.fill_(10)
    recorded = torch_opaque.stats()["ops_recorded"]
    graph.replay()
    assert torch_opaque.stats()["ops_recorded"] == recorded
    assert y.tolist() == [22.0] * 4


def test_copies_of_what_is_there():
    x = torch.zeros(2, device=D)
    graph = torch.accelerator.Graph()
    with graph:
        y, z = x.clone(), torch.empty_like(x).copy_(x)
    for n in range(1, 4):
        x.fill_(float(n))
        graph.replay()
        assert y.tolist() == z.tolist() == [float(n)] * 2


def test_a_backward_pass_through_what_was_computed_before():
    weight = torch.ones(3, device=D, requires_grad=True)
    made, x = weight * 3, torch.full((3,), 2.0, device=D)
    weight.grad = torch.zeros(3, device=D)
    graph = torch.accelerator.Graph()
    with graph:
        loss = (made * x).sum()
        loss.backward()
    for n in range(1, 4):
        x.fill_(float(n))
        graph.replay()
        assert loss.item() == 9.0 * n
    assert weight.grad.tolist() == [18.0] * 3


def test_a_long_backward_pass_is_replayed():
    """More is pending at its end than what runs by itself otherwise."""
    p = torch.full((3,), 0.3, device=D, requires_grad=True)

    def slope():
        y = p * 1
        for _ in range(4000):
            y = torch.tanh(y * p)
        return torch.autograd.grad(y.sum(), p)[0]

    graph = torch.accelerator.Graph()
    with graph:
        slopes = slope()
    for start in (0.3, 0.6):
        with torch.no_grad():
            p.fill_(start)
        graph.replay()
        assert torch.equal(slopes.cpu(), slope().cpu())


def test_a_training_step_is_replayed():
    def used(replays: bool):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1)).to(D)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01, fused=True)
        x, y = torch.zeros(6, 4, device=D), torch.zeros(6, 1, device=D)

        def step():
            optimizer.zero_grad(set_to_none=False)
            loss = (net(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        step()  # makes gradients and the optimizer's state
        if replays:
            graph = torch.accelerator.Graph()
            with graph:
                loss = step()
        torch.manual_seed(1)
        losses = []
        for _ in range(5):
            x.copy_(torch.randn(6, 4))
            y.copy_(torch.randn(6, 1))
            if replays:
                graph.replay()
                losses.append(loss.item())
            else:
                losses.append(step().item())
        return losses + [p.detach().cpu().tolist() for p in net.parameters()]

    assert used(True) == used(False)


def test_misuse_is_an_error():
    graph = torch.accelerator.Graph()
    with pytest.raises(RuntimeError, match="nothing was captured"):
        graph.replay()
    x = torch.ones(3, device=D)
    with pytest.raises(RuntimeError, match="captured"), graph:
        (x + 1).tolist()
    other = torch.accelerator.Graph()
    with other:
        y = x + 1
    with pytest.raises(RuntimeError, match="reset"):
        other.capture_begin()
    other.replay()
    assert y.tolist() == [2.0] * 3
    other.reset()
    with other:
        z = y * 3
    other.replay()
    assert z.tolist() == [6.0] * 3


def test_it_can_be_written_to_a_file(tmp_path):
    x = torch.ones(3, device=D)
    graph = torch.accelerator.Graph(keep_graph=True)
    with graph:
        y = x.exp()
    graph.instantiate()
    graph.debug_dump(str(tmp_path / "graph.ir"))
    assert "exp f32[3]" in (tmp_path / "graph.ir").read_text()
    graph.replay()
    assert y.tolist() == x.exp().tolist()
    assert tuple(graph.pool()) == (0, 0)


def test_graphed_callables():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).to(D)
    plain = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).to(D)
    plain.load_state_dict(net.state_dict())
    sample = torch.randn(5, 4, device=D, requires_grad=True)
    graphed, loss_of = torch.opaque.make_graphed_callables(
        (net, nn.functional.mse_loss),
        ((sample,), (torch.randn(5, 2, device=D, requires_grad=True), torch.randn(5, 2, device=D))),
    )
    assert graphed is net
    for _ in range(3):
        x, y = torch.randn(5, 4, device=D, requires_grad=True), torch.randn(5, 2, device=D)
        calls = torch_opaque.stats()["captured_calls"]
        loss = loss_of(graphed(x), y)
        loss.backward()
        assert torch_opaque.stats()["captured_calls"] >= calls + 3
        other = nn.functional.mse_loss(plain(x.detach()), y)
        other.backward()
        assert loss.item() == other.item()
        for a, b in zip(net.parameters(), plain.parameters()):
            assert torch.equal(a.grad.cpu(), b.grad.cpu())
            a.grad = b.grad = None
    net.eval()
    assert torch.equal(graphed(sample).cpu(), plain(sample).cpu())
