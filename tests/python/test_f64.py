"""f64: exp, log, sin, tanh and what is made of them, on the device itself: no fallback, the CPU's values, the same bits fused or not."""

import math

import pytest
import torch
import torch.nn.functional as F
import torch_opaque

D = "opaque"
UNARY = {
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log2": torch.log2,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "sin": torch.sin,
    "cos": torch.cos,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "sigmoid": torch.sigmoid,
    "sinc": torch.sinc,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "softplus": F.softplus,
    "mish": F.mish,
    "elu": F.elu,
    "celu": F.celu,
    "selu": F.selu,
    "logsigmoid": F.logsigmoid,
    "logit": lambda x: torch.logit(x, 1e-3),
    "pow number": lambda x: x.abs() ** 1.7,
    "number pow": lambda x: 1.7**x,
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "logcumsumexp": lambda x: x.logcumsumexp(-1),
    "bce": lambda x: F.binary_cross_entropy_with_logits(x, x.detach().sigmoid()),
    "cross_entropy": lambda x: F.cross_entropy(
        x.reshape(-1, 5), torch.zeros(len(x.reshape(-1, 5)), dtype=torch.int64).to(x.device)
    ),
}
BINARY = {
    "pow": lambda a, b: torch.pow(a.abs(), b),
    "pow of both signs": lambda a, b: torch.pow(a, b.round()),
    "xlogy": lambda a, b: torch.xlogy(a, b.abs()),
    "xlog1py": lambda a, b: torch.special.xlog1py(a, b.abs()),
    "logaddexp": torch.logaddexp,
    "logaddexp2": torch.logaddexp2,
}


def numbers(*size, seed=0):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def special():
    edges = [
        0.0,
        0.5,
        1.0,
        2.0,
        36.5,
        700.0,
        745.0,
        1e5,
        1e10,
        1e300,
        5e-324,
        1e-310,
        2.0**-54,
        math.inf,
        math.nan,
    ]
    return torch.tensor([s * x for x in edges for s in (1, -1)], dtype=torch.float64)


def close(got, want, what=""):
    torch.testing.assert_close(
        got.detach().cpu(),
        want.detach(),
        rtol=4e-15,
        atol=4e-16,
        equal_nan=True,
        msg=lambda m: f"{what}: {m}",
    )


def ways(run):
    """run() as one program, and op by op: equal bits."""
    fused = run()
    with torch_opaque.unfused():
        unfused = run()
    for a, b in zip(fused, unfused, strict=True):
        assert torch.equal(a.cpu().view(torch.int64), b.cpu().view(torch.int64))
    return fused


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    fn, x = UNARY[name], numbers(40, 25) * 3
    values = x.sigmoid() if name == "logit" else x
    with torch_opaque.strict():
        a = values.to(D).requires_grad_()
        (got,) = ways(lambda: [fn(a)])
        (grad,) = ways(lambda: torch.autograd.grad((fn(a) * 0.7).sum(), a))
    b = values.clone().requires_grad_()
    want = fn(b)
    close(got, want, name)
    torch.testing.assert_close(
        grad.cpu(),
        torch.autograd.grad((want * 0.7).sum(), b)[0],
        rtol=1e-12,
        atol=1e-13,
        equal_nan=True,
    )


@pytest.mark.parametrize(
    "name",
    [n for n in UNARY if hasattr(torch, n) and n not in ("softmax", "log_softmax", "logsumexp")],
)
def test_special_values(name):
    with torch_opaque.strict():
        got = UNARY[name](special().to(D)).cpu()
    close(got, UNARY[name](special()), name)


@pytest.mark.parametrize("name", BINARY)
def test_binary(name):
    fn, x, y = BINARY[name], numbers(1000) * 3, numbers(1000, seed=1) * 3
    with torch_opaque.strict():
        a, b = x.to(D).requires_grad_(), y.to(D).requires_grad_()
        (got,) = ways(lambda: [fn(a, b)])
        grads = ways(lambda: torch.autograd.grad(fn(a, b).sum(), (a, b)))
    c, d = x.clone().requires_grad_(), y.clone().requires_grad_()
    want = fn(c, d)
    torch.testing.assert_close(got.cpu(), want.detach(), rtol=1e-14, atol=1e-15, equal_nan=True)
    for g, w in zip(grads, torch.autograd.grad(want.sum(), (c, d)), strict=True):
        torch.testing.assert_close(g.cpu(), w, rtol=1e-12, atol=1e-13, equal_nan=True)


