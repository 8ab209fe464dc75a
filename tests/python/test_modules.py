"""Module conversions keep ties, identity, optimizers, attributes and hooks; programs without the
device see PyTorch's own rules."""

import copy
import io

import pytest
import torch
import torch_opaque
from torch import nn


class Tied(nn.Module):
    """An embedding whose weight is the output layer's, and buffers."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.norm(self.embed(tokens)))


CONVERSIONS = {
    "to": lambda m: m.to("opaque"),
    "method": lambda m: m.opaque(),
    "round trip": lambda m: m.to("opaque").cpu(),
    "dtype": lambda m: m.to("opaque").bfloat16(),
    "device and dtype": lambda m: m.to("opaque", torch.float64),
    "to_empty": lambda m: m.to_empty(device="opaque"),
    "to_empty back": lambda m: m.to("opaque").to_empty(device="cpu"),
    "twice": lambda m: m.to("opaque").to("opaque"),
}


@pytest.mark.parametrize("convert", CONVERSIONS.values(), ids=CONVERSIONS.keys())
def test_ties_and_identity_survive(convert):
    model = Tied()
    before = dict(model.named_parameters())
    convert(model)
    assert model.head.weight is model.embed.weight
    assert all(p is before[name] for name, p in model.named_parameters())
    assert len({p.device for p in model.parameters()} | {b.device for b in model.buffers()}) == 1


def test_meta_to_device():
    with torch.device("meta"):
        model = Tied()
    model.to_empty(device="opaque")
    assert model.head.weight is model.embed.weight and model.embed.weight.is_opaque


def test_values_and_gradients_move():
    model = nn.Linear(3, 2)
    model(torch.ones(1, 3)).sum().backward()
    weight, gradient = model.weight.detach().clone(), model.weight.grad.clone()
    model.to("opaque")
    assert model.weight.grad.is_opaque and torch.equal(model.weight.grad.cpu(), gradient)
    assert torch.equal(model.weight.detach().cpu(), weight)
    model.double().cpu()
    assert model.weight.grad.dtype == torch.float64 and torch.equal(
        model.weight.detach().float(), weight
    )


@pytest.mark.parametrize(
    "make", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW], ids=lambda m: m.__name__
)
def test_an_optimizer_built_before_trains(make):
    def losses(device):
        torch.manual_seed(0)
        model = Tied()
        optimizer = make(model.parameters(), lr=0.1)
        model.to(device)
        tokens = torch.tensor([1, 2, 3, 4, 5, 6]).to(device)
        result = []
        for _ in range(5):
            loss = nn.functional.cross_entropy(model(tokens), tokens)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            result.append(loss.item())
        return result

    expected, actual = losses("cpu"), losses("opaque")
    assert actual[-1] < actual[0]
    assert actual == pytest.approx(expected, abs=1e-4)


def test_attributes_class_and_hooks_stay():
    class Special(nn.Parameter):
        pass

    model = nn.Linear(2, 2)
    model.weight = Special(model.weight.detach())
    model.weight.decay = False
    seen = []
    model.weight.register_hook(lambda g: seen.append(("hook", g.device.type)))
    model.weight.register_post_accumulate_grad_hook(lambda p: seen.append(("after", p.device.type)))
    model.to("opaque")
    assert type(model.weight) is Special and model.weight.decay is False
    model(torch.ones(1, 2, device="opaque")).sum().backward()
    assert seen == [("hook", "opaque"), ("after", "opaque")]


def test_a_live_graph_does_not_hinder_conversion():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    old = model(torch.ones(1, 2)).sum()
    model.to("opaque")
    new = model(torch.ones(1, 2, device="opaque")).sum()
    assert new.item() == pytest.approx(old.item(), abs=1e-6)
    new.backward()
    with pytest.raises(RuntimeError, match="was converted"):
        old.backward()


def test_recurrent_and_lazy_modules():
    recurrent = nn.LSTM(3, 4).to("opaque")
    assert recurrent._flat_weights[0] is recurrent.weight_ih_l0 and recurrent.weight_ih_l0.is_opaque
    lazy = nn.LazyLinear(3).to("opaque")
    assert lazy(torch.ones(2, 5, device="opaque")).is_opaque and lazy.weight.shape == (3, 5)


def test_a_failing_conversion_raises_its_own_error():
    model = nn.Linear(2, 2).to("opaque")

    def fail(tensor):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        model._apply(fail)
    assert model.weight.is_opaque and model.to("cpu").weight.device.type == "cpu"


def test_each_tensor_is_converted_once_in_the_usual_order():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    calls = []
    model._apply(lambda t: calls.append(t) or t)
    usual = [model[0].weight, model[0].bias, model[1].weight, model[1].bias, *model[1].buffers()]
    assert [id(t) for t in calls] == [id(t) for t in usual]


def test_cpu_programs_keep_pytorch_rules():
    assert not torch.__future__.get_swap_module_params_on_conversion()
    model = nn.Linear(2, 2)
    before = list(model.parameters())
    model.double()
    assert all(a is b for a, b in zip(before, model.parameters(), strict=True))
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    before = model.weight
    model.to_empty(device="cpu")
    assert (
        model.weight is not before
    )  # PyTorch's own rule, which only conversions involving the device change


def test_deepcopy_and_state_dict():
    model = Tied().to("opaque")
    twin = copy.deepcopy(model)
    assert twin.head.weight is twin.embed.weight and twin.head.weight is not model.head.weight
    with torch.no_grad():
        model.embed.weight.add_(1)
    assert not torch.equal(twin.embed.weight.cpu(), model.embed.weight.cpu())
    twin.load_state_dict(model.state_dict())
    assert torch.equal(twin.embed.weight.cpu(), model.embed.weight.cpu())


@pytest.mark.parametrize("location", [None, "cpu", "opaque", "opaque:0"])
def test_save_and_load_weights_only(location):
    model = Tied().to("opaque")
    model(torch.tensor([1, 2], device="opaque"))  # running statistics are pending
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True, map_location=location)
    assert all(t.device.type == ("cpu" if location == "cpu" else "opaque") for t in state.values())
    for name, value in model.state_dict().items():
        assert torch.equal(state[name].cpu(), value.cpu()), name
    fresh = Tied()
    fresh.load_state_dict(state)


def test_save_and_load_of_a_whole_module():
    model = Tied().to("opaque")
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert loaded.head.weight is loaded.embed.weight and loaded.head.weight.is_opaque
    assert torch.equal(loaded.embed.weight.cpu(), model.embed.weight.cpu())


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False}])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.usefixtures("planned")
def test_lstm_of_a_sequence(options, batch_first):
    """Inputs of all steps are one product, and a step's gates one value: 3 kernels forward, 5 backward."""
    torch.manual_seed(0)
    steps = 12
    module = nn.LSTM(5, 8, batch_first=batch_first, **options)
    x = torch.randn(3, steps, 5) if batch_first else torch.randn(steps, 3, 5)

    def train(module, x):
        x = x.detach().requires_grad_()
        out, (h, c) = module(x)
        (out.square().sum() + h.sum() + (c * c).sum()).backward()
        return [t.cpu() for t in (out.detach(), h.detach(), c.detach(), x.grad)] + [
            p.grad.cpu() for p in module.parameters()
        ]

    expect = train(module, x)
    there = copy.deepcopy(module).to("opaque")
    torch_opaque.reset_stats()
    found = train(there, x.to("opaque"))
    runs = len([name for name, _ in module.named_parameters() if name.startswith("weight_ih")])
    assert torch_opaque.stats()["extern_calls"] == 0
    assert torch_opaque.stats()["kernels_run"] <= runs * (9 * steps + 20)
    for f, e in zip(found, expect, strict=True):
        torch.testing.assert_close(f, e, rtol=1e-4, atol=1e-5)
