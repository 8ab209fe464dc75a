"""Captured functions: a call gives what the function gives, whatever changes between calls."""

import gc
import math
import threading
import weakref

import pytest
import torch
import torch_opaque
from programs.optimizers import ByHand
from torch import nn
from torch_opaque import CaptureError, capture

D = "opaque"


def calls() -> int:
    return torch_opaque.stats()["captured_calls"]


def plans(fn) -> int:
    return torch_opaque._C.capture_info(fn).__len__()


def same(a, b) -> bool:
    return torch.equal(a.detach().cpu(), b.detach().cpu())


def by_plan(fn, *args, **kwargs):
    """The result of a call that recorded nothing."""
    before, recorded = calls(), torch_opaque.stats()["ops_recorded"]
    result = fn(*args, **kwargs)
    assert calls() == before + 1
    assert torch_opaque.stats()["ops_recorded"] == recorded
    return result


# ---- what goes in and out


def test_later_calls_record_nothing():
    fn = capture(lambda x, y: (x * 2 + y).relu())
    y = torch.randn(8, 8, device=D)
    fn(torch.randn(8, 8, device=D), y)
    for _ in range(3):
        x = torch.randn(8, 8, device=D)
        assert same(by_plan(fn, x, y), (x * 2 + y).relu())


def test_nests_go_in_and_come_out():
    @capture
    def fn(batch, *, scale):
        a, (b, c) = batch["a"], batch["rest"]
        return {"sum": a + b * scale, "parts": [c, (a - b, None, "text")]}

    for i in range(3):
        batch = {
            "a": torch.full((3,), i + 1.0, device=D),
            "rest": (torch.ones(3, device=D), torch.zeros(2, device=D)),
        }
        result = fn(batch, scale=2)
        assert result["sum"].tolist() == [i + 3.0] * 3
        assert result["parts"][0] is batch["rest"][1]
        assert result["parts"][1][0].tolist() == [float(i)] * 3
        assert result["parts"][1][1:] == (None, "text")
    assert plans(fn) == 1


def test_writes_to_what_the_function_closes_over():
    state = torch.zeros(4, device=D)
    view = state[:2]

    @capture
    def fn(x):
        state.add_(x)
        view.mul_(2)
        return state.sum()

    expected = torch.zeros(4)
    for i in range(4):
        x = torch.full((4,), i + 1.0)
        expected += x
        expected[:2] *= 2
        assert fn(x.to(D)).item() == expected.sum().item()
        assert same(state, expected)
    assert plans(fn) == 1
    state.fill_(5)  # read anew at each call
    assert by_plan(fn, torch.zeros(4, device=D)).item() == 30


def test_a_write_counts_for_autograd():
    w = torch.ones(3, device=D)
    fn = capture(lambda x: w.mul_(x).sum())
    fn(torch.ones(3, device=D))
    version = w._version
    by_plan(fn, torch.ones(3, device=D))
    assert w._version > version


def test_random_numbers_go_on():
    fn = capture(lambda x: nn.functional.dropout(x, 0.5) + torch.rand_like(x))
    x = torch.ones(64, device=D)
    torch.manual_seed(3)
    got = [fn(x) for _ in range(4)] + [torch.rand(3, device=D)]
    torch.manual_seed(3)
    wanted = [nn.functional.dropout(x, 0.5) + torch.rand_like(x) for _ in range(4)] + [
        torch.rand(3, device=D)
    ]
    assert all(map(same, got, wanted))


def test_slices_of_one_tensor_have_one_plan():
    data = torch.randn(64, 8, device=D)
    fn = capture(lambda x: (x * 2).sum(0))
    for i in range(4):
        part = data[i * 16 : (i + 1) * 16]
        assert same(fn(part), (part * 2).sum(0))
    assert plans(fn) == 1


def test_arguments_that_are_pending_are_computed():
    fn = capture(lambda x: x + 1)
    fn(torch.zeros(3, device=D))
    x = torch.ones(3, device=D)
    for _ in range(3):
        x = fn(x * 2)
    assert x.tolist() == [15.0] * 3


def test_results_are_new_tensors():
    fn = capture(lambda x: x + 1)
    x = torch.zeros(3, device=D)
    fn(x)
    a, b = fn(x), fn(x)
    a.add_(10)
    assert b.tolist() == [1.0] * 3 and a.tolist() == [11.0] * 3


def test_tensors_of_the_cpu_are_read_anew():
    table = torch.arange(4.0)

    @capture
    def fn(x, y):
        return x + y.to(D) + table.to(D)

    for i in range(3):
        assert fn(torch.ones(4, device=D), torch.full((4,), float(i))).tolist() == [
            i + 1.0 + k + i for k in range(4)
        ]
        table.add_(1)
    assert plans(fn) == 1


def test_a_tensor_that_is_only_returned_is_itself():
    state = torch.zeros(2, device=D)
    fn = capture(lambda x: (state, x, x + 1))
    for i in range(4):
        state.fill_(i)
        x = torch.ones(2, device=D)
        a, b, _ = fn(x)
        assert a is state and b is x and a.tolist() == [float(i)] * 2


def test_dicts_with_other_keys():
    fn = capture(lambda d: next(iter(d.values())) + len(d))
    x = torch.ones(2, device=D)
    for d in ({1.0: x}, {"a": x}, {2: x}, {1.0: x, "b": x}, {None: x}, {1.0: x}):
        assert fn(d).tolist() == [1.0 + len(d)] * 2


def test_methods_and_modules():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        @capture
        def forward(self, x):
            return self.linear(x).relu()

    net = Net().to(D)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(2, 4, device=D)
            assert same(net(x), net.linear(x).relu())
        assert plans(Net.__dict__["forward"]) == 1


def test_under_graph_and_explain_the_function_is_shown():
    fn = capture(lambda x: x.exp() + 1)
    x = torch.ones(4, device=D)
    fn(x)
    assert [n.op for n in torch_opaque.graph(fn, x).nodes if n.op not in ("input", "scalar")] == [
        "exp",
        "add",
    ]
    assert "exp" in str(torch_opaque.explain(fn, x))
    assert by_plan(fn, x).tolist() == (x.exp() + 1).tolist()


# ---- training


