"""Programs whose graphs are not planned as a whole (OPAQUE_TIERS): op by op, in pieces, and as the model of costs has it. Values are those of
the CPU, as in each random program's own test; in-place updates and failures are what they are with a plan."""

import os
import random
import re
import subprocess
import sys

import pytest
from programs.testing import run_elsewhere
from torch_opaque import cache

TIERS = ["off", "lazy", "eager", "random"]  # the default is what all other tests have


@pytest.mark.parametrize("tiers", TIERS)
@pytest.mark.parametrize(
    "kind, block", [("nets", 11), ("aliasing", 11), ("views", 11), ("dtypes", 11), ("threads", 11)]
)
def test_random_programs(run_warm, kind, block, tiers):
    few = 6 if tiers == "random" else 3  # that one is all of them
    run_elsewhere(run_warm, kind, block + TIERS.index(tiers), few, 300, OPAQUE_TIERS=tiers)


@pytest.mark.parametrize("tiers", TIERS)
def test_optimizer_updates_in_place(run_warm, tiers):
    """Memory of parameters and of their state is taken over, after the last kernel that may fail."""
    assert run_warm(
        """
import torch, torch_opaque
torch.manual_seed(0)
def trained(device):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Embedding(10, 8), torch.nn.Flatten(), torch.nn.Linear(24, 5)).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    held = net[2].weight.detach() * 1
    for step in range(6):
        text = (torch.arange(12).reshape(4, 3) + step) % 10
        loss = torch.nn.functional.cross_entropy(net(text.to(device)), torch.tensor([0, 1, 2, 3]).to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [p.detach().cpu() for p in net.parameters()] + [held.cpu()]
for ours, expected in zip(trained("opaque"), trained("cpu")):
    torch.testing.assert_close(ours, expected)
print("right")
""",
        OPAQUE_TIERS=tiers,
    ).stdout.endswith("right\n")


@pytest.mark.parametrize("tiers", TIERS)
def test_a_failure_costs_what_depends_on_it(run_warm, tiers):
    assert (
        run_warm(
            """
import torch, torch_opaque
x = torch.arange(6.0).to("opaque")
weight = torch.ones(6).to("opaque")
bad = x[torch.tensor([1, 9]).to("opaque")]
good = x * 2
weight.mul_(3)
after = bad + 1
try:
    print(after.cpu())
except IndexError as error:
    print("IndexError" if "9" in str(error) else error)
print(good.tolist(), weight.tolist(), x.tolist())
""",
            OPAQUE_TIERS=tiers,
        ).stdout
        == "IndexError\n[0.0, 2.0, 4.0, 6.0, 8.0, 10.0] [3.0, 3.0, 3.0, 3.0, 3.0, 3.0] [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]\n"
    )


@pytest.mark.parametrize("tiers, joined", [("off", "0 0"), ("lazy", "12 9"), ("eager", "12 9")])
def test_pieces_seen_again_run_as_one_plan(run_warm, tiers, joined):
    """From its second run on a graph in pieces is one plan, of their plans; a run that fails says what the pieces say, and loses as little."""
    assert (
        run_warm(
            """
import torch, torch_opaque
def start(device):
    torch.manual_seed(0)
    return [torch.randn(6, 4, 5).to(device), torch.randn(5, 5).to(device), torch.ones(3, 5).to(device), device]
def turn(state, t, index):
    steps, weight, total, device = state
    x = steps[t]  # at another place each time
    z = torch.tanh(x[1:] @ weight) * (t + 1.5) + torch.linalg.inv(weight)[0]
    picked = z.flatten()[torch.tensor(index).to(device)]
    total.mul_(0.5).add_(picked.sum() + z)
    return picked.max().item(), total
ours, theirs = start("opaque"), start("cpu")
before = torch_opaque.stats()
for t in range(6):
    (a, at), (b, bt) = turn(ours, t, [1, 9, t]), turn(theirs, t, [1, 9, t])
    assert abs(a - b) < 1e-5 * abs(b), (t, a, b)
    torch.testing.assert_close(at.cpu(), bt)
after = torch_opaque.stats()
print(after["runs_in_pieces"] - before["runs_in_pieces"], after["runs_joined"] - before["runs_joined"])
last = ours[2].clone().cpu()
try:
    turn(ours, 3, [1, 99, 2])
except IndexError as error:
    print(str(error).split("(")[0])
print(torch.equal(ours[2].cpu(), last * 0.5))  # as far as it went
assert torch.equal(ours[0].cpu(), theirs[0])
ours[2] = last.to("opaque")
(a, at), (b, bt) = turn(ours, 4, [1, 9, 8]), turn(theirs, 4, [1, 9, 8])
torch.testing.assert_close(at.cpu(), bt)
""",
            OPAQUE_TIERS=tiers,
        ).stdout
        == joined + "\naten::index \nTrue\n"
    )


