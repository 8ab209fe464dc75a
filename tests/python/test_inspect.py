"""graph, explain, compare, dump, describe: what they show, and that they leave everything as it was."""

import json
import re
import warnings
from collections import Counter
from contextlib import nullcontext

import numpy as np
import pytest
import torch
import torch_opaque
from torch import nn
from torch_opaque import _C, watch


def chain(x):
    return torch.relu(x * 2 + 1) - x


def ops(text):
    found = re.findall(r"^\s*%\d+ = (\w+)", text, re.M)
    return [op for op in found if op not in ("input", "const", "scalar")]


# ---- graph


def test_graph_of_a_tensor_runs_nothing():
    y = chain(torch.ones(4, device="opaque"))
    text = str(torch_opaque.graph(y))
    assert "relu" in ops(text) and _C.is_pending(y) and "test_inspect.py:" in text
    assert torch_opaque.stats()["kernels_run"] == 0


@pytest.mark.parametrize(
    "stage",
    ["recorded", "simplified", "fused", "kernels", "schedule", "c", "schedule_c", "llvm", "asm"],
)
def test_every_stage(stage):
    text = str(torch_opaque.graph(chain, torch.ones(40, device="opaque"), stage=stage))
    assert {
        "kernels": "kernel @",
        "schedule": "schedule @",
        "c": "\nvoid ",
        "schedule_c": "\nvoid ",
        "llvm": "define ",
        "asm": "ret",
    }.get(stage, "graph @") in text


def test_recorded_text_round_trips(opq_opt, tmp_path):
    path = tmp_path / "g.ir"
    path.write_text(str(torch_opaque.graph(chain, torch.ones(4, device="opaque"))))
    assert opq_opt(path, "--verify", "--print") == path.read_text()


@pytest.mark.parametrize(
    "call, error",
    [
        (lambda: torch_opaque.graph(torch.ones(2)), TypeError),
        (lambda: torch_opaque.graph(5), TypeError),
        (lambda: torch_opaque.graph([]), TypeError),
        (lambda: torch_opaque.graph(lambda: torch.ones(2)), TypeError),
        (lambda: torch_opaque.graph(torch.ones(2, device="opaque"), 1), TypeError),
        (
            lambda: torch_opaque.graph(chain, torch.ones(2, device="opaque"), stage="best"),
            ValueError,
        ),
        (
            lambda: torch_opaque.compare(chain, torch.ones(2, device="opaque"), vs=("fast",)),
            ValueError,
        ),
        (lambda: torch_opaque.compare(torch.ones(2, device="opaque")), TypeError),
        (lambda: torch_opaque.describe(torch.ones(2)), TypeError),
    ],
)
def test_wrong_arguments(call, error):
    with pytest.raises(error):
        call()


def test_a_function_that_looks_at_values_is_noticed():
    def f(x):
        y = x * 2
        return y + y.sum().item()

    with pytest.warns(UserWarning, match="looked at values"):
        torch_opaque.graph(f, torch.ones(3, device="opaque"))


def test_an_edge_within_one_op_is_called_by_it():
    """The parts of a concatenation are written one after the other, which is nobody's word."""
    x, w = torch.randn(64, 64, device="opaque"), torch.randn(64, 64, device="opaque")
    explanation = torch_opaque.explain(
        lambda: torch.cat([x @ w, (x @ w.t()).t(), x.softmax(0)], 1) @ x.repeat(3, 1), show=False
    )
    ends = {end for edge in explanation.unfused for end in edge.ends}
    assert ends and not ends & {"update", "undefined"}, explanation.text()


@pytest.mark.parametrize("stage", ["llvm", "asm"])
def test_code_says_of_which_kernel_it_is(stage):
    """All functions have one name."""
    x = torch.randn(8, 8, device="opaque")
    fused = torch_opaque.graph(lambda x: torch.softmax((x @ x).relu(), -1), x, stage="fused")
    text = fused.stage(stage).text
    for kernel in fused.kernels:
        assert re.search(rf"^[;#] kernel \d+ {kernel.name}: test_inspect.py:\d+$", text, re.M)