def mlp(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Dropout(0.2), nn.Linear(16, 4)
    ).to(D)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adam fused": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, fused=True),
    "adam loop": lambda p: torch.optim.Adam(p, lr=0.01, foreach=False),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "nadam loop": lambda p: torch.optim.NAdam(p, lr=0.01, foreach=False),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.1),
    "lion by hand": None,
}


class Own(ByHand):
    """Reads a number of its state."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01, "beta": 0.9})

    def first(self):
        return torch.zeros(())

    def update(self, p, state, group):
        correction = 1 - group["beta"] ** state["step"].item()
        state["mean"].lerp_(p.grad, 1 - group["beta"])
        p.add_((state["mean"] / correction).sign(), alpha=-group["lr"])


def train(captured: bool, optimizer, steps: int, zero_first: bool, check: int = 0):
    net = mlp()
    optimizer = (optimizer or Own)(net.parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def step(x, y, weight):
        if zero_first:
            optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), y) * weight
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        if not zero_first:
            optimizer.zero_grad()
        return loss

    if captured:
        step = capture(step, check=check)
    torch.manual_seed(1)
    seen = []
    for i in range(steps):
        x, y = torch.randn(5, 8, device=D), torch.randn(5, 4, device=D)
        seen.append(step(x, y, 1 + i / 10).detach().cpu())
        scheduler.step()
    seen += [p.detach().cpu() for p in net.parameters()]
    seen += [p.grad.cpu() for p in net.parameters() if p.grad is not None]
    return seen, step


def test_an_update_of_a_large_weight_is_no_epilogue():
    """Of the product that is its gradient: its kernel would read and write six large tensors tile by tile, and could not write in place."""
    net = nn.Linear(512, 1024, device=D)
    optimizer = torch.optim.Adam(net.parameters(), fused=True)

    def step(x):
        loss = net(x).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    captured = capture(step)
    for _ in range(3):
        captured(torch.randn(16, 512, device=D))
    seen = torch_opaque.graph(captured, torch.randn(16, 512, device=D), stage="fused")
    assert any(edge.refusal == "streams" for edge in seen.unfused)

    def few(a, b, c):
        return (a @ b) * c + c

    seen = torch_opaque.graph(few, *torch.randn(3, 512, 512, device=D), stage="fused")
    assert not any(edge.refusal == "streams" for edge in seen.unfused)
    assert any("matmul_mul_add" in kernel.name for kernel in seen.kernels)


def test_operators_on_tensors_of_the_cpu_are_called_again():
    """With tensors and lists of them, as arguments and as results."""

    def make():
        counter, table, flags = torch.zeros(()), torch.ones(3), torch.tensor([True, False, True])

        def fn(x, rate):
            counter.add_(1)
            table.mul_(0.5).add_(counter, alpha=2)
            table[1:].clamp_(max=2)
            both = torch.stack([table.sum(), counter])
            low, high = torch.aminmax(torch.where(flags, table, counter))
            torch._foreach_add_([counter, table], 1)
            parts = torch.split(both, 1)
            return x * parts[0].item() + (high - low).item() + both.sum().item() ** rate

        return fn, (counter, table)

    ours, state = make()
    plain, wanted = make()
    ours = capture(ours)
    ours(torch.ones(2, device=D), 1.5), plain(torch.ones(2, device=D), 1.5)
    ours(torch.ones(2, device=D), 1.0), plain(torch.ones(2, device=D), 1.0)
    for rate in (0.5, 2.0, 0.25):
        x = torch.randn(2, device=D)
        assert same(by_plan(ours, x, rate), plain(x, rate))
        assert all(map(torch.equal, state, wanted))


def test_what_a_call_wrote_on_the_cpu_is_put_back_if_it_does_not_fit():
    counter, table = torch.zeros((), dtype=torch.int64), torch.zeros(4)
    seen = []

    def fn(x):
        counter.add_(1)
        table[0].add_(1)
        table.add_(2)
        table[3].mul_(3)
        seen.append(counter.item() < 4)  # a guard behind what is written
        if seen[-1]:
            return x * 2
        return x * 3

    fn = capture(fn)
    x = torch.ones(2, device=D)
    for i in range(1, 7):
        assert fn(x).tolist() == [2.0 if i < 4 else 3.0] * 2
        assert counter.item() == i
        assert table[:3].tolist() == [3 * i, 2 * i, 2 * i]
    assert len(seen) < 6


@pytest.mark.parametrize("zero_first", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_training_step_is_one_call(name, zero_first):
    wanted, _ = train(False, OPTIMIZERS[name], 8, zero_first)
    before = calls()
    got, step = train(True, OPTIMIZERS[name], 8, zero_first)
    assert len(got) == len(wanted) and all(map(torch.equal, got, wanted))
    if name != "radam":  # which compares its numbers
        assert calls() - before >= 4, step.summary()


def test_the_loss_of_a_captured_step_has_no_graph():
    net, x = mlp(), torch.randn(5, 8, device=D)

    @capture
    def step():
        loss = net(x).sum()
        loss.backward()
        return loss

    for _ in range(4):
        net.zero_grad()
        loss = step()
    assert loss.requires_grad
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_gradients_add_up():
    w = nn.Parameter(torch.ones(3, device=D))

    @capture
    def step(x):
        (w * x).sum().backward()

    for i in range(5):
        step(torch.full((3,), i + 1.0, device=D))
        assert w.grad.tolist() == [sum(range(1, i + 2))] * 3
    w.grad = None
    step(torch.ones(3, device=D))
    assert w.grad.tolist() == [1.0] * 3


def test_a_long_backward_pass():
    """More is pending at its end than what runs by itself otherwise."""
    x = torch.linspace(-1, 1, 3).to(D)

    @capture
    def slope(p):
        y = p * 1
        for _ in range(2500):
            y = torch.tanh(y * p + x) * 0.9
        return torch.autograd.grad(y.sum(), p)[0]

    for i in range(4):
        p = torch.full((3,), 0.1 * i, device=D, requires_grad=True)
        assert same(slope(p), slope.__wrapped__(p)), i
    assert plans(slope) == 1


def test_the_end_of_backward_passes_records_nothing():
    """Autograd's thread holds it for a moment, and it would be a value that outlives the call."""
    x = torch.ones(3, device=D, requires_grad=True)
    (x * 2).sum().backward()
    before = torch_opaque.stats()["ops_recorded"]
    for _ in range(3):
        torch_opaque._C.finish_backward()
    assert torch_opaque.stats()["ops_recorded"] == before