def test_special_pairs():
    a = special().repeat_interleave(len(special()))
    b = special().repeat(len(special()))
    with torch_opaque.strict():
        got = torch.pow(a.to(D), b.to(D)).cpu()
    close(got, torch.pow(a, b))


def test_pow_of_integers_is_exact():
    a, b = torch.arange(-5, 6).repeat(4), torch.arange(4).repeat_interleave(11)
    assert torch.equal((a.to(D) ** b.to(D)).cpu(), a**b)
    with pytest.raises(RuntimeError):
        _ = (a.to(D) ** -1).cpu()


def test_a_chain_is_one_kernel():
    x = numbers(1000).to(D)
    with torch_opaque.strict():
        graph = torch_opaque.graph(
            lambda: (x.exp().log1p().tanh().sin() * x.sigmoid()).erf(), stage="fused"
        )
    assert len(graph.kernels) == 1


# ---- programs


class Field(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(3, 16),
            torch.nn.Tanh(),
            torch.nn.Linear(16, 16),
            torch.nn.SiLU(),
            torch.nn.Linear(16, 2),
        )

    def forward(self, t, y):
        return self.net(torch.cat([y, torch.sin(t).expand(len(y), 1)], 1))


def integrate(field, y, steps=4, h=0.1):
    """Runge and Kutta's classical method"""
    for i in range(steps):
        t = torch.full((1, 1), i * h, dtype=y.dtype, device=y.device)
        a = field(t, y)
        b = field(t + h / 2, y + h / 2 * a)
        c = field(t + h / 2, y + h / 2 * b)
        y = y + h / 6 * (a + 2 * b + 2 * c + field(t + h, y + h * c))
    return y


def train(device, optimizer, steps=3):
    torch.manual_seed(0)
    field = Field().double().to(device)
    start, target = numbers(20, 2).to(device), numbers(20, 2, seed=1).to(device)
    step = optimizer(field.parameters())
    losses = []

    def closure():
        step.zero_grad()
        loss = F.mse_loss(integrate(field, start), target)
        loss.backward()
        return loss

    for _ in range(steps):
        losses.append(step.step(closure).detach())
    return [torch.stack(losses).cpu(), *(p.detach().cpu() for p in field.parameters())]


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.Adam(p, 1e-2),
        lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9),
        lambda p: torch.optim.LBFGS(p, max_iter=5, line_search_fn="strong_wolfe"),
        lambda p: torch.optim.LBFGS(p, 0.1, max_iter=5),
    ],
    ids=["adam", "sgd", "lbfgs wolfe", "lbfgs"],
)
def test_a_neural_ode_trains(optimizer):
    with torch_opaque.strict():
        got = ways(lambda: train(D, optimizer))
    for g, w in zip(got, train("cpu", optimizer), strict=True):
        torch.testing.assert_close(g, w, rtol=1e-8, atol=1e-10)


def test_attention():
    sizes = ((2, 3, 7, 8), (2, 3, 9, 8), (2, 3, 9, 8))
    results = []
    with torch_opaque.strict():
        for device in (D, "cpu"):
            q, k, v = (
                numbers(*size, seed=i).to(device).requires_grad_() for i, size in enumerate(sizes)
            )
            out = F.scaled_dot_product_attention(q, k, v)
            results.append([out, *torch.autograd.grad(out.square().sum(), (q, k, v))])
    for g, w in zip(*results, strict=True):
        torch.testing.assert_close(g.cpu(), w, rtol=1e-12, atol=1e-13)


def test_a_gaussian_process():
    """The kernel matrix, its factor and the marginal likelihood; only the factor is the CPU's."""

    def likelihood(x, y, scale):
        distance = (x[:, None] - x[None]) ** 2
        k = torch.exp(-0.5 * distance / torch.exp(scale)) + 1e-3 * torch.eye(
            len(x), dtype=x.dtype, device=x.device
        )
        factor = torch.linalg.cholesky(k)
        alpha = torch.cholesky_solve(y[:, None], factor)[:, 0]
        return (
            0.5 * (y @ alpha) + factor.diagonal().log().sum() + 0.5 * len(x) * math.log(2 * math.pi)
        )

    x, y = numbers(30), numbers(30, seed=1)
    results = []
    for device in (D, "cpu"):
        scale = torch.tensor(0.3, dtype=torch.float64, device=device, requires_grad=True)
        value = likelihood(x.to(device), y.to(device), scale)
        value.backward()
        results.append((value.detach().cpu(), scale.grad.cpu()))
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-9)