class Parts:
    """A training step that reads its loss, and with `sync` the hidden layer too."""

    def __init__(self):
        self.model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).to("opaque")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, x, sync=False):
        hidden = self.model[1](self.model[0](x))
        if sync:
            hidden.sum().item()
        loss = self.model[2](hidden).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def test_a_step_that_reads_its_loss_is_shown():
    """Nothing is pending in the end: what the read ran is the graph."""
    training, x = Parts(), torch.randn(5, 6, device="opaque")
    training.step(x)
    before = [p.detach().cpu() for p in training.model.parameters()]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = torch_opaque.graph(training.step, x, stage="fused")
    assert graph.find(op="matmul") and graph.kernels
    explanation = torch_opaque.explain(training.step, x, show=False)
    assert len(explanation.kernels) == len({k.launch for k in graph.kernels})
    assert explanation.reason == "item" and "item at test_inspect.py" in explanation.text()
    assert {n.module for n in explanation.graph.nodes} >= {"0", "2"}
    assert all(torch.equal(p.cpu(), b) for p, b in zip(training.model.parameters(), before))


def test_what_is_computed_already_is_said():
    x = torch.ones(4, device="opaque") + 1
    x.cpu()
    assert "nothing was left to run" in torch_opaque.explain(x, show=False).text()


@pytest.fixture
def patient(monkeypatch):
    """On a machine that does other things, too, a function would run fewer times."""
    monkeypatch.setattr(torch_opaque.explanation, "_SECONDS", 1000.0)


def test_a_function_that_ran_in_parts_has_an_explanation_for_each(patient):
    training, x = Parts(), torch.randn(5, 6, device="opaque")
    training.step(x)
    torch_opaque.explain(training.step, x, sync=True, show=False)  # plans it
    stats = torch_opaque.stats()
    explanation = torch_opaque.explain(training.step, x, sync=True, show=False)
    now = torch_opaque.stats()
    first, second = explanation.parts
    assert explanation in (first, second) and first.line != second.line
    assert first.seconds + second.seconds > 0 and explanation.seconds == max(
        first.seconds, second.seconds
    )
    launches = len(first.kernels) + len(second.kernels)
    assert 6 * launches == now["kernels_run"] - stats["kernels_run"]
    assert first.watched == second.watched == 6 and explanation.keepers
    assert "2 (this)" in explanation.text() or "1 (this)" in explanation.text()
    backward = [n for n in second.graph.nodes if n.op == "matmul" and n.backward]
    assert backward and all(n.module in ("0", "2") for n in backward)
    assert not any(n.backward for n in first.graph.nodes)
    assert any(n.forward is None for n in backward)  # its forward op is in the other part
    parts = json.loads(explanation.to_json())["parts"]
    assert [p["reason"] for p in parts] == ["item", "item"]


@pytest.mark.parametrize("how", ["foreach", "loop", "fused"])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_a_step_on_snapshots_records_what_the_program_records(kind, how):
    """In-place ops that run take a short way, of which the rows of the op table may be others; so would be kernels and bytes."""
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)).to("opaque")
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    options |= {"foreach": how == "foreach"} if how != "fused" else {"fused": True}
    optimizer = kind(model.parameters(), lr=0.1, weight_decay=0.1, **options)
    x = torch.ones(5, 6, device="opaque")

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    for _ in range(3):  # its own plan, then that of later steps
        loss = step()
    torch.opaque.synchronize()
    runs = watch.Runs()
    with runs.watched():
        loss = step()  # noqa: F841  which is held, as that of the look is
    (run,) = (run for run in runs.kinds if run.launches)
    ran, seen = run.graph("recorded"), torch_opaque.graph(step)
    assert Counter(n.op for n in seen.nodes) == Counter(n.op for n in ran.nodes)
    explanation = torch_opaque.explain(step, show=False)
    assert explanation.why == ["the plan was there"]
    assert [k["name"] for k in explanation.kernels] == [k["name"] for k in run.launches]