def test_what_another_thread_runs_meanwhile_is_no_constant():
    @capture
    def fn(x):
        y = x * 2
        thread = threading.Thread(target=torch.opaque.synchronize)
        thread.start()
        thread.join()
        return y + 1

    for i in range(3):
        assert fn(torch.full((3,), float(i), device=D)).tolist() == [2.0 * i + 1] * 3
    assert "ran while it was captured" in fn.summary()


def test_an_optimizer_reads_the_gradients_of_each_backward_pass():
    """zero_grad() drops them, and backward() makes others."""
    torch.manual_seed(0)
    w, v = (torch.randn(5, 3).to(D).requires_grad_() for _ in range(2))
    copies = [p.detach().clone().requires_grad_() for p in (w, v)]
    optimizer, expected = (torch.optim.SGD(list(p), 0.1, momentum=0.9) for p in ((w, v), copies))
    step = capture(optimizer.step)
    for i in range(9):
        for a, b, opt in ((w, v, optimizer), (*copies, expected)):
            opt.zero_grad()
            (a * b * (i + 1)).sum().backward()
        by_plan(step) if i >= 5 else step()
        expected.step()
        assert all(map(same, (w, v), copies))
    # The first plan makes what the others go on with; two that hold one gradient take no other, and one more is recorded.
    assert plans(step) <= 4


def test_a_gradient_that_somebody_holds_is_that_very_one():
    w = torch.ones(3, device=D, requires_grad=True)
    held = []

    def fn():
        return w.grad * 2, held[0] + 0

    step = capture(fn)
    w.grad = torch.full((3,), 1.0, device=D)
    held.append(w.grad)
    for i in (1.0, 2.0, 3.0):
        w.grad = torch.full((3,), i, device=D)
        of_leaf, of_list = step()
        assert of_leaf.tolist() == [2 * i] * 3
        assert of_list.tolist() == [1.0] * 3


def test_gradients_that_come_to_share_memory_are_recorded_anew():
    w, v = (torch.ones(3, device=D, requires_grad=True) for _ in range(2))

    def fn():
        w.grad.mul_(2)
        v.grad.add_(1)

    step = capture(fn)
    for shared in (False, False, True, False):
        w.grad, v.grad = (torch.ones(3, device=D) for _ in range(2))
        if shared:
            v.grad = w.grad
        step()
        assert v.grad.tolist() == [3.0 if shared else 2.0] * 3
        assert w.grad.tolist() == [3.0 if shared else 2.0] * 3
        w.grad = v.grad = None


def test_a_captured_module_has_a_gradient():
    net = mlp().eval()
    fn = capture(net)
    for _ in range(4):
        x = torch.randn(5, 8, device=D, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        net.zero_grad()
        loss = fn(x).square().sum()
        assert loss.requires_grad
        loss.backward()
        got = [x.grad, *(p.grad for p in net.parameters())]
        net.zero_grad()
        net(y).square().sum().backward()
        assert all(map(same, got, [y.grad, *(p.grad for p in net.parameters())]))
    assert plans(fn) == 1, fn.summary()


def test_gradients_of_a_captured_function_know_autograds_rules():
    fn = capture(lambda x, w: (x * w).exp())
    x, w = (torch.ones(3, device=D, requires_grad=True) for _ in range(2))
    fn(x, w)
    y = fn(x, w)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()
    y = fn(x, w)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    y = fn(x, w)
    with pytest.raises(RuntimeError, match="create_graph"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


def test_what_is_done_to_a_result_is_no_matter_of_its_gradient():
    fn = capture(lambda x: x.exp())
    for _ in range(3):
        x = torch.zeros(3, device=D, requires_grad=True)
        y = fn(x)
        with torch.no_grad():
            y.detach().mul_(5)
        y.sum().backward()
        assert x.grad.tolist() == [1.0] * 3


def test_a_number_in_the_gradient():
    fn = capture(lambda x, t: x * t)
    for t in (1.0, 2.0, 3.0, 4.5):
        x = torch.ones(3, device=D, requires_grad=True)
        fn(x, t).sum().backward()
        assert x.grad.tolist() == [t] * 3
    assert plans(fn) == 2  # as it was written, and for any number


# ---- numbers


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, t: x * t,
        lambda x, t: t - x / (t + 1),
        lambda x, t: x.add(x, alpha=-t),
        lambda x, t: torch.addcmul(x, x, x, value=1 / t),
        lambda x, t: torch.full_like(x, t**2),
        lambda x, t: torch.softmax(x / t, 0),
        lambda x, t: x * (1 - 0.9**t) + math.pi * t // 2,
        lambda x, t: x.lerp(x + 1, t / 100),
        lambda x, t: torch.where(x > t - 2, x, x * 2),
        lambda x, t: x * (t if t < 3 else 3.0) + abs(-t) % 2,
        lambda x, t: x.clamp(max=t) * max(t, 2.0) + min(t, 4) + float(f"{t:.1f}"),
        lambda x, t: torch._foreach_add([x, x], [t, 2 * t])[1] - torch._foreach_mul([x], t)[0],
    ],
)
def test_numbers_that_change(fn):
    x = torch.linspace(-2, 3, 16, device=D)
    captured = capture(fn)
    for t in (1.5, 2.0, 2.5, 3.25, 7.0, 0.5):
        assert same(captured(x, t), fn(x, t)), t


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, n: x * n,
        lambda x, n: x * (1 - 0.9**n),
        lambda x, n: x / n + n % 3,
        lambda x, n: x[:n],
    ],
)
def test_integers_that_change(fn):
    x = torch.linspace(-2, 3, 16, device=D)
    captured = capture(fn)
    for n in (1, 2, 3, 5, 8, 2, 3):
        assert same(captured(x, n), fn(x, n)), n


def test_a_number_that_changes_is_recorded_once_more():
    fn = capture(lambda x, t, n: (x * t) / n)
    x = torch.ones(4, device=D)
    for i in range(8):
        assert fn(x, i / 2, i + 1).tolist() == pytest.approx([i / 2 / (i + 1)] * 4)
    assert plans(fn) == 2, fn.summary()


