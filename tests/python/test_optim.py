"""The run after optimizer.step(): one per step, everything live, only where the device is involved."""

import pytest
import torch
import torch_opaque
from torch import nn
from torch_opaque import _C


def step(model, optimizer, x):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam], ids=lambda m: m.__name__)
def test_one_run_per_step_computes_all_that_lives(make):
    model = nn.Linear(4, 2).to("opaque")
    optimizer = make(model.parameters(), lr=0.1)
    x = torch.ones(3, 4, device="opaque")
    torch.opaque.synchronize()
    torch_opaque.reset_stats()
    loss = step(model, optimizer, x)
    assert torch_opaque.stats()["flushes"] == {"optimizer_step": 1}
    state = [
        t
        for s in optimizer.state.values()
        for t in s.values()
        if torch.is_tensor(t) and t.is_opaque
    ]
    for tensor in [loss, *model.parameters(), *(p.grad for p in model.parameters()), *state]:
        assert not _C.is_pending(tensor)
    loss.item()
    assert torch_opaque.stats()["flushes"] == {"optimizer_step": 1}


def test_a_cpu_optimizer_runs_nothing():
    pending = torch.ones(3, device="opaque") + 1
    model = nn.Linear(4, 2)
    step(model, torch.optim.Adam(model.parameters()), torch.ones(3, 4))
    assert _C.is_pending(pending) and torch_opaque.stats()["flushes"] == {}


def test_iterations_are_equal_graphs():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to("opaque")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=4)
    x = torch.randn(5, 8, device="opaque")
    for _ in range(3):
        step(model, optimizer, x)
        scheduler.step()
    torch_opaque.reset_stats()
    for _ in range(5):
        step(model, optimizer, x)
        scheduler.step()
    assert (
        torch_opaque.stats()["kernels_compiled"] == 0 and torch_opaque.stats()["plans_built"] == 0
    )


def test_forbid_sync_allows_the_step():
    model = nn.Linear(4, 2).to("opaque")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch_opaque.forbid_sync():
        step(model, optimizer, torch.ones(3, 4, device="opaque"))