def test_who_asks_in_another_order_has_the_same_plan():
    x = torch.ones(13, 6, device="opaque")
    torch.opaque.synchronize()

    def f(order):
        found = x + 1, x * 2, (x - 3).sum(0)
        return [found[i] for i in order]

    first = torch_opaque.explain(f, (0, 1, 2), show=False)
    second = torch_opaque.explain(f, (2, 0, 1), show=False)
    assert first.runs[0]["why"] and second.why == ["the plan was there"]
    assert [n.shape for n in torch_opaque.graph(f, (2, 0, 1)).outputs] == [(6,), (13, 6), (13, 6)]
    sums, more, twice = f((2, 0, 1))
    assert (
        sums.tolist() == [-26] * 6 and more[0].tolist() == [2] * 6 and twice[0].tolist() == [2] * 6
    )


def test_times_of_a_function_are_those_of_a_warm_run(patient):
    """The first run of a plan touches new memory, which takes several times as long."""
    x, calls = torch.ones(1 << 21, device="opaque"), []
    torch.opaque.synchronize()

    def f(x, size=0):
        calls.append(size)
        return x[size:].reshape(-1, 8).softmax(-1) + 0.75 * x[size:].reshape(-1, 8)

    first, *later = [torch_opaque.explain(f, x, show=False) for _ in range(6)]
    assert len(calls) == 7 + 5 * 6 and first.watched == 6 and later[0].watched == 6
    assert first.warm and not first.cold and "cold run" not in first.text()
    assert (
        first.runs[0]["why"]
        and first.kernels[0]["fresh"]
        and first.kernels[0]["compile_seconds"] > 0
    )
    assert later[0].why == ["the plan was there"]
    assert all(k["low"] <= k["seconds"] <= k["high"] for k in first.kernels)
    assert "times are medians of 6 runs" in first.text()
    assert first.seconds < 2 * max(e.seconds for e in later)
    pending = torch_opaque.explain(f, x + 1, show=False)  # which only one run computes
    assert pending.cold and "cold run" in pending.text()
    drawn = torch_opaque.explain(lambda: f(x, 8 * len(calls)), show=False)
    assert drawn.cold and drawn.runs[0]["why"]
    batches = iter([x[:96]])
    once = torch_opaque.explain(lambda: f(next(batches)), show=False)
    assert once.cold and once.kernels
    y = x * 3
    assert "cold run" in torch_opaque.explain(y, show=False).text()


def test_parts_of_a_function_run_warm():
    training, x = Parts(), torch.ones(7, 6, device="opaque")
    torch.opaque.synchronize()
    explanation = torch_opaque.explain(training.step, x, sync=True, show=False)
    assert all(part.warm and part.runs[0]["why"] for part in explanation.parts)


def test_parts_of_a_function_within_a_watched_program():
    """explain() in a program that is watched itself leaves the watch on."""
    training, x = Parts(), torch.randn(5, 6, device="opaque")
    runs = watch.Runs()
    with runs.watched():
        torch_opaque.explain(training.step, x, show=False)
        (x + 1).sum().item()
    assert [run.reason for run in runs.kinds if run.launches][-1] == "item"


# ---- snapshots


def training(middle=nn.BatchNorm1d):
    """(step function, everything that must be as before)"""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), middle(8), nn.Dropout(0.5), nn.Linear(8, 3)).to("opaque")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    x, labels = torch.randn(5, 6, device="opaque"), torch.tensor([0, 1, 2, 0, 1], device="opaque")

    def step():
        loss = nn.functional.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss

    def state():
        tensors = [
            *model.state_dict().values(),
            *(p.grad for p in model.parameters() if p.grad is not None),
        ]
        tensors += [t for s in optimizer.state.values() for t in s.values()]
        rng = [torch.opaque.get_rng_state(), torch.get_rng_state()]
        return [t.detach().cpu().clone() for t in tensors + rng] + [
            torch.tensor(scheduler.get_last_lr())
        ]

    return step, state