def test_a_branch_on_a_number_is_recorded_for_each_side():
    fn = capture(lambda x, t: x + t if t > 2 else x - t)
    x = torch.zeros(2, device=D)
    for t in (1.0, 1.5, 0.5, 3.0, 4.0, 1.0, 5.0):
        assert fn(x, t).tolist() == [t if t > 2 else -t] * 2
    assert plans(fn) == 3, fn.summary()


def test_numbers_come_out():
    fn = capture(lambda x, t: (x * t, t * 2, t))
    x = torch.ones(2, device=D)
    for t in (1.0, 2.0, 3.0):
        y, double, itself = fn(x, t)
        assert (double, itself) == (2 * t, t) and type(double) is float and type(itself) is float


# ---- what is recorded anew

NET = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))


def _changes():
    def tensor(change):
        return lambda c: c.update(args=(change(c["args"][0]), *c["args"][1:]))

    yield "shape", tensor(lambda x: torch.randn(6, 4, device=D))
    yield "dtype", tensor(lambda x: x.double())
    yield "strides", tensor(lambda x: torch.randn(4, 8, device=D).t())
    yield (
        "rank",
        tensor(lambda x: torch.randn(2, 8, 4, device=D).flatten(0, 1)[:8].unsqueeze(0).squeeze(0)),
    )
    yield "requires_grad", tensor(lambda x: x.clone().requires_grad_())
    yield "memory shared", lambda c: c.update(args=(c["args"][0], c["args"][0]))
    yield "argument", lambda c: c.update(kwargs={"flag": False})
    yield "keyword", lambda c: c.update(kwargs={})
    yield "text", lambda c: c.update(kwargs={"flag": "yes"})
    yield "no_grad", lambda c: c.update(context=torch.no_grad)
    yield "inference", lambda c: c.update(context=torch.inference_mode)
    yield "autocast", lambda c: c.update(context=lambda: torch.autocast(D, dtype=torch.bfloat16))
    yield "unfused", lambda c: c.update(context=torch_opaque.unfused)
    yield "default dtype", lambda c: c.update(context=_double)
    yield "training", lambda c: c["net"].eval()
    yield "frozen", lambda c: c["net"][0].weight.requires_grad_(False)
    yield "dropout", lambda c: setattr(c["net"][2], "p", 0.1)
    yield "module", lambda c: c["net"].__setitem__(0, nn.Linear(4, 4, bias=False).to(D))
    yield "parameter", lambda c: setattr(c["net"][0], "bias", None)
    yield "hook", lambda c: c["net"][0].register_forward_hook(lambda m, a, y: y * 2)
    yield "data", lambda c: setattr(c["net"][0].weight, "data", torch.ones(4, 4, device=D))
    yield "gradient", lambda c: setattr(c["net"][0].weight, "grad", torch.ones(4, 4, device=D))


class _double:
    def __enter__(self):
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *_):
        torch.set_default_dtype(torch.float32)


KEPT = ("data", "gradient")  # the plan serves them as well


@pytest.mark.parametrize(
    "name, change", list(_changes()), ids=lambda v: v if isinstance(v, str) else ""
)
def test_changes_are_recorded_anew(name, change):
    import contextlib
    import copy

    def setting():
        torch.manual_seed(0)
        return copy.deepcopy(NET).to(D)

    def fn(net):
        def run(x, y, flag=True):
            z = net(x.float()) + torch.full((), 1.5, device=D)
            z.add_(y.float().sum())
            return z * 2 if flag else z

        return run

    def use(call, net):
        case = {
            "args": (torch.randn(8, 4, device=D), torch.randn(8, 4, device=D)),
            "kwargs": {"flag": True},
            "net": net,
            "context": contextlib.nullcontext,
        }
        torch.manual_seed(5)
        seen = [call(*case["args"], **case["kwargs"]) for _ in range(3)]
        torch.manual_seed(6)
        case["args"] = tuple(torch.randn(8, 4, device=D) for _ in range(2))
        change(case)
        plans_before = plans(call) if hasattr(call, "summary") else 0
        torch.manual_seed(7)
        with case["context"]():
            seen += [call(*case["args"], **case["kwargs"]) for _ in range(2)]
        return [one.detach().clone().cpu() for one in seen], plans_before

    net = setting()
    wanted, _ = use(fn(net), net)
    net = setting()
    captured = capture(fn(net))
    got, before = use(captured, net)
    for a, b in zip(got, wanted):
        assert a.dtype == b.dtype and torch.equal(a, b)
    assert (plans(captured) > before) == (name not in KEPT), captured.summary()


def test_the_summary_says_why():
    fn = capture(lambda x: x + 1)
    fn(torch.ones(2, device=D))
    fn(torch.ones(3, device=D))
    assert "shape [3], not [2]" in fn.summary()


def test_plans_are_bounded():
    fn = capture(lambda x: x + 1)
    for n in range(1, 80):
        assert fn(torch.zeros(n, device=D)).sum().item() == n
    assert plans(fn) <= 64


# ---- what cannot be captured


@pytest.mark.parametrize(
    "look",
    [
        lambda x: x.sum().item(),
        lambda x: x.cpu(),
        lambda x: bool((x > 0).any()),
        lambda x: x.tolist(),
        lambda x: str(x),
        lambda x: x.nonzero(),
    ],
)
@pytest.mark.parametrize("computed", [True, False])
def test_looking_at_a_value_is_an_error_at_its_line(look, computed):
    fn = capture(lambda x: look(x if computed else x + 1))
    x = torch.ones(3, device=D)
    with pytest.raises(RuntimeError, match=r"test_capture.py:\d+.*captured"):
        fn(x)
    assert (x + 1).tolist() == [2.0] * 3  # nothing is lost


def test_an_error_in_the_function_leaves_what_it_did():
    state = torch.zeros(2, device=D)

    @capture
    def fn(x):
        state.add_(x)
        raise ValueError("own")

    for _ in range(3):
        with pytest.raises(ValueError, match="own"):
            fn(torch.ones(2, device=D))
    assert state.tolist() == [3.0] * 2


