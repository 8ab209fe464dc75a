"""The run after optimizer.step(): one per step, everything live, only where the device is involved."""

import contextlib

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


@pytest.mark.usefixtures("planned")
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


# ---- many small tensors


def parameters(device, count=60, dtype=torch.float32):
    """Of several shapes, with gradients."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for i in range(count):
        shape = (1 + i % 5, 3 + i % 7)
        p = torch.randn(shape, generator=generator).to(dtype).to(device).requires_grad_()
        p.grad = torch.randn(shape, generator=generator).to(dtype).to(device)
        made.append(p)
    return made


FORMS = {"for": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
OPTIMIZERS = {
    "adam": (torch.optim.Adam, {}),
    "adam decayed": (torch.optim.Adam, {"weight_decay": 0.1, "maximize": True}),
    "adamw": (torch.optim.AdamW, {"amsgrad": True}),
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "nesterov": (
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ),
    "rmsprop": (torch.optim.RMSprop, {}),
}


def stepped(device, name, form, steps=3, lr=None):
    make, options = OPTIMIZERS[name]
    ps = parameters(device)
    optimizer = make(ps, **options, **FORMS[form])
    for _ in range(steps):
        optimizer.step()
    torch.opaque.synchronize()
    return optimizer, ps


@pytest.mark.usefixtures("planned")
@pytest.mark.parametrize(
    ("name", "form"),
    [(n, f) for n in OPTIMIZERS for f in FORMS if (n, f) != ("rmsprop", "fused")],
)
def test_a_step_over_many_tensors(name, form):
    optimizer, ps = stepped("opaque", name, form)
    torch_opaque.reset_stats()
    optimizer.step()
    torch.opaque.synchronize()
    counters = torch_opaque.stats()
    assert counters["kernels_run"] <= 3 and counters["plans_built"] == 0
    assert counters["extern_calls"] == 0
    expected = stepped("cpu", name, form, 4)[1]
    for p, q in zip(ps, expected, strict=True):
        torch.testing.assert_close(p.cpu(), q)


def with_threads(count, run):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        return run()
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("form", FORMS)
def test_one_launch_or_many_threads_or_no_fusion_are_the_same_bits(form):
    def results():
        optimizer, ps = stepped("opaque", "adamw", form)
        return [t.detach().cpu() for t in ps] + [
            t.cpu() for s in optimizer.state.values() for t in s.values()
        ]

    one = with_threads(1, results)
    two = with_threads(2, results)
    with torch_opaque.unfused():
        alone = results()
    for a, b, c in zip(one, two, alone, strict=True):
        assert torch.equal(a, b) and torch.equal(a, c)


def launches(f):
    f()
    torch.opaque.synchronize()
    torch_opaque.reset_stats()
    f()
    torch.opaque.synchronize()
    return torch_opaque.stats()["kernels_run"]


@pytest.mark.usefixtures("planned")
def test_averages_and_zeroed_gradients_are_one_launch():
    averages, ps = parameters("opaque"), parameters("opaque")

    @torch.no_grad()
    def ema():
        for a, p in zip(averages, ps, strict=True):
            a.mul_(0.99).add_(p, alpha=0.01)

    @torch.no_grad()
    def ema_of_lists():
        torch._foreach_lerp_(averages, ps, 0.01)

    def zero():
        for p in ps:
            p.grad.zero_()

    assert launches(ema) == 1 and launches(ema_of_lists) == 1 and launches(zero) == 1
    expected, qs = parameters("cpu"), parameters("cpu")
    with torch.no_grad():
        for _ in range(2):
            for a, p in zip(expected, qs, strict=True):
                a.mul_(0.99).add_(p, alpha=0.01)
        for _ in range(2):
            torch._foreach_lerp_(expected, qs, 0.01)
    for a, b in zip(averages, expected, strict=True):
        torch.testing.assert_close(a.cpu(), b)


@pytest.mark.parametrize("foreach", [False, True])
def test_clipped_gradients(foreach):
    def clip(ps):
        return torch.nn.utils.clip_grad_norm_(ps, 0.5, foreach=foreach)

    ps, qs = [p.reshape(-1)[:3].detach().requires_grad_() for p in parameters("opaque")], []
    for p in ps:
        p.grad = (p * 3).detach()
        qs.append(p.detach().cpu().requires_grad_())
        qs[-1].grad = p.grad.cpu()
    torch.testing.assert_close(clip(ps).cpu(), clip(qs))
    for p, q in zip(ps, qs, strict=True):
        torch.testing.assert_close(p.grad.cpu(), q.grad)


def test_explain_shows_a_wave_once():
    ps = parameters("opaque", 40)
    explanation = torch_opaque.explain(lambda: [p * 2 + 1 for p in ps], show=False)
    rows = [k["rows"] for k in explanation.kernels]
    assert sum(rows) == 40 and len(rows) <= 2
    assert f"x {rows[0]}" in explanation.text()
    assert explanation.bytes_moved >= 40 * 3 * 8


# ---- in the place of the old values


def test_a_step_holds_no_second_copy():
    p = torch.zeros(1 << 18, device="opaque").requires_grad_()
    p.grad = torch.ones(1 << 18, device="opaque")
    optimizer = torch.optim.Adam([p], fused=True)
    optimizer.step()
    torch.opaque.synchronize()
    torch_opaque.reset_stats()
    before = torch_opaque.stats()["bytes_allocated"]
    optimizer.step()
    torch.opaque.synchronize()
    assert torch_opaque.stats()["bytes_peak"] < before + (1 << 18)


def test_whoever_keeps_the_old_values_keeps_them():
    x = torch.arange(8.0).to("opaque")
    copy, other = x.clone(), x.detach()
    torch.opaque.synchronize()
    x.mul_(2)
    late = copy + 1  # reads the value that x had
    x.add_(1)
    torch.opaque.synchronize()
    assert x.tolist() == other.tolist() == [2.0 * i + 1 for i in range(8)]
    assert copy.tolist() == [float(i) for i in range(8)]
    assert late.tolist() == [i + 1.0 for i in range(8)]
    y = x * 3  # pending, of a value that goes
    x.zero_()
    x.add_(5)
    torch.opaque.synchronize()
    assert y.tolist() == [3 * (2.0 * i + 1) for i in range(8)] and x.tolist() == [5.0] * 8


def test_a_failed_step_goes_back():
    x, table = torch.arange(4.0).to("opaque"), torch.arange(4.0).to("opaque")
    bad = torch.tensor([9]).to("opaque")
    torch.opaque.synchronize()
    x.mul_(2)
    x.add_(table[bad])
    with pytest.raises(IndexError):
        x.tolist()
    assert x.tolist() == [0.0, 2.0, 4.0, 6.0]


# ---- lists


def test_lists_that_are_not_simple_are_done_all_the_same():
    def lists(device):
        a = [torch.ones(3), torch.ones(4, 2).t(), torch.ones(2, dtype=torch.float64), torch.ones(0)]
        b = [torch.full((3,), 2.0), torch.ones(2, 4), torch.ones(2), torch.ones(0)]
        return [t.to(device) for t in a], [t.to(device) for t in b]

    def results(device):
        a, b = lists(device)
        made = [
            *torch._foreach_add(a, b, alpha=3),
            *torch._foreach_mul(a, [1, 2.5, 3, 4]),
            *torch._foreach_sub(a, 2),
            *torch._foreach_mul(a, torch.tensor(2.0).to(device)),
            *torch._foreach_maximum(a, b),
            *torch._foreach_sqrt(a),
        ]
        torch._foreach_addcdiv_(a, b, b, 0.5)
        torch._foreach_lerp_(a[:2], b[:2], 0.75)
        return [t.cpu() for t in made + a]

    for x, y in zip(results("opaque"), results("cpu"), strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize(
    "call",
    [
        lambda a: torch._foreach_add_(a, a[:1]),
        lambda a: torch._foreach_mul(a, [1.0]),
        lambda a: torch._foreach_neg([]),
        lambda a: torch._foreach_mul(a[:1], torch.ones_like(a[0])),
        lambda a: torch._foreach_add_(a[:1], torch.ones_like(a[0])),
    ],
)
def test_errors_of_lists(call):
    messages = []
    for device in "cpu", "opaque":
        with pytest.raises((RuntimeError, ValueError)) as error:
            call([torch.ones(2, device=device), torch.ones(3, device=device)])
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_one_element_of_the_tensor_itself():
    for t in torch.arange(4.0).to("opaque"), torch.arange(4.0):
        assert (t * t[3]).tolist() == [0.0, 3.0, 6.0, 9.0]
        with pytest.raises(RuntimeError, match="refer to a single memory location"):
            t.add_(t[1])
        with pytest.raises(RuntimeError, match="refer to a single memory location"):
            t.mul_(t[0])


def test_writes_of_lists_are_noticed_by_autograd():
    for write in (
        lambda a: torch._foreach_mul_(a, 2.0),
        lambda a: torch._foreach_add_(a, a, alpha=0.5),
        lambda a: torch._foreach_sqrt_(a),
    ):
        a = torch.ones(3, device="opaque", requires_grad=True)
        b = a * 2
        c = b * b
        write([b])
        assert b._version == 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            c.sum().backward()


def test_a_compiled_step_on_the_cpu_is_not_broken_by_the_hook():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(3, 4)).sum().backward()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.compile(optimizer.step, backend="eager")()
    breaks = torch._dynamo.utils.counters["graph_break"]
    assert not any("torch_opaque" in text or "is_initialized" in text for text in breaks), breaks


@pytest.mark.parametrize("rows", [1, 64])
@pytest.mark.parametrize(
    "how", [torch_opaque.unfused, contextlib.nullcontext], ids=["unfused", "fused"]
)
def test_a_weight_used_several_times_and_updated_in_one_run(rows, how):
    """What products keep of the old weight is of no use to the next step, whose weight lies in the same memory."""

    def train(device):
        torch.manual_seed(0)
        w = (torch.randn(64, 64) / 8).to(device).requires_grad_()
        losses = []
        for x in torch.randn(5, rows, 64):
            h = x.to(device)
            for _ in range(4):
                h = h @ w + 0.1 * h
            loss = h.square().mean()
            (grad,) = torch.autograd.grad(loss, [w])
            with (
                torch.no_grad()
            ):  # the norm is of the whole gradient: the update is a kernel of its own
                w -= 0.3 * grad / grad.norm()
            losses.append(loss.item())
        return losses

    with how():
        got = train("opaque")
    assert got == pytest.approx(train("cpu"), rel=1e-4)