def test_what_its_kind_did_is_expected_of_a_graph(run_warm):
    """Where graphs of the same ops came again, one of new sizes is one plan at its first run; where they no longer do, it is not."""
    text = """
import torch, torch_opaque
weight = torch.randn(16, 16).to("opaque")
def joined(size, times):
    x = torch.randn(size, 16).to("opaque")
    before = torch_opaque.stats()["runs_joined"]
    for _ in range(times):
        ((x @ weight).sin() + 1).sum(1).amax().item()
    return torch_opaque.stats()["runs_joined"] - before
print(joined(21, 2), joined(33, 1), joined(45, 2), [joined(size, 1) for size in range(50, 60)][-5:])
"""
    assert run_warm(text).stdout == "1 1 2 [0, 0, 0, 0, 0]\n"


def test_lengths_share_plans(run_warm):
    """A longer loop is made of the pieces of a shorter one."""
    assert (
        run_warm(
            """
import torch, torch_opaque
w = torch.randn(16, 16).to("opaque")
def loop(n):
    x = torch.ones(4, 16).to("opaque")
    for _ in range(n):
        x = torch.tanh(x @ w + 1)
    return x.sum().item()
loop(5), loop(9)
before = torch_opaque.stats()
for n in (3, 30, 12, 77):
    loop(n)
after = torch_opaque.stats()
print(after["plans_built"] - before["plans_built"], after["kernels_compiled"] - before["kernels_compiled"])
""",
            OPAQUE_TIERS="eager",
        ).stdout
        == "0 0\n"
    )


def test_an_unknown_setting_is_told(run_warm):
    with pytest.raises(AssertionError, match="model, off, lazy, eager and random"):
        run_warm("import torch; torch.ones(2).to('opaque')", OPAQUE_TIERS="some")


def test_kernels_on_disk(run_warm, tmp_path):
    """What one process compiled the next one loads: equal bits, and nothing is compiled."""
    text = """
import torch, torch_opaque
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.GELU(), torch.nn.LayerNorm(30), torch.nn.Linear(30, 4)).to("opaque")
loss = torch.nn.functional.cross_entropy(net(torch.randn(6, 20).to("opaque")), torch.tensor([0, 1, 2, 3, 0, 1]).to("opaque"))
loss.backward()
sums = [p.grad.double().sum().item().hex() for p in net.parameters()]
stats = torch_opaque.stats()
print(loss.item().hex(), *sums)
print(stats["kernels_compiled"] > 0, stats["kernels_loaded"] > 0)
"""
    folder = tmp_path / "kernels"
    plain = run_warm(text, OPAQUE_CACHE="off", OPAQUE_TIERS="off").stdout.split("\n")
    first, second = (
        run_warm(text, OPAQUE_CACHE=str(folder), OPAQUE_TIERS="off").stdout.split("\n")
        for _ in range(2)
    )
    assert plain[0] == first[0] == second[0]
    assert [plain[1], first[1].split()[0], second[1]] == ["True False", "True", "False True"]
    files = sorted(folder.iterdir())
    assert files and folder.stat().st_mode & 0o777 == 0o700
    for file in files:  # torn, each another way
        data = bytearray(file.read_bytes())
        data[hash(file.name) % len(data)] ^= 1
        file.write_bytes(data)
    assert (
        run_warm(text, OPAQUE_CACHE=str(folder), OPAQUE_TIERS="off").stdout.split("\n")[:2]
        == first[:2]
    )


TRAINING = """
import torch, torch_opaque
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.GELU(), torch.nn.LayerNorm(30), torch.nn.Linear(30, 4)).to("opaque")
optimizer = torch.optim.Adam(net.parameters())
for _ in range(2):
    loss = net(torch.randn(6, 20).to("opaque")).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
stats = torch_opaque.stats()
print(loss.item().hex(), *[p.double().sum().item().hex() for p in net.parameters()])
print(stats["kernels_compiled"], stats["kernels_loaded"] > 0)
"""


@pytest.fixture
def bare_package(tmp_path) -> dict:
    """The environment of a process whose package has no kernels of its own, as where it is built."""
    package = tmp_path / "package" / "torch_opaque"
    package.mkdir(parents=True)
    for entry in os.scandir(os.path.dirname(cache.__file__)):
        if entry.is_file():
            (package / entry.name).symlink_to(entry.path)
    return {"PYTHONPATH": str(package.parent)}