def test_an_error_of_a_kernel_names_its_line():
    table = torch.randn(5, 3, device=D)
    state = torch.zeros(3, device=D)

    @capture
    def fn(i):
        state.add_(1)
        return table[i]

    for _ in range(2):
        fn(torch.tensor([1, 2], device=D))
    with pytest.raises(IndexError, match=r"test_capture.py:\d+.*index 7"):
        fn(torch.tensor([1, 7], device=D))
    assert state.tolist() == [2.0] * 3  # of a call that failed nothing is done
    assert same(fn(torch.tensor([0, 4], device=D)), table[[0, 4]])


def test_tensors_that_outlive_the_call_are_made_by_python():
    kept = []

    @capture
    def fn(x):
        kept.append(x * 2)
        return x + 1

    for i in range(4):
        fn(torch.full((2,), float(i), device=D))
    assert [k.tolist() for k in kept] == [[2.0 * i] * 2 for i in range(4)]
    assert "outlive" in fn.summary()


def test_setting_the_seed_needs_python():
    @capture
    def fn(x):
        torch.manual_seed(1)
        return torch.rand_like(x)

    x = torch.ones(3, device=D)
    first = fn(x)
    torch.rand(5, device=D)
    assert same(fn(x), first)


# ---- check


def _world():
    return {
        "scale": 2.0,
        "list": [],
        "steps": 0,
        "table": torch.ones(3),
        "other": torch.full((3,), 7.0, device=D),
    }


SIDE_EFFECTS = {
    "a global number": (lambda w, x: x * w["scale"], lambda w: w.update(scale=3.0)),
    "a list that grew": (lambda w, x: x + len(w["list"]), lambda w: w["list"].append(1)),
    "a branch": (lambda w, x: x.exp() if w["steps"] > 0 else x.sin(), lambda w: w.update(steps=1)),
    "one more op": (
        lambda w, x: x + 1 if w["steps"] == 0 else (x + 1) * 1,
        lambda w: w.update(steps=1),
    ),
    "another tensor": (
        lambda w, x: x + w.get("w", w["other"]),
        lambda w: w.update(w=torch.zeros(3, device=D)),
    ),
    "a loop": (lambda w, x: sum((x for _ in range(w["steps"])), x), lambda w: w.update(steps=2)),
    "a constant": (
        lambda w, x: x + torch.tensor([w["scale"], 1.0, 2.0], device=D),
        lambda w: w.update(scale=4.0),
    ),
    "a tensor that is kept": (
        lambda w, x: (w["list"].append(x * 2) if w["steps"] else None, x + 1)[1],
        lambda w: w.update(steps=1),
    ),
    "another result": (lambda w, x: (x + 1, w["scale"]), lambda w: w.update(scale=5.0)),
    "another write": (
        lambda w, x: (w["other"].add_(1) if w["steps"] else w["other"]) + x,
        lambda w: w.update(steps=1),
    ),
    "another shape": (
        lambda w, x: x.view(3, 1) if w["steps"] else x.view(1, 3),
        lambda w: w.update(steps=1),
    ),
    "a draw": (
        lambda w, x: x + torch.rand(3, device=D) if w["steps"] else x + torch.ones(3, device=D),
        lambda w: w.update(steps=1),
    ),
}


@pytest.mark.parametrize("name", SIDE_EFFECTS)
def test_check_catches(name):
    body, change = SIDE_EFFECTS[name]
    world = _world()
    fn = capture(lambda x: body(world, x), check=2)
    for _ in range(6):
        fn(torch.ones(3, device=D))
    change(world)
    with pytest.raises(CaptureError):
        for _ in range(2):
            fn(torch.ones(3, device=D))


def test_check_finds_nothing_where_nothing_is():
    wanted, _ = train(False, OPTIMIZERS["adam"], 9, True)
    got, _ = train(True, OPTIMIZERS["adam"], 9, True, check=2)
    assert all(map(torch.equal, got, wanted))


def test_check_says_where():
    world = {"scale": 2.0}
    fn = capture(lambda x: x * world["scale"], check=1)
    fn(torch.ones(3, device=D))
    fn(torch.ones(3, device=D))
    world["scale"] = 3.0
    with pytest.raises(
        CaptureError, match=r"a number is another one, read by mul at test_capture.py:\d+"
    ):
        fn(torch.ones(3, device=D))


# ---- threads and memory


def test_threads_call_one_function(in_threads):
    weight = torch.randn(8, device=D)
    fn = capture(lambda x, t: (x * t + weight).sum(-1))
    failures = []

    def work(number: int):
        try:
            for i in range(60):
                x = torch.full((1 + (i + number) % 5, 8), float(i), device=D)
                wanted = x.cpu() * number + weight.cpu()
                if not torch.allclose(fn(x, float(number)).cpu(), wanted.sum(-1)):
                    failures.append((number, i))
                if i % 20 == 19:
                    fn.forget()
        except Exception as error:
            failures.append((number, repr(error)))

    in_threads(work, range(1, 5))
    assert not failures


def test_threads_capture_functions_that_share_tensors(in_threads):
    state = torch.zeros(16, device=D)
    failures = []

    def work(number: int):
        other = torch.zeros(16, device=D)

        def step(x):
            other.add_(state * 0 + x)
            return other + 1

        for _ in range(10):
            fn = capture(step)
            for _ in range(4):
                before = other.cpu()
                if (
                    fn(torch.full((16,), float(number), device=D)).tolist()
                    != (before + number + 1).tolist()
                ):
                    failures.append(number)

    in_threads(work, range(1, 4))
    assert not failures


def test_a_module_that_has_its_captured_function_is_collected():
    net = nn.Linear(4, 4).to(D)
    net.step = capture(lambda x: net(x))  # noqa: F821
    with torch.no_grad():
        for _ in range(3):
            net.step(torch.ones(2, 4, device=D))
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None


def test_nothing_is_kept():
    fn = capture(lambda x: (x * 2).sum())
    x = torch.ones(1000, device=D)
    fn(x)
    fn(x)
    gc.collect()
    before = torch.opaque.memory_allocated()
    for _ in range(100):
        fn(x)
    gc.collect()
    assert torch.opaque.memory_allocated() <= before + 64


def test_what_the_first_call_made_is_not_kept():
    net = nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 512)).to(D)
    fn = capture(lambda x: net(x))
    x = torch.ones(512, 512, device=D)
    torch.opaque.synchronize()
    gc.collect()
    before = torch.opaque.memory_allocated()
    fn(x)  # its result and what its gradient needs go
    gc.collect()
    assert plans(fn) == 1
    assert torch.opaque.memory_allocated() < before + (1 << 18)


