"""What a captured function keeps between calls, and what is done around it: each program does the same with and without capture()."""

import copy

import pytest
import torch
from programs.optimizers import ByHand
from torch import nn
from torch_opaque import capture

D = "opaque"


def _values(found) -> list:
    leaves = torch.utils._pytree.tree_leaves(found)
    return [x.detach().cpu().tolist() if isinstance(x, torch.Tensor) else x for x in leaves]


def randn(*shape):
    return torch.randn(*shape).to(D)


def training(layer, optimizer, *after):
    """A step, and what else is called in it."""

    def step(x):
        optimizer.zero_grad()
        loss = layer(x).square().mean()
        loss.backward()
        optimizer.step()
        for call in after:
            call()
        return loss

    return step


class Kept:
    value = None


def copy_for_the_gradient(wrap):
    fn = wrap(lambda x, p: (x.clone() * p).sum())
    for _ in range(4):
        p = randn(2).requires_grad_()
        fn(randn(2), p).backward()
        yield p.grad


def copies_of_all_kinds(wrap):
    def fn(x, p):
        kinds = (x.clone(), x.contiguous(), x.to(D), x.float(), torch.empty_like(x).copy_(x))
        return sum((one * p * torch.tensor([3.0, 4.0], device=D)).sum() for one in kinds)

    fn = wrap(fn)
    for _ in range(4):
        p = randn(2).requires_grad_()
        fn(randn(2), p).backward()
        yield p.grad


def copy_that_is_kept(wrap):
    kept = Kept()

    def fn(x):
        kept.value = x.clone()
        return x + 1

    fn = wrap(fn)
    for _ in range(4):
        yield fn(randn(2)), kept.value.clone()


def table_made_at_first(wrap):
    kept = Kept()

    def fn(x):
        if kept.value is None:
            kept.value = torch.tensor([1.0, 2.0], device=D)
        return x + kept.value

    fn = wrap(fn)
    for call in range(5):
        yield fn(randn(2))
        if call == 2:
            kept.value.add_(1)


def copy_at_first(wrap):
    kept = Kept()

    def fn(x):
        if kept.value is None:
            kept.value = x.clone()
        else:
            kept.value.mul_(0.5).add_(x)
        return kept.value * 1

    fn = wrap(fn)
    for _ in range(5):
        yield fn(randn(2))


def gradients_that_add_up(wrap):
    layer = nn.Linear(4, 4).to(D)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    back = wrap(lambda x: layer(x).square().mean().backward())
    step = wrap(optimizer.step)
    for call in range(12):
        back(randn(3, 4))
        if call % 3 == 2:
            step()
            optimizer.zero_grad(set_to_none=call > 6)
        yield [p.clone() for p in layer.parameters()]
        yield [None if p.grad is None else p.grad.clone() for p in layer.parameters()]


def optimizer_that_changes(wrap):
    layer = nn.Linear(4, 4).to(D)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    fn = wrap(training(layer, optimizer))
    for call in range(15):
        if call == 3:
            state, weights = (copy.deepcopy(one.state_dict()) for one in (optimizer, layer))
        if call == 6:
            optimizer.load_state_dict(state)
            layer.load_state_dict(weights)
        if call == 8:
            optimizer.state.clear()
        if call == 10:
            optimizer.param_groups[0]["betas"] = (0.5, 0.6)
        if call == 12:
            removed = optimizer.param_groups[0]["params"].pop()
        if call == 13:
            optimizer.add_param_group({"params": [removed], "lr": 0.5})
        yield fn(randn(3, 4)), [p.clone() for p in layer.parameters()]


class Counts(ByHand):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    def update(self, p, state, group):
        state["mean"].mul_(0.9).add_(p.grad, alpha=0.1)
        p.sub_(state["mean"] / (1 - 0.9 ** state["step"]), alpha=group["lr"])


def optimizer_that_counts(wrap):
    layer = nn.Linear(4, 4).to(D)
    fn = wrap(training(layer, Counts(layer.parameters())))
    for _ in range(6):
        yield fn(randn(3, 4)), [p.clone() for p in layer.parameters()]


def scheduler_inside(wrap):
    layer = nn.Linear(4, 4).to(D)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    fn = wrap(training(layer, optimizer, scheduler.step))
    for _ in range(6):
        yield fn(randn(3, 4)), [p.clone() for p in layer.parameters()]


def cache_at_a_place(wrap):
    keys = torch.zeros(1, 2, 16, 4).to(D)

    def step(q, k, n):
        keys[:, :, n : n + 1] = k
        keys[0, 0, n] = n
        seen = keys[:, :, : n + 1]
        return nn.functional.scaled_dot_product_attention(q, seen, seen), seen[..., -1], keys[0, 1]

    fn = wrap(step)
    for n in range(8):
        yield fn(randn(1, 2, 1, 4), randn(1, 2, 1, 4), n)
    yield keys


def accumulation_by_a_flag(wrap):
    layer = nn.Linear(4, 4).to(D)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)

    def step(x, last):
        (layer(x).square().mean() / 4).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()

    fn = wrap(step)
    for call in range(12):
        fn(randn(3, 4), call % 4 == 3)
        yield [p.clone() for p in layer.parameters()]
        yield [None if p.grad is None else p.grad.clone() for p in layer.parameters()]


def state_through_time(wrap):
    cell = nn.GRUCell(4, 4).to(D)
    fn = wrap(cell)
    for _ in range(3):
        h = torch.zeros(2, 4).to(D)
        for _ in range(4):
            h = fn(randn(2, 4), h)
        cell.zero_grad()
        h.sum().backward()
        yield h, [p.grad.clone() for p in cell.parameters()]


def recomputation(wrap):
    fn = wrap(lambda x: (x.sin() * x).view(-1).cumsum(0))
    for reentrant in (False, True):
        for _ in range(3):
            x = randn(3, 4).requires_grad_()
            torch.utils.checkpoint.checkpoint(fn, x, use_reentrant=reentrant).sum().backward()
            yield x.grad


def transforms(wrap):
    fn = wrap(lambda x: (x.sin() * x).view(-1).cumsum(0))
    for _ in range(2):
        yield torch.func.grad(lambda x: fn(x).sum())(randn(3)), torch.func.vmap(fn)(randn(2, 3))
        yield torch.func.jvp(fn, (randn(3),), (randn(3),)), torch.func.jacrev(fn)(randn(3))


PROGRAMS = (
    copy_for_the_gradient,
    copies_of_all_kinds,
    copy_that_is_kept,
    table_made_at_first,
    copy_at_first,
    gradients_that_add_up,
    optimizer_that_changes,
    optimizer_that_counts,
    scheduler_inside,
    cache_at_a_place,
    accumulation_by_a_flag,
    state_through_time,
    recomputation,
    transforms,
)


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs(program):
    found = []
    for wrap in (capture, lambda fn: fn):
        torch.manual_seed(0)
        found.append(_values(list(program(wrap))))
    assert found[0] == found[1]