def test_the_cache_command(bare_package, tmp_path):
    """warm: what common programs need is not compiled any more; list says it; clear removes it and nothing else."""

    def python(*words, tiers="lazy", where="off") -> list:
        settings = bare_package | {"OPAQUE_CACHE": str(where), "OPAQUE_TIERS": tiers}
        result = subprocess.run(
            [sys.executable, *words], env={**os.environ, **settings}, capture_output=True, text=True
        )
        assert result.returncode == 0, result.stderr
        return result.stdout.split("\n")

    command, folder = ["-m", "torch_opaque", "cache"], tmp_path / "kernels"
    python(*command, "warm", "--into", str(folder))
    made = sorted(folder.iterdir())
    assert len(made) > 400 and folder.stat().st_mode & 0o777 == 0o755
    assert all(file.stat().st_mode & 0o777 == 0o644 for file in made)
    folder.chmod(0o700)
    (folder / "mine.txt").write_text("mine")
    assert f"{folder}: {len(made)} kernels" in python(*command, "list", where=folder)[0]
    plain, warm = (python("-c", TRAINING, where=where) for where in ("off", folder))
    assert warm[0] == plain[0] and warm[1] == "0 True"
    spoil(made)
    spoiled = python("-c", TRAINING, where=folder)
    assert spoiled[0] == plain[0] and spoiled[1] != warm[1]
    python(*command, "clear", where=folder)
    assert [file.name for file in folder.iterdir()] == ["mine.txt"]


def spoil(files) -> None:
    """Flipped bits, torn files, files of other kernels, and nothing."""
    draw = random.Random(1)
    whole = [file.read_bytes() for file in files]
    for file, data in zip(files, whole):
        at = draw.randrange(len(data))
        flipped = data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]
        file.write_bytes(draw.choice([flipped, data[:at], draw.choice(whole), b""]))


@pytest.mark.skipif(
    not os.path.isdir(cache.SHIPPED), reason="this build has no kernels (OPAQUE_KERNELS=OFF)"
)
def test_a_first_start_has_kernels(run_warm, tmp_path):
    """Those that came with the package."""
    plain = run_warm(TRAINING, OPAQUE_CACHE="off", OPAQUE_TIERS="lazy").stdout.split("\n")
    first = run_warm(
        TRAINING, OPAQUE_CACHE=str(tmp_path / "none"), OPAQUE_TIERS="lazy"
    ).stdout.split("\n")
    assert first[0] == plain[0] and first[1] == "0 True"


CHANGING_OVER = """
import sys, torch, torch_opaque
torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, dropout=0.0)
def trained(device, steps):
    torch.manual_seed(0)
    net = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.linspace(-1, 1, 2 * 8 * 32).reshape(2, 8, 32).to(device)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step == WAITS:
            torch_opaque.wait_for_plans()
    return losses
"""


@pytest.mark.parametrize("waits", [8, 40])
def test_bits_do_not_depend_on_when_a_plan_comes(run_warm, tmp_path, waits):
    """A training loop whose plan is made in the background, of kernels that are there, and its losses when every step is planned."""
    text = CHANGING_OVER.replace("WAITS", str(waits))
    text += "print(trained('opaque', 50))\nprint(torch_opaque.stats()['plans_in_background'] > 0)"
    planned = run_warm(text, OPAQUE_TIERS="off", OPAQUE_CACHE=str(tmp_path)).stdout.split("\n")
    ours = run_warm(text, OPAQUE_BACKGROUND="1", OPAQUE_CACHE=str(tmp_path)).stdout.split("\n")
    assert planned[:2] == [ours[0], "False"] and ours[1] == "True"


@pytest.mark.parametrize("ending", ["sys.exit(0)", "import os; os.kill(os.getpid(), 2)"])
def test_a_process_ends_while_a_plan_is_made(run_warm, tmp_path, ending):
    """Threads in the background end before what they use does, LLVM's statics; an interrupt is the program's."""
    text = f"""
import sys, torch
x = torch.rand(1000, device="opaque")
def run():
    y = x
    for i in range(400):
        y = (y.exp, y.sin, y.tanh, y.sqrt, y.abs, y.cos, y.neg)[i * i % 7]()
    y.sum().item()
for _ in range(9):
    run()
try:
    {ending}
except KeyboardInterrupt:
    pass
"""
    log = run_warm(
        text, OPAQUE_BACKGROUND="2", OPAQUE_CACHE=str(tmp_path), OPAQUE_LOG="flush"
    ).stderr
    assert "(its plan is being made in the background)" in log.splitlines()[-1]


def test_number_of_threads_is_checked(run_warm):
    with pytest.raises(AssertionError, match="it is a number of threads from 0 to 4"):
        run_warm("import torch; torch.ones(2).to('opaque')", OPAQUE_BACKGROUND="many")