def test_old_contents_given_beside_what_is_written_over_them():
    def fn(x, y):
        old = x.clone()
        y.copy_(x)
        x.add_(1)
        return old

    captured = capture(fn)
    for n in range(4):
        x = torch.full((1000,), float(n), device=D)
        y = torch.zeros(1000, device=D)
        torch.opaque.synchronize()
        assert captured(x, y)[0].item() == n == y[0].item() and x[0].item() == n + 1
    assert plans(captured) == 1


VIEWS = {
    "slice": lambda x: x[1:],
    "of two dimensions": lambda x: x.unsqueeze(0).expand(3, -1),
    "detached": lambda x: x.detach(),
    "data": lambda x: x.data,
    "turned": lambda x: x.view(2, 2).t(),
    "strides": lambda x: x.as_strided((2,), (2,), x.storage_offset()),
    "bits": lambda x: x.view(torch.int32)[1:],
    "bytes": lambda x: x.view(torch.uint8)[3:],
    "several": lambda x: x.split(2)[1],
}


@pytest.mark.parametrize("also", ("alone", "read", "written"))
@pytest.mark.parametrize("name", VIEWS)
def test_results_that_are_views_of_arguments(name, also):
    """Of those of each call, wherever they begin."""

    def fn(x):
        view = VIEWS[name](x)
        if also == "written":
            x.add_(1)
        return view, x * 2 if also == "read" else None

    captured = capture(fn)
    for call in range(5):
        whole = torch.randn(12)
        at = call % 3 if call > 1 else 0
        there = whole.to(D)
        view, read = captured(there[at : at + 4])
        wanted, read_wanted = fn(whole[at : at + 4])
        assert view.dtype == wanted.dtype and same(view, wanted) and same(there, whole)
        assert read is None or same(read, read_wanted)
        there.mul_(3)
        whole.mul_(3)
        assert same(view, wanted)  # a window on the argument


def test_views_that_were_there_before_are_given_as_they_are():
    x = torch.zeros(4, device=D)
    there = x[1:]
    fn = capture(lambda x: (there, x + 1))
    for n in range(3):
        y = torch.full((4,), float(n), device=D) if n else x
        assert fn(y)[0] is there


def test_arguments_that_are_exchanged():
    fn = capture(lambda a, b: torch.utils.swap_tensors(a, b))
    for _ in range(3):
        a, b = torch.zeros(2, device=D), torch.ones(2, device=D)
        fn(a, b)
        assert a.tolist() == [1.0, 1.0] and b.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("change", (list.pop, lambda xs: xs.append(xs[0] + 1), list.reverse))
def test_lists_of_arguments_that_change(change):
    def fn(xs):
        change(xs)
        return xs[0] * 2

    captured = capture(fn)
    for call in range(4):
        xs = [torch.full((2,), float(n + call), device=D) for n in range(3)]
        ys = [x.cpu() for x in xs]
        assert same(captured(xs), fn(ys)) and len(xs) == len(ys)
        assert all(same(x, y) for x, y in zip(xs, ys))


def test_a_view_of_a_parameter_follows_it():
    layer = nn.Linear(2, 2).to(D)
    fn = capture(lambda: layer.weight[1:])
    for _ in range(2):
        assert same(fn(), layer.weight[1:])
    layer.weight.data = torch.ones(2, 2, device=D)
    assert fn().tolist() == [[1.0, 1.0]]
    layer.weight = nn.Parameter(torch.zeros(2, 2, device=D))
    assert fn().tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("detached", (lambda w: w.detach(), lambda w: w.data, lambda w: w.t()))
def test_what_is_detached_of_a_parameter_follows_it(detached):
    weight = nn.Parameter(torch.ones(3, 3, device=D))
    fn = capture(lambda x: (detached(weight) * 2).sum() + x)
    for n in (1.0, 1.0, 5.0, 5.0):
        weight.data = torch.full((3, 3), n, device=D)
        assert fn(torch.zeros((), device=D)).item() == 18 * n


def test_gradients_of_results_that_are_views():
    fn = capture(lambda x: x[1:])
    for n in range(4):
        x = torch.full((3,), float(n), device=D, requires_grad=True)
        (fn(x) * (n + 1)).sum().backward()
        assert x.grad.tolist() == [0.0, n + 1.0, n + 1.0]


class Before:
    """A function whose backward() goes through what was computed before it."""

    def __init__(self, begin, device):
        self.leaf = torch.ones(3, device=device, requires_grad=True)
        self.kept = self.leaf + 1  # whose graph may be gone through again and again
        self.begin = begin

    def call(self, x, made):
        self.begin(self, x, made)
        return x * 1, self.leaf.grad

    def calls(self, wrap):
        """Of what it closes over, which is the same, and of an argument, which is not."""
        fn = wrap(self.call)
        for n in range(5):
            x = torch.full((3,), float(n), device=self.leaf.device)
            made = self.leaf * (n + 1) if n % 2 else self.leaf + n
            yield [None if one is None else one.tolist() for one in fn(x, made)]


def _ask(before, x, made):
    before.leaf.grad = torch.autograd.grad((made * x).sum(), before.leaf)[0]


BEGINS = {
    "a loss of it": lambda before, x, made: (before.kept * x).sum().backward(),
    "what comes in for it": lambda before, x, made: before.kept.backward(x),
    "a list": lambda before, x, made: torch.autograd.backward([before.kept], [x]),
    "a loss of an argument": lambda before, x, made: (made * x).sum().backward(),
    "an argument": lambda before, x, made: made.sum().backward(),
    "a part of an argument": lambda before, x, made: (made[1:] * x[1:]).sum().backward(),
    "asked for": _ask,
}


@pytest.mark.parametrize("begin", BEGINS)
def test_gradients_through_what_was_computed_before(begin):
    captured = []

    def wrap(fn):
        captured.append(capture(fn))
        return captured[0]

    wanted = list(Before(BEGINS[begin], "cpu").calls(lambda fn: fn))
    assert list(Before(BEGINS[begin], D).calls(wrap)) == wanted
    assert "a gradient goes through what was computed before it" in str(captured[0].summary())