@pytest.mark.parametrize("warm", [0, 2])
@pytest.mark.parametrize(
    "look",
    [
        lambda step, dir: torch_opaque.graph(step),
        lambda step, dir: torch_opaque.graph(step, stage="fused"),
        lambda step, dir: torch_opaque.explain(step, show=False),
        lambda step, dir: torch_opaque.compare(step, repeat=2, show=False),
        lambda step, dir: torch_opaque.dump(step, dir=dir),
    ],
    ids=["graph", "fused", "explain", "compare", "dump"],
)
def test_everything_is_as_before(look, warm, tmp_path):
    step, state = training()
    for _ in range(warm):
        step()
    before = state()
    look(step, tmp_path)
    after = state()
    assert len(before) == len(after) and all(
        torch.equal(a, b) for a, b in zip(before, after, strict=True)
    )
    looked = [step().item() for _ in range(3)]
    other, _ = training()
    for _ in range(warm):
        other()
    assert looked == [other().item() for _ in range(3)]


def test_a_raising_function_is_undone_too():
    x = torch.ones(3, device="opaque")

    def f():
        x.add_(1)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        torch_opaque.graph(f)
    assert x.tolist() == [1, 1, 1] and _C.journal_depth() == 0


def test_outputs_are_returns_then_writes_in_order(tmp_path, opq_opt):
    a, b = torch.zeros(2, device="opaque"), torch.ones(3, device="opaque")

    def f(x):
        b.mul_(5)
        a.add_(x)
        b.add_(1)
        return {"out": x * 10, "other": [x, a]}

    torch_opaque.dump(f, torch.full((2,), 3.0, device="opaque"), dir=tmp_path)
    opq_opt("--run", tmp_path)
    outputs = [np.load(tmp_path / f"out{i}.npy").tolist() for i in range(5)]
    assert outputs == [[30, 30], [3, 3], [3, 3], [6, 6, 6], [3, 3]]
    assert not (tmp_path / "out5.npy").exists()
    assert a.tolist() == [0, 0] and b.tolist() == [1, 1, 1]


# ---- dump


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.float16,
        torch.int64,
        torch.uint8,
        torch.bool,
    ],
)
def test_dump_runs_without_pytorch_to_the_same_bits(dtype, tmp_path, opq_opt):
    x = torch.randn(5, 7).mul(3).to(dtype).to("opaque")

    def f(x):
        return x.t().contiguous(), torch.where(x == 0, x, x + x)

    paths = torch_opaque.dump(f, x, dir=tmp_path / "new")
    assert paths[0].endswith("graph.ir") and (tmp_path / "new" / "notes.txt").exists() == (
        dtype == torch.bfloat16
    )
    opq_opt("--run", tmp_path / "new")
    for i, expected in enumerate(f(x)):
        expected = expected.cpu()
        loaded = torch.from_numpy(np.load(tmp_path / "new" / f"out{i}.npy"))
        assert torch.equal(loaded.view(torch.uint8), expected.contiguous().view(torch.uint8))


def test_dump_of_a_training_step(tmp_path, opq_opt):
    step, state = training(nn.LayerNorm)
    torch_opaque.dump(step, dir=tmp_path)
    opq_opt("--run", tmp_path)
    ran = [np.load(p) for p in sorted(tmp_path.glob("out*.npy"), key=lambda p: int(p.stem[3:]))]
    loss = step()
    assert ran[0].tobytes() == loss.detach().cpu().numpy().tobytes()
    bits = {a.tobytes() for a in ran}
    assert all(t.numpy().tobytes() in bits for t in state()[:2])