def test_offsets_that_stay_have_their_own_plan(run_warm, tmp_path):
    """As without pieces: a plan for any offsets is for those that move."""
    text = """
import torch, torch_opaque
x = torch.randn(64, 96).to("opaque")
def plans(offset_of):
    before = torch_opaque.stats()["plans_built"]
    for i in range(60):
        at = offset_of(i)
        (x[:, at : at + 32].exp() + 1).sum().item()
    return torch_opaque.stats()["plans_built"] - before
stay = plans(lambda i: 5)
print(stay, plans(lambda i: 5 + (i == 6)), plans(lambda i: i))
"""
    assert run_warm(text, OPAQUE_TIERS="off", OPAQUE_CACHE=str(tmp_path)).stdout == "1 1 0\n"
    assert (
        run_warm(text, OPAQUE_BACKGROUND="0", OPAQUE_CACHE=str(tmp_path)).stdout == "1 0 1\n"
    )  # the one that moved for once ran in pieces


UNWATCHED = """
import torch, torch_opaque
x, halves = torch.randn(8, 8).to("opaque"), torch.randn(8, 8).half().to("opaque")
torch.opaque.synchronize()
def f(x):
    return torch.tanh(x * 2).sum(0) - x[0]
def told(x):
    explanation = torch_opaque.explain(f, x, show=False)
    (run,), (line,) = explanation.runs, explanation.unwatched
    assert line in explanation.text()
    return run["unwatched"], line.replace("planned to be looked at; ", "")
def ran(times, x=x):
    for _ in range(times):
        y = f(x)
        torch.opaque.synchronize()
"""


def test_explain_tells_what_ran_when_nobody_looked(run_warm):
    """The model's own words: each run in pieces is counted, none that is watched."""
    text = (
        UNWATCHED
        + """
tier, line = told(torch.ones(3, 8, device="opaque"))
print(tier["kind"], tier["runs_in_pieces"], "no run yet" in line)
ran(2)
tier, line = told(x)
print(tier["kind"], tier["runs_in_pieces"], tier["ops"], 0 < tier["each_seconds"] < tier["price_seconds"])
print(line.split(",")[0])
print(told(x)[1])
ran(1)
print(torch_opaque.stats()["runs_in_pieces"], told(x)[1])
print(told(halves)[1].split(" f16")[0])
with torch_opaque.planned():
    print(told(x[:3])[1])
"""
    )
    assert run_warm(text).stdout.splitlines() == [
        "pieces 0 True",
        "pieces 2 7 True",
        "unwatched: 2 runs in pieces",
        "unwatched: it runs by its plan, after 2 runs in pieces",
        "2 unwatched: it runs by its plan, after 2 runs in pieces",
        "unwatched: it is planned before it runs, because what is fused decides how",
        "unwatched: it is planned before it runs, because planned(), unfused() or eager() is on",
    ]


@pytest.mark.parametrize(
    "tiers, line",
    [
        ("off", "unwatched: it is planned before it runs, because OPAQUE_TIERS is off"),
        ("lazy", "unwatched: it runs in pieces, because of OPAQUE_TIERS"),
    ],
)
def test_explain_tells_of_the_setting(run_warm, tiers, line):
    assert run_warm(UNWATCHED + "print(told(x)[1])", OPAQUE_TIERS=tiers).stdout == line + "\n"


def test_runs_that_are_watched_do_not_hide_what_was_before(run_warm):
    """Of a value that a function reads in a loop: the first look tells, whatever plan it left."""
    text = """
import torch, torch_opaque
x = torch.randn(8, 8).to("opaque")
def f():
    return [(x * 2 + 1).sum().item() for _ in range(3)]
part = torch_opaque.explain(f, show=False)
print(part.times, part.why, part.runs[0]["unwatched"]["kind"])
"""
    assert run_warm(text).stdout == "3 ['the plan was there'] pieces\n"


def test_the_log_says_why_a_run_is_in_pieces(run_warm):
    lines = run_warm(UNWATCHED + "ran(3)", OPAQUE_LOG="flush").stderr.splitlines()
    text = r" kernels in pieces \(run %d of the graph: lost 0\.\d\d ms of the \d+\.\d\d ms that a plan takes\)"
    for line, words in zip(lines[-3:], [r" in pieces \(a new graph\), ", text % 2, text % 3]):
        assert re.search(words, line), line
    lines = run_warm(UNWATCHED + "ran(1)", OPAQUE_LOG="flush", OPAQUE_TIERS="lazy").stderr
    assert " kernels in pieces (OPAQUE_TIERS), " in lines