def test_gradients_that_end_at_what_was_computed_before_are_captured():
    def fn(x):
        return torch.autograd.grad(x.square().sum(), x)[0]

    captured, leaf = capture(fn), torch.ones(3, device=D, requires_grad=True)
    for n in range(4):
        assert captured(leaf * n).tolist() == [2.0 * n] * 3
    assert "not captured" not in str(captured.summary())


def test_gradients_of_views_of_parameters_are_captured():
    weight = torch.ones(3, 2, device=D, requires_grad=True)
    captured = capture(lambda x: (weight.t()[0] * x).sum().backward())
    for n in range(3):
        captured(torch.full((3,), float(n), device=D))
    assert weight.grad.tolist() == [[3.0, 0.0]] * 3
    assert plans(captured) == 2 and "not captured" not in str(captured.summary())


VIEWS_INSIDE = {
    "turned": lambda x, w: x @ w.t(),
    "reshaped": lambda x, w: x.view(-1).sin().view(3, 8) @ w.view(64).sin().view(8, 8),
    "sliced": lambda x, w: x[:, :4] @ w[:4] * x[:1],
    "cut": lambda x, w: torch.cat([a * b for a, b in zip(x.chunk(2, 1), w[:3].chunk(2, 1))], 1),
    "expanded": lambda x, w: x[:, None, :].expand(3, 8, 8) * w,
    "attention": lambda x, w: (
        nn.functional.scaled_dot_product_attention(x[None], x[None], x[None])[0] @ w
    ),
    "as bits": lambda x, w: torch.view_as_complex(x.view(3, 4, 2)).abs() @ w[:4],
}


@pytest.mark.parametrize("view", VIEWS_INSIDE)
@pytest.mark.parametrize("given", ("leaf", "computed", "no gradient"))
def test_gradients_through_views_that_the_function_makes(view, given):
    def gradients(wrap):
        torch.manual_seed(0)
        weight, leaf = (torch.randn(8, 8, device=D).requires_grad_() for _ in range(2))
        fn, found = wrap(lambda x: VIEWS_INSIDE[view](x, weight)), []
        for _ in range(3):
            x = torch.randn(3, 8, device=D, requires_grad=given == "leaf")
            x = x * leaf.detach()[0] + leaf[1] if given == "computed" else x
            fn(x).square().sum().backward()
            found += [t.grad.clone() for t in (weight, leaf, x) if t.is_leaf and t.grad is not None]
        return found, fn

    wanted, _ = gradients(lambda fn: fn)
    got, fn = gradients(capture)
    assert len(got) == len(wanted) and all(same(a, b) for a, b in zip(got, wanted))
    assert plans(fn) == 1 and "not captured" not in str(fn.summary())


# What a function is given of a leaf, and what it closes over.
DEPENDENT = {
    "of each other": (lambda x, w: (x, x.sin()), lambda w: lambda x, y: x * y),
    "the same": (lambda x, w: (x, x), lambda w: lambda x, y: x * y.cos()),
    "a view": (lambda x, w: (x, x.view(4, 4)), lambda w: lambda x, y: x[:2] * y[2:]),
    "of a weight": (lambda x, w: (x @ w,), lambda w: lambda x: x.tanh() @ w),
    "around a block": (lambda x, w: (x @ w, x), lambda w: lambda x, y: x.relu() + y * w),
    "to two results": (lambda x, w: (x, x.sin()), lambda w: lambda x, y: (x * 2, y * 3)),
}


@pytest.mark.parametrize("hooks", (False, True))
@pytest.mark.parametrize("leaf_itself", (False, True))
@pytest.mark.parametrize("kind", DEPENDENT)
def test_gradients_of_what_is_computed_of_each_other(kind, leaf_itself, hooks):
    given, make = DEPENDENT[kind]

    def gradients(wrap):
        torch.manual_seed(0)
        leaf, weight = (torch.randn(4, 4, device=D).requires_grad_() for _ in range(2))
        fn, found = wrap(make(weight)), []
        if hooks:
            weight.register_hook(lambda g: g * 2)
        for call in range(3):
            leaf.grad = weight.grad = None
            args = given(leaf if leaf_itself else leaf * (call + 1), weight)
            if hooks:
                args[0].register_hook(lambda g: g * 3)
            result = fn(*args)
            sum(result if isinstance(result, tuple) else (result,)).sum().backward()
            found += [t.grad.clone() for t in (leaf, weight) if t.grad is not None]
        return found, fn

    wanted, _ = gradients(lambda fn: fn)
    got, fn = gradients(capture)
    assert len(got) == len(wanted) and all(same(a, b) for a, b in zip(got, wanted))
    assert "not captured" not in str(fn.summary())


def test_gradients_of_results_that_are_not_used():
    """They are zeros: which of the results have a gradient is not known until backward()."""
    fn = capture(lambda x, y: (x * 2, y * 3))
    for _ in range(2):
        x, y = (torch.ones(2, device=D, requires_grad=True) for _ in range(2))
        fn(x, y)[1].sum().backward()
        assert x.grad.tolist() == [0.0, 0.0] and y.grad.tolist() == [3.0, 3.0]


def _hook_leaf(weight, _optimizer, _module):
    return weight.register_hook(lambda g: g * 3)


def _hook_sum(weight, _optimizer, _module):
    return weight.register_post_accumulate_grad_hook(lambda p: (p.grad.mul_(2), None)[1])


def _hook_step(weight, optimizer, _module):
    return optimizer.register_step_pre_hook(lambda *_: (weight.grad.mul_(2), None)[1])


def _hook_stepped(weight, optimizer, _module):
    return optimizer.register_step_post_hook(lambda *_: (weight.data.add_(1), None)[1])


def _hook_backward(_weight, _optimizer, module):
    return module.register_full_backward_hook(lambda m, g, _: (g[0] * 2,))


HOOKS = (_hook_leaf, _hook_sum, _hook_step, _hook_stepped, _hook_backward)


