"""LSTMs and GRUs of whole sequences: one node for autograd in each direction of a layer, and differentiable operators where something
looks at the single operators."""

import copy
from contextlib import nullcontext

import pytest
import torch
import torch_opaque
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils._python_dispatch import TorchDispatchMode

D = "opaque"
KINDS = [nn.LSTM, nn.GRU]
OPTIONS = [
    {},
    {"num_layers": 2, "bidirectional": True},
    {"bias": False},
    {"batch_first": True},
    {"batch_first": True, "bidirectional": True, "bias": False},
]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def both(kind, **options):
    module = kind(5, 8, **options)
    return module, copy.deepcopy(module).to(D)


def close(found, expect, **tolerance):
    for f, e in zip(found, expect, strict=True):
        torch.testing.assert_close(f.cpu(), e, **({"rtol": 1e-4, "atol": 1e-5} | tolerance))


def states_of(result):
    outputs, states = result
    return [outputs, *(states if isinstance(states, tuple) else (states,))]


def loss_of(result):
    return sum((t * t * (i + 1)).sum() for i, t in enumerate(states_of(result)))


def start(module, batch):
    runs = module.num_layers * (2 if module.bidirectional else 1)
    state = torch.randn(runs, batch, module.hidden_size)
    return (state, state * 0.5) if isinstance(module, nn.LSTM) else state


def moved(state, device, **options):
    if isinstance(state, tuple):
        return tuple(moved(s, device, **options) for s in state)
    return state.detach().to(device).requires_grad_(**options)


