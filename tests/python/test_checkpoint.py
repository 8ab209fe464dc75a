"""torch.utils.checkpoint: what is computed again has the random numbers of the first time."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import (
    checkpoint,
    checkpoint_sequential,
    set_checkpoint_early_stop,
)

VARIANTS = pytest.mark.parametrize("reentrant", [False, True], ids=["saved", "reentrant"])


def ones(*shape, device="opaque") -> torch.Tensor:
    return torch.ones(*shape, device=device, requires_grad=True)


def noisy(x):
    """Linear in x with random factors: its gradient is the factors, which are its value at 1."""
    return F.dropout(x, 0.4) * torch.rand_like(x) * torch.randn(x.shape, device=x.device)


@VARIANTS
def test_gradients_are_of_the_values(reentrant):
    x = ones(64, 33)
    y = checkpoint(noisy, x, use_reentrant=reentrant)
    torch.rand(5, device="opaque")
    y.sum().backward()
    torch.testing.assert_close(x.grad.cpu(), y.detach().cpu())


@VARIANTS
def test_what_follows_the_backward_pass_is_not_disturbed(reentrant):
    draws = []
    for kept in (False, True):
        torch.manual_seed(4)
        x = ones(64)
        y = checkpoint(noisy, x, use_reentrant=reentrant) if kept else noisy(x)
        y.sum().backward()
        draws.append(torch.rand(9, device="opaque").cpu())
    assert torch.equal(*draws)


@VARIANTS
def test_as_without_checkpoint(reentrant):
    """Gradients of weights, of several checkpoints in a row, of one inside another."""
    torch.manual_seed(1)
    first, second = (torch.nn.Linear(16, 16).to("opaque") for _ in range(2))

    def block(layer, x):
        return F.dropout(torch.tanh(layer(x)), 0.5)

    def plain(x):
        return block(second, block(first, x)).sum()

    def rows(x):
        for layer in (first, second):
            x = checkpoint(block, layer, x, use_reentrant=reentrant)
        return x.sum()

    def inner(x):
        return block(second, checkpoint(block, first, x, use_reentrant=reentrant))

    def nested(x):
        return checkpoint(inner, x, use_reentrant=reentrant).sum()

    def gradients(fn):
        torch.manual_seed(2)
        x = ones(8, 16)
        parameters = [x, *first.parameters(), *second.parameters()]
        for parameter in parameters:
            parameter.grad = None
        fn(x).backward()
        return [p.grad.cpu() for p in parameters]

    expected = gradients(plain)
    assert expected[0].abs().sum() > 0
    for fn in (rows, nested):
        for a, b in zip(gradients(fn), expected, strict=True):
            torch.testing.assert_close(a, b, msg=fn.__name__)


@VARIANTS
def test_sequential(reentrant):
    x = ones(32, 8)
    model = torch.nn.Sequential(*(torch.nn.Dropout(0.2) for _ in range(4)))
    y = checkpoint_sequential(model, 2, x, use_reentrant=reentrant)
    y.sum().backward()
    assert torch.equal(x.grad.cpu(), y.detach().cpu())


@VARIANTS
def test_under_autocast(reentrant):
    torch.manual_seed(1)
    layer = torch.nn.Linear(16, 16).to("opaque")
    seen = []

    def block(x):
        y = F.dropout(layer(x), 0.5)
        seen.append(y.dtype)
        return y

    x = ones(4, 16)
    with torch.autocast("opaque", dtype=torch.bfloat16):
        y = checkpoint(block, x, use_reentrant=reentrant)
    mask = (y.detach() != 0).float()
    y.float().sum().backward()
    assert set(seen) == {torch.bfloat16}
    assert torch.equal(layer.bias.grad.cpu() / 2, mask.sum(0).cpu())


@VARIANTS
def test_tensors_on_two_devices(reentrant):
    x, z = ones(50), ones(50, device="cpu")

    def both(x, z):
        return F.dropout(x, 0.3), F.dropout(z, 0.3)

    y, w = checkpoint(both, x, z, use_reentrant=reentrant)
    if reentrant:
        (y.cpu().sum() + w.sum()).backward()
    else:  # PyTorch counts what is computed again without a lock: not for two threads of autograd at once
        y.cpu().sum().backward()
        w.sum().backward()
    assert torch.equal(x.grad.cpu(), y.detach().cpu()) and torch.equal(z.grad, w.detach())


def test_tensor_given_by_keyword():
    x = ones(50)
    y = checkpoint(lambda *, x: F.dropout(x, 0.3), x=x, use_reentrant=False)
    y.sum().backward()
    assert torch.equal(x.grad.cpu(), y.detach().cpu())


@VARIANTS
def test_function_that_moves_to_the_device(reentrant):
    x = ones(50, device="cpu")
    y = checkpoint(lambda x: F.dropout(x.to("opaque"), 0.3), x, use_reentrant=reentrant)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach().cpu())


@pytest.mark.parametrize("early", [True, False])
def test_early_stop(early):
    x = ones(50)
    calls = []

    def block(x):
        y = F.dropout(x, 0.3) * 2
        calls.append(1)
        return y + 1

    with set_checkpoint_early_stop(early):
        y = checkpoint(block, x, use_reentrant=False)
    y.sum().backward()
    assert torch.equal(x.grad.cpu(), y.detach().cpu() - 1)
    assert len(calls) == (1 if early else 2)


@VARIANTS
def test_state_not_preserved_on_request(reentrant):
    x = ones(500)
    y = checkpoint(noisy, x, use_reentrant=reentrant, preserve_rng_state=False)
    y.sum().backward()
    assert (x.grad.cpu() - y.detach().cpu()).abs().max() > 0.1