@pytest.mark.parametrize("add", HOOKS)
def test_hooks_that_come_and_go(add):
    def losses(wrap):
        torch.manual_seed(0)
        module = nn.Linear(3, 3).to(D)
        weight = torch.randn(3, device=D, requires_grad=True)
        optimizer = torch.optim.SGD([weight, *module.parameters()], lr=0.1)

        def step(x):
            optimizer.zero_grad()
            loss = module(x * weight).square().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        fn, found, hook = wrap(step), [], None
        for call in range(9):
            if call == 3:
                hook = add(weight, optimizer, module)
            if call == 6:
                hook.remove()
            found.append(fn(torch.full((2, 3), call / 8, device=D)).item())
        return found

    assert losses(capture) == losses(lambda fn: fn)


def test_a_result_that_is_given_twice():
    fn = capture(lambda x: (lambda y: [y, y[0], y, x])(x * 2))
    for _ in range(3):
        x = torch.ones(2, device=D, requires_grad=True)
        a, b, c, d = fn(x)
        assert c is a and b is not a and d is x
        (a.sum() + c.sum() + b).backward()
        assert x.grad.tolist() == [6.0, 4.0]


def test_leaves_that_are_made_are_results():
    def fn(x):
        leaf = (x * 2).requires_grad_()
        (leaf * x).sum().backward()
        return leaf

    captured = capture(fn)
    for n in range(3):
        leaf = captured(torch.full((2,), float(n), device=D))
        assert leaf.is_leaf and leaf.tolist() == [2.0 * n] * 2 and leaf.grad.tolist() == [n] * 2


def test_leaves_that_become_results():
    leaf = torch.ones(3, device=D, requires_grad=True)
    fn = capture(lambda x: x.square().sum().backward())
    for n in range(3):
        fn(leaf)
        assert leaf.grad.tolist() == [2.0 * (n + 1)] * 3
    leaf.grad = None
    for n in range(3):
        fn(leaf * 3)
        assert leaf.grad.tolist() == [18.0 * (n + 1)] * 3


PARTS = {
    "as it is": lambda part: part.clone(),
    "turned": lambda part: part.t().clone(),
    "computed": lambda part: part * 2,
    "summed": lambda part: part.sum(1),
    "a product": lambda part: part @ part.t(),
}
WRITES = {
    "the part": lambda whole, part: part.add_(1),
    "beside it": lambda whole, part: whole[3:7].mul_(3),
    "all": lambda whole, part: whole.sub_(1),
    "a column": lambda whole, part: whole[:, 2].fill_(7),
}


@pytest.mark.parametrize("writes", WRITES)
@pytest.mark.parametrize("reads", PARTS)
def test_a_part_is_read_as_it_was_before_the_whole_is_written(reads, writes):
    """The memory of the whole is written to in place: the part that is read begins somewhere in it."""

    def fn(whole):
        part = whole[5:]
        old = PARTS[reads](part)
        WRITES[writes](whole, part)
        return old, PARTS[reads](whole[4:9])

    captured = capture(fn)
    for _ in range(4):
        whole = torch.randn(10, 8)
        given = whole.to(D)
        got = [*captured(given), given]
        for x, w in zip(got, [*fn(whole), whole], strict=True):
            torch.testing.assert_close(x.cpu(), w)
    assert plans(captured) == 1


@pytest.mark.parametrize("first", (0, 3))
def test_bits_are_read_as_they_were_before_the_number_is_written(first):
    def fn(whole):
        old = whole.view(torch.int32)[first:].clone()
        whole.add_(1)
        return old

    captured = capture(fn)
    for _ in range(4):
        whole = torch.randn(10, 8)
        given = whole.to(D)
        got = [captured(given), given]
        assert all(same(x, w) for x, w in zip(got, [fn(whole), whole], strict=True))


def test_a_cache_whose_part_was_read_is_written_in_place():
    cache = torch.zeros(1 << 10, 1 << 10, device=D)

    def fn(row):
        used = cache[:4].sum(0)
        cache[5] = row + used
        return cache[:8].sum()

    captured = capture(fn)
    for _ in range(3):
        captured(torch.ones(1 << 10, device=D))
    torch.opaque.reset_peak_memory_stats()
    before = torch.opaque.max_memory_allocated()
    assert captured(torch.ones(1 << 10, device=D)).item() == 1 << 10
    assert torch.opaque.max_memory_allocated() < before + (1 << 20)


def test_results_in_which_nothing_is_defined():
    fn = capture(lambda x: (x.new_empty(3, 2), x.new_zeros(0, 3), x + 1))
    for _ in range(4):
        a, b, c = fn(torch.ones(2, device=D))
        assert a.fill_(2).tolist() == [[2.0, 2.0]] * 3
        assert b.shape == (0, 3) and b.tolist() == [] and c.tolist() == [2.0, 2.0]
    assert plans(fn) == 1


def test_forget_drops_plans_and_what_they_hold():
    weight = torch.ones(100000, device=D)
    fn = capture(lambda x: x + weight.sum())
    fn(torch.ones(2, device=D))
    fn.forget()
    assert plans(fn) == 0
    assert fn(torch.ones(2, device=D)).tolist() == [100001.0] * 2


def test_in_place_steps_need_no_second_copy():
    p = torch.zeros(1 << 20, device=D)
    fn = capture(lambda: p.add_(1))
    for _ in range(3):
        fn()
    torch.opaque.reset_peak_memory_stats()
    before = torch.opaque.max_memory_allocated()
    fn()
    assert torch.opaque.max_memory_allocated() < before + (1 << 20)
    assert p[0].item() == 4


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16]
)
def test_tensors_of_the_cpu_of_any_dtype(dtype):
    fn = capture(lambda x, y: x + y.to(D) + y.to(D, torch.float32) + y.sum().to(D))
    for i in range(4):
        x, y = torch.ones(4, device=D), torch.full((4,), i).to(dtype)
        assert same(
            fn(x, y).float(), (x + y.to(D) + y.to(D, torch.float32) + y.sum().to(D)).float()
        )


def test_numbers_of_the_cpu_beside_tensors():
    def make():
        count = torch.zeros(())

        def fn(x):
            count.add_(1)
            return x * count + x / count.item() + torch.where(x > count, 1.0, 0.0)

        return count, fn

    (count, fn), (_, plain) = make(), make()
    fn = capture(fn)
    for _ in range(5):
        x = torch.randn(3, device=D)
        assert same(fn(x), plain(x))
    assert count.item() == 5
    assert plans(fn) == 1, fn.summary()