@pytest.mark.parametrize("second", [False, True], ids=["first", "second"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind, options, second):
    """Of inputs, first states and weights; of these again."""
    modules, x = both(kind, **options), torch.randn(3, 4, 5)
    state = start(modules[0], x.shape[0 if options.get("batch_first") else 1])

    def train(module, device):
        own, first = x.detach().to(device).requires_grad_(), moved(state, device)
        wanted = [own, *(first if isinstance(first, tuple) else (first,)), *module.parameters()]
        result = module(own, first)
        found = torch.autograd.grad(loss_of(result), wanted, create_graph=second)
        if second:
            found = torch.autograd.grad(sum((t * t).sum() for t in found), wanted)
        return [t.detach().cpu() for t in (*states_of(result), *found)]

    expect = train(modules[0], "cpu")
    torch_opaque.reset_stats()
    close(
        train(modules[1], D), expect, rtol=1e-3 if second else 1e-4, atol=1e-4 if second else 1e-5
    )
    assert torch_opaque.stats()["extern_calls"] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_direction_is_recorded_at_once(kind):
    """As many ops for 8 steps as for 16; a length that is no power of two is several of them. Autograd has one node for all."""

    def recorded(steps):
        module, x = kind(5, 8).to(D), torch.randn(steps, 3, 5, device=D)
        torch_opaque.reset_stats()
        outputs = module(x)[0]
        outputs.square().sum().backward()
        count = torch_opaque.stats()["ops_recorded"]
        return count, outputs.grad_fn.name()

    (short, node), (long, _), (both, _) = recorded(8), recorded(16), recorded(24)
    assert short == long and both < 2 * short
    assert "Sequence" in node


class Looking(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", KINDS)
def test_a_captured_direction_is_recorded_at_once(kind):
    """The mode by which a captured function sees the CPU does not look at the single operators; one of the user's does."""

    def made(steps, capture, mode=nullcontext):
        torch.manual_seed(steps)
        module, x = kind(5, 8).to(D), torch.randn(steps, 3, 5, device=D)

        def step(x):
            module.zero_grad()
            with mode():
                outputs = module(x)[0]
            outputs.square().sum().backward()
            return outputs.sum()

        torch_opaque.reset_stats()
        loss = capture(step)(x)
        count = torch_opaque.stats()["ops_recorded"]
        return count, [t.cpu() for t in (loss, *(p.grad for p in module.parameters()))]

    (short, _), (long, found) = made(8, torch_opaque.capture), made(16, torch_opaque.capture)
    assert short == long
    assert all(map(torch.equal, found, made(16, lambda step: step)[1]))
    watched, _ = made(16, torch_opaque.capture, Looking)
    assert watched > 2 * long


@pytest.mark.parametrize("kind", KINDS)
def test_kernels_of_a_step(kind):
    """Forward and back in one run: parts are not copied where a step reads them, and the weights' gradients are one product each."""

    def simplified(steps):
        module, x = kind(5, 8).to(D), torch.randn(steps, 3, 5, device=D)

        def step():
            module.zero_grad()
            module(x)[0].square().sum().backward()
            return [p.grad for p in module.parameters()]

        graph = torch_opaque.graph(step, stage="fused")
        return graph.text.count(" = matmul "), len(graph.kernels)

    (products, kernels), (more_products, more_kernels) = simplified(5), simplified(9)
    # One more step: the hidden state's product, and its gradient.
    assert more_products - products == 4 * 2
    assert more_kernels - kernels <= 4 * (9 if kind is nn.LSTM else 12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("which", [0, 1, 2], ids=["outputs", "h", "c"])
def test_a_loss_of_one_result(kind, which):
    modules, x = both(kind), torch.randn(4, 2, 5)

    def train(module, device):
        results = states_of(module(x.to(device)))
        results[min(which, len(results) - 1)].square().sum().backward()
        return [p.grad.cpu() for p in module.parameters()]

    close(train(modules[1], D), train(modules[0], "cpu"))


@pytest.mark.parametrize("kind", KINDS)
def test_frozen_weights(kind):
    modules, x = both(kind), torch.randn(4, 2, 5)
    found = []
    for module, device in zip(modules, ("cpu", D), strict=True):
        module.weight_hh_l0.requires_grad_(False)
        module.bias_ih_l0.requires_grad_(False)
        own = x.to(device)
        loss_of(module(own)).backward()
        assert module.weight_hh_l0.grad is None and module.bias_ih_l0.grad is None
        found.append([p.grad.cpu() for p in module.parameters() if p.requires_grad])
    close(found[1], found[0])


@pytest.mark.parametrize("second", [False, True], ids=["first", "second"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_tensor_in_two_places(kind, second):
    gates = 4 if kind is nn.LSTM else 3
    call = torch.lstm if kind is nn.LSTM else torch.gru
    weight, x = torch.randn(gates * 5, 5) / 3, torch.randn(4, 2, 5)

    def train(device):
        w = weight.to(device).requires_grad_()
        zero = torch.zeros(1, 2, 5, device=device)
        state = (zero, zero) if kind is nn.LSTM else zero
        results = call(x.to(device), state, [w, w], False, 1, 0.0, True, False, False)
        (found,) = torch.autograd.grad(results[0].square().sum(), w, create_graph=second)
        if second:
            (found,) = torch.autograd.grad(found.square().sum(), w)
        return [found.detach().cpu()]

    close(train(D), train("cpu"), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_backward_twice_and_after_a_change(kind):
    module = kind(5, 8).to(D)
    x = torch.randn(4, 2, 5, device=D)
    loss = loss_of(module(x))
    loss.backward(retain_graph=True)
    once = [p.grad.clone() for p in module.parameters()]
    loss.backward()
    close([p.grad.cpu() for p in module.parameters()], [2 * g.cpu() for g in once])
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    loss = loss_of(module(x))
    with torch.no_grad():
        module.weight_hh_l0.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("kind", KINDS)
def test_under_transforms(kind):
    """functorch sees operators."""
    modules, x = both(kind), torch.randn(3, 4, 2, 5)
    found = []
    for module, device in zip(modules, ("cpu", D), strict=True):
        weights = {k: v.detach() for k, v in module.named_parameters()}

        def loss(weights, x, module=module):
            return loss_of(functional_call(module, weights, (x,)))

        own = x.to(device)
        own_grads = grad(loss)(weights, own[0])
        each = [grad(loss)(weights, sample) for sample in own]
        if device == D:
            many = vmap(grad(loss), in_dims=(None, 0))(weights, own)
            for key in weights:
                close([many[key].cpu()], [torch.stack([e[key].cpu() for e in each])])
        found.append([t.cpu() for t in own_grads.values()])
    close(found[1], found[0])


@pytest.mark.parametrize("kind", KINDS)
def test_under_autocast_and_without_gradients(kind):
    modules, x = both(kind), torch.randn(4, 2, 5)
    with torch.no_grad():
        expect = states_of(modules[0](x))
        close(states_of(modules[1](x.to(D))), expect)
    with torch.inference_mode():
        close(states_of(modules[1](x.to(D))), expect)
    with torch.autocast(D, torch.bfloat16):
        result = modules[1](x.to(D))
        loss_of(result).backward()
    close([t.detach().float() for t in states_of(result)], expect, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_other_dtypes(kind, dtype):
    module = kind(5, 8).to(dtype)
    there, x = copy.deepcopy(module).to(D), torch.randn(4, 2, 5, dtype=dtype)
    expect, found = module(x), there(x.to(D))
    loss_of(expect).backward()
    loss_of(found).backward()
    rough = {"rtol": 0.1, "atol": 0.3} if dtype == torch.bfloat16 else {"rtol": 1e-6, "atol": 1e-6}
    close([p.grad for p in there.parameters()], [p.grad for p in module.parameters()], **rough)


@pytest.mark.parametrize("kind", KINDS)
def test_fused_is_unfused(kind):
    module, x = kind(5, 8, 2, bidirectional=True).to(D), torch.randn(6, 2, 5, device=D)

    def step():
        module.zero_grad()
        loss_of(module(x)).backward()
        return [p.grad.cpu() for p in module.parameters()]

    fused = step()
    with torch_opaque.unfused():
        unfused = step()
    assert all(torch.equal(f, u) for f, u in zip(fused, unfused, strict=True))


def test_lines_of_a_backward_pass():
    module, x = nn.LSTM(5, 8).to(D), torch.randn(4, 2, 5, device=D)

    def step():
        module.zero_grad()
        module(x)[0].square().sum().backward()  # here
        return module.weight_hh_l0.grad

    text = torch_opaque.graph(step, stage="recorded").text
    assert "test_recurrent.py" in text and "rnn.py" not in text


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_a_trace_reads_its_arguments(kind):
    module = kind(5, 8).to(D)
    x, other = torch.randn(4, 2, 5, device=D), torch.randn(4, 2, 5, device=D)
    traced = torch.jit.trace(module, (x,), check_trace=False)
    close([t.cpu() for t in states_of(traced(other))], [t.cpu() for t in states_of(module(other))])