def test_dump_replaces_an_earlier_one(tmp_path):
    x = torch.ones(2).to("opaque")
    torch_opaque.dump(lambda: x + x, dir=tmp_path)
    (tmp_path / "input7.npy").touch()
    (tmp_path / "mine.txt").touch()
    torch_opaque.dump(lambda: x * 2, dir=tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["graph.ir", "input0.npy", "mine.txt"]


# ---- explain, compare, describe


def test_explain(capsys):
    x = torch.randn(100, 50, device="opaque")
    torch.opaque.synchronize()
    result = torch_opaque.explain(chain, x)
    shown = capsys.readouterr().out
    assert len(result.kernels) == 1 and "test_inspect.py:" in result.kernels[0]["lines"]
    assert result.bytes_moved == 2 * x.numel() * 4 and result.bytes_saved > 0
    assert "1 kernels, 0 extern calls" in shown and "saved by fusion" in shown
    assert any(what == "returned" for what, _, _ in result.keepers)
    assert "graph @" in str(result.graph)


def test_explain_names_reasons_and_extern_calls():
    x = torch.randn(64, 64, device="opaque")
    result = torch_opaque.explain(
        lambda: torch.linalg.inv_ex(torch.softmax(x, 0) + 1)[0] * 2, show=False
    )
    assert any(k["kind"] == "extern" for k in result.kernels) and result.unfused
    assert all("unknown" not in edge.reason for edge in result.unfused)


def test_no_run_compiles_a_tile(run_warm):
    text = """
import torch, torch_opaque
w, a, b = (torch.ones(n, 64, device="opaque") for n in (64, 64, 7))
torch.opaque.synchronize()
torch_opaque.explain(a @ w, show=False)
before = torch_opaque.stats()
launch = torch_opaque.explain(b @ w, show=False).kernels[0]  # its kernel exists, its tile is another
after = torch_opaque.stats()
print(after["kernels_compiled"] == before["kernels_compiled"], launch["compile_seconds"] == 0)
print(after["compile_seconds"] - before["compile_seconds"] < 1e-3)  # of planning
"""
    assert run_warm(text).stdout.split() == ["True", "True", "True"]


class Keeps(nn.Module):
    def forward(self, x):
        self.hidden = x.exp() @ x
        return self.hidden.relu()


def test_who_keeps_what_a_function_returns_and_what_it_left_behind():
    x, cache, module = torch.rand(64, 64, device="opaque"), {}, Keeps()
    torch.opaque.synchronize()

    def kept(fn) -> list:
        rows = torch_opaque.explain(fn, show=False).keepers
        return sorted((what, kind, size // 64) for what, kind, size in rows)

    whole = ("returned", "float32[64, 64]", 256)
    assert kept(lambda: x + 1) == [whole]
    assert kept(lambda: {"out": [x * 2]}) == [whole]
    # a view keeps all of it
    assert kept(lambda: (x * 2)[0]) == [("returned", "float32[64] of a larger one", 256)]
    assert kept(lambda: torch.stack([x[0] * 2, x[1] * 3])) == [("returned", "float32[2, 64]", 8)]
    assert kept(lambda: module(x)) == [("attribute Keeps.hidden", *whole[1:]), whole]
    assert kept(lambda: (cache.update(last=x.sin()), x.cos())) == [
        ("cache['last']", *whole[1:]),
        whole,
    ]

    def reads():
        y = x * 5
        return y if y.sum().item() else x

    assert kept(reads) == [whole]


def test_explain_of_a_tensor_names_its_variable():
    x = torch.ones(2000, device="opaque")
    kept = x * 3
    result = torch_opaque.explain(kept + 1, show=False)
    assert any(what == "variable kept" for what, _, _ in result.keepers)
    assert not _C.is_pending(kept)


def test_compare(capsys):
    x = torch.randn(200, 300, device="opaque")
    result = torch_opaque.compare(chain, x, repeat=2)
    shown = capsys.readouterr().out
    assert [r.mode for r in result.rows] == ["eager", "unfused", "fused"]
    assert all(r.same_bits and r.max_difference == 0 for r in result.rows)
    assert result["fused"].kernels == 1 < result["unfused"].kernels
    assert result["fused"].bytes < result["unfused"].bytes
    assert "same bits" in shown and "unfused" in shown


def test_compare_draws_equal_random_numbers():
    x = torch.ones(500, device="opaque")
    assert torch_opaque.compare(lambda: nn.functional.dropout(x), repeat=1, show=False)[
        "eager"
    ].same_bits


def test_describe():
    x = torch.randn(4, 6, device="opaque", requires_grad=True)
    y = chain(x).t()[1:]
    text = torch_opaque.describe(y)
    assert (
        "float32[5, 4]" in text
        and "pending" in text
        and "strides [1, 6], offset 1" in text
        and "requires grad" in text
    )
    y.sum().item()
    assert torch_opaque.describe(x.detach()).endswith("computed")


def test_stats_keys():
    stats = torch_opaque.stats()
    wanted = """ops_recorded flushes kernels_run kernels_compiled kernels_loaded runs_in_pieces runs_joined captured_calls plans_built plans_in_background plans_failed plans_reused
    extern_calls bytes_read bytes_written
        bytes_allocated bytes_peak bytes_packed kernels_kept kernels_split bytes_code compile_seconds run_seconds"""
    assert set(wanted.split()) == set(stats) and isinstance(stats["flushes"], dict)
    torch.linalg.eigvals(torch.eye(2, device="opaque")).cpu()
    counts = torch_opaque.fallback_counts()
    assert counts and all(isinstance(k, str) and v > 0 for k, v in counts.items())
    torch_opaque.reset_stats()
    assert torch_opaque.fallback_counts() == {} and torch_opaque.stats()["kernels_run"] == 0


# ---- what is printed is what runs


def kernels_of(text):
    return re.findall(r"^  kernel \w+ @(\w+) \{", text, re.M)


def test_held_tensors_are_outputs():
    x = torch.ones(8, 8).to("opaque")
    held = x * 2
    y = (held + 1).relu()
    text = str(torch_opaque.graph(y, stage="fused"))
    assert len(re.search(r"^  output (.*)$", text, re.M)[1].split(", ")) == 2
    result = torch_opaque.explain(y, show=False)
    assert str(result.graph) == text and not _C.is_pending(held)


@pytest.mark.parametrize("mode", [torch_opaque.unfused, nullcontext], ids=["unfused", "fused"])
def test_the_fused_stage_is_of_the_mode_that_is_on(mode):
    def f(x):
        return torch.softmax(x * 2 + 1, 1)

    x = torch.randn(8, 8, device="opaque")
    with mode():
        text = str(torch_opaque.graph(f, x, stage="fused"))
        result = torch_opaque.explain(f, x, show=False)
    assert text == str(result.graph)
    assert kernels_of(text) == [kernel["name"] for kernel in result.kernels]
    assert (len(result.kernels) > 1) == (mode is torch_opaque.unfused)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "f, saves",
    [
        (lambda x: torch.cumsum(x, 0), False),
        (lambda x: torch.cumsum(x * 2 + 1, 0), True),
        (lambda x: x + 1, False),
        (lambda x: (x + 1) * 2, True),
        (lambda x: torch.cat([x, x]), False),
        (lambda x: torch.cat([x, x + 1]), True),
    ],
    ids=["cumsum", "chain and cumsum", "one op", "chain", "cat", "sum and cat"],
)
def test_bytes_saved_are_those_of_an_unfused_run(f, saves):
    x = torch.randn(64, 64, device="opaque")
    torch.opaque.synchronize()
    result = torch_opaque.explain(f, x, show=False)
    with torch_opaque.unfused():
        unfused = torch_opaque.explain(f, x, show=False)
    moved = [
        sum(k["bytes_read"] + k["bytes_written"] for k in r.kernels) for r in (result, unfused)
    ]
    assert moved[0] >= x.numel() * 8 and result.bytes_saved == moved[1] - moved[0]
    assert (result.bytes_saved > 0) == saves
    before = torch_opaque.stats()
    f(x).cpu()
    after = torch_opaque.stats()
    assert sum(after[k] - before[k] for k in ("bytes_read", "bytes_written")) == moved[0]


@pytest.mark.parametrize(
    ("f", "shapes", "flops"),
    [
        (lambda x, y: x @ y + 1, [(8, 16), (16, 32)], 8 * 32 * (2 * 16 + 1)),
        (
            lambda x, w: nn.functional.conv2d(x, w, padding=1),
            [(1, 8, 6, 6), (4, 8, 3, 3)],
            2 * 4 * 36 * 8 * 9,
        ),
        (lambda x: x.sum(-1), [(8, 16)], 8 * 16),
    ],
)
def test_flops_are_additions_and_multiplications(f, shapes, flops):
    arguments = [torch.ones(shape, device="opaque") for shape in shapes]
    assert sum(k["flops"] for k in torch_opaque.explain(f, *arguments, show=False).kernels) == flops


def test_what_autograd_holds_is_computed_and_shown():
    """A run computes values that nothing returned needs, because something holds them: graph(fn) and explain(fn) show them."""
    x, w = torch.randn(4, 8, device="opaque"), torch.ones(8, device="opaque", requires_grad=True)
    torch.opaque.synchronize()

    class Keep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x.sum(1).cos(), x[:0] + 1)
            return x * w

        @staticmethod
        def backward(ctx, grad):
            return None, None

    def f(x):
        return Keep.apply(x, w)

    fused = str(torch_opaque.graph(f, x, stage="fused"))
    explained = torch_opaque.explain(f, x, show=False)
    before = torch_opaque.stats()
    y = f(x)
    torch.opaque.synchronize()
    after = torch_opaque.stats()
    ran = after["kernels_run"] - before["kernels_run"]
    assert "cos" in fused and ran == len(explained.kernels) == len(kernels_of(fused)) == 1
    assert y.requires_grad


def test_a_tensor_without_elements_is_not_computed():
    x = torch.ones(3, 4, device="opaque")
    torch.opaque.synchronize()
    before = torch_opaque.stats()["kernels_run"]
    empty = (x[:, :0] * 2).sin()
    torch.opaque.synchronize()
    assert torch_opaque.stats()["kernels_run"] == before and empty.shape == (3, 0)


def test_a_backward_whose_forward_is_long_ago(run_warm):
    """Lines of forward ops are remembered for so many ops; afterwards it is that of backward(), rather than another's."""
    code = """
import torch, torch_opaque
x = torch.ones(3, device="opaque", requires_grad=True)
y = x.exp()
for _ in range(70000):
    x * 1.5
y.sum().backward()
print(torch_opaque.graph(x.grad, stage="recorded"))
"""
    text = run_warm(code).stdout
    assert "= mul f32[3]" in text
    assert "# <string>:7" in next(line for line in text.splitlines() if "= mul" in line)


def test_what_is_new_and_what_moves(run_warm):
    """A kernel is new in the run that compiles it, not when its plan comes back; a matmul moves its operands and its result."""
    text = """
import torch, torch_opaque
a, b = torch.ones(40, 30, device="opaque"), torch.ones(30, 50, device="opaque")
torch.opaque.synchronize()
for _ in range(2):
    for kernel in torch_opaque.explain(lambda: (a.exp(), (a @ b).relu()), show=False).kernels:
        print(kernel["kind"], kernel["fresh"], kernel["bytes_read"], kernel["bytes_written"])
print(torch_opaque.graph(lambda: a.neg().digamma().exp(), stage="kernels"))
"""
    lines = run_warm(text).stdout.splitlines()
    exp, product = f"{4 * 1200} {4 * 1200}", f"{4 * (1200 + 1500)} {4 * 2000}"
    for kernel, fresh in zip((lines[:2], lines[2:4]), ("True", "False"), strict=True):
        assert kernel == [f"map {fresh} {exp}", f"matmul {fresh} {product}"]
    heads = [line.split("(")[0] for line in lines[4:] if line.startswith("kernel")]
    assert heads == ["kernel @neg_0", "kernel @exp_2"]  # the call between them has no kernel


def test_a_kernel_that_could_not_be_made_is_told():
    x = torch.randn(8, 8, device="opaque")
    result = torch_opaque.explain(lambda: x.exp() + 1, show=False)
    assert result.graph.fallbacks == [] and "could not be made" not in result.text()
    result.graph.fallbacks.append({"kernel": "exp_add_0", "reason": "there is no room"})
    assert (
        "kernel exp_add_0 could not be made, its ops are a kernel each: there is no room"
        in result.text()
    )
    assert torch_opaque.stats()["kernels_split"] == 0
