"""TorchScript on the device: modules that are scripted or traced, moved, saved and loaded."""

import io

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.filterwarnings(
    "ignore"
)  # TorchScript is deprecated, and says so at every call


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.norm = nn.LayerNorm(4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.embedding.weight
        self.register_buffer("scale", torch.full((4,), 2.0))

    def forward(self, words):
        return self.out(self.norm(self.embedding(words)) * self.scale)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1, stride=2)
        self.depthwise = nn.Conv2d(4, 4, 3, groups=4, bias=False)
        self.up = nn.ConvTranspose2d(4, 2, 2, stride=2)
        self.norm = nn.BatchNorm2d(2)

    def forward(self, x):
        return torch.relu(self.norm(self.up(self.depthwise(self.first(x))))).flatten(1).mean(1)


def made(kind):
    torch.manual_seed(0)
    return kind(), (torch.tensor([1, 3, 5]) if kind is Tied else torch.randn(2, 3, 12, 12))


def scripted(model, example):
    return torch.jit.script(model)


def traced(model, example):
    return torch.jit.trace(model, example)


def trained(model, x):
    """Values, gradients and state of two steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    result = []
    for _ in range(2):
        optimizer.zero_grad()
        y = model(x)
        y.square().mean().backward()
        result += [y.detach(), *(p.grad.clone() for p in model.parameters())]
        optimizer.step()
    return [t.detach().cpu() for t in [*result, *model.state_dict().values()]]


def all_on(model, device):
    tensors = [*model.parameters(), *model.buffers()]
    assert tensors and all(t.device.type == device for t in tensors)


def same(model, x, make, kind):
    """As the same module on the CPU."""
    expected = trained(make(*made(kind)), x)
    for got, want in zip(trained(model, x.to("opaque")), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [Tied, Net])
@pytest.mark.parametrize("make", [scripted, traced])
def test_moved_to_the_device(make, kind):
    model, x = made(kind)
    module = make(model, x)
    module.to("opaque")
    all_on(module, "opaque")
    same(module, x, make, kind)
    module.cpu()
    all_on(module, "cpu")
    assert module(x).device.type == "cpu"


@pytest.mark.parametrize("kind", [Tied, Net])
@pytest.mark.parametrize("make", [scripted, traced])
def test_made_on_the_device(make, kind):
    model, x = made(kind)
    module = make(model.to("opaque"), x.to("opaque"))
    all_on(module, "opaque")
    same(module, x, make, kind)


@pytest.mark.parametrize("source", ["cpu", "opaque"])
@pytest.mark.parametrize("target", [None, "cpu", "opaque", torch.device("opaque:0")])
@pytest.mark.parametrize("make", [scripted, traced])
def test_saved_and_loaded(make, source, target):
    model, x = made(Net)
    module = make(model.eval().to(source), x.to(source))
    file = io.BytesIO()
    torch.jit.save(module, file)
    file.seek(0)
    loaded = torch.jit.load(file, map_location=target)
    device = source if target is None else torch.device(target).type
    all_on(loaded, device)
    torch.testing.assert_close(loaded(x.to(device)).cpu(), model.cpu()(x), rtol=1e-4, atol=1e-5)


def test_loading_is_the_first_use_of_the_device(run_warm, tmp_path):
    model, x = made(Net)
    path = str(tmp_path / "net.pt")
    torch.jit.script(model).save(path)
    run_warm(
        f"import torch\nm = torch.jit.load({path!r}, map_location='opaque')\n"
        "assert all(p.device.type == 'opaque' for p in m.parameters())\n"
        "assert m(torch.ones(2, 3, 12, 12, device='opaque')).isfinite().all().item()\n"
    )


def test_tied_weights_stay_tied_and_an_optimizer_goes_on():
    model, words = made(Tied)
    module = torch.jit.script(model)
    parameters = list(module.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    module.to("opaque")
    assert [p.device.type for p in parameters] == ["opaque"] * len(parameters)
    assert module.embedding.weight.data_ptr() == module.out.weight.data_ptr()
    before = module.out.weight.detach().clone()
    module(words.to("opaque")).square().sum().backward()
    optimizer.step()
    assert not torch.equal(module.embedding.weight.cpu(), before.cpu())
    assert torch.equal(module.embedding.weight.cpu(), module.out.weight.cpu())


def test_a_scripted_part_of_a_module():
    model = nn.Sequential(nn.Linear(3, 3), torch.jit.script(nn.Linear(3, 3)))
    x = torch.randn(2, 3)
    expected = model(x)
    model.to("opaque")
    all_on(model, "opaque")
    torch.testing.assert_close(model(x.to("opaque")).cpu(), expected)
    assert model.half()[1].weight.dtype == torch.float16 == model[0].weight.dtype


def test_a_traced_convolution_is_recorded_and_differentiated():
    def f(x, w):
        return torch.conv1d(x, w, padding=1) + torch.nn.functional.conv_transpose1d(x, w)[..., 1:-1]

    x, w = torch.randn(2, 3, 9), torch.randn(3, 3, 3)
    g = torch.jit.trace(f, (x.to("opaque"), w.to("opaque")))
    assert "aten::_convolution" in str(g.graph) and "prim::Constant[value=<Tensor>]" not in str(
        g.graph
    )
    other = torch.randn(2, 3, 9)
    gradients = []
    for function, device in ((f, "cpu"), (g, "opaque"), (g, "cpu")):
        leaves = [t.clone().to(device).requires_grad_() for t in (other, w)]
        function(*leaves).square().sum().backward()
        gradients.append([leaf.grad.cpu() for leaf in leaves])
    for got in gradients[1:]:
        torch.testing.assert_close(got, gradients[0], rtol=1e-4, atol=1e-4)


def test_tracing_a_convolution_on_the_cpu_is_as_without_the_package():
    graph = str(torch.jit.trace(nn.Conv2d(1, 1, 3), torch.ones(1, 1, 4, 4)).graph)
    assert graph.count("aten::_convolution") == 1 and "aten::convolution" not in graph.replace(
        "aten::_convolution", ""
    )
