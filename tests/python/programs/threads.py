"""Random thread programs: several threads, each with a net of its own over shared read-only tensors, that
read, synchronize, look with the tools, delete, fail on purpose and count in a shared tensor under a lock.

Each thread must end with the bits that its part gives alone, and the shared count must be the sum.
"""

import torch

from . import nets
from .oracle import unequal_bits

THREADS = (2, 3, 4)

HEAD = """import threading
shared = [randn(5, 8), randn(8, 8), randn(8)]
count = torch.zeros(3, device=D, dtype=R)
guard = threading.Lock()
results, errors = {}, []
parts = []
"""

TAIL = """

def run(number, body):
    try:
        for turn in range(TURNS):
            results[number, turn] = body()
    except Exception as error:
        errors.append(f"{number}: {type(error).__name__}: {error}")


threads = [threading.Thread(target=run, args=(i, body)) for i, body in enumerate(parts)]
for t in threads:
    if TOGETHER:
        t.start()
    else:
        t.run()
for t in threads:
    if TOGETHER:
        t.join()
count = count.cpu()
"""


def write(seed: int):
    n = nets.Net(seed)
    many = n.choose(*THREADS)
    lines = HEAD.splitlines() + [f"TURNS = {n.choose(1, 2, 5)}"]
    for number in range(many):
        lines += part(n, number)
    n.lines = lines + TAIL.splitlines()
    return n.program("threads")


def part(n, number: int) -> list:
    """One thread's function. Its leaves are made outside, so that a turn is the same computation every time."""
    inner = nets.Net(n.seed * 10 + number + 7)
    inner.space["shared"] = [
        torch.randn(5, 8, dtype=torch.float64),
        torch.randn(8, 8, dtype=torch.float64),
        torch.randn(8, dtype=torch.float64),
    ]
    h = inner.value("shared[0] * 1")
    made = set()
    for _ in range(inner.random.randint(1, 5)):
        block = inner.random.choices(
            [b for b in nets.FEATURES if b is not nets.dropped],
            [w for b, w in nets.FEATURES.items() if b is not nets.dropped],
        )[0]
        h = block(inner, h)
        if len(inner.shape(h)) == 2 and inner.shape(h)[1] == 8 and inner.chance(0.4):
            h = inner.value(f"torch.tanh({h} @ shared[1] + shared[2])")
        nets.between(inner, h)
        if inner.chance(0.35):
            inner.lines.append(something(inner, h))
    leaves = list(dict.fromkeys(nets.leaves(inner)))
    loss = inner.let("loss", f"{h}.square().mean()")
    trains = leaves and inner.space[loss].requires_grad
    made = [
        x
        for x in inner.lines
        if not x.startswith(" ")
        and any(w in x for w in ("param(", "module(", "randn(", "randint(", ".eval()"))
    ]
    body = [x for x in inner.lines if x not in made and not x.startswith("look(")]
    gone = {x.split(" = ")[0] for x in made}
    body = [
        x.replace("look(", "float(") if "look(" in x and ".sum())" in x else x
        for x in body
        if x.removeprefix("del ") not in gone
    ]
    names = {x: f"{x}_{number}" for x in gone if "." not in x}
    rename = lambda text: "".join(names.get(w, w) for w in _words(text))  # noqa: E731
    result = [rename(x) for x in made]
    result.append(f"def part{number}():")
    result += ["    " + rename(x) for x in body]
    if trains:
        result.append(
            f"    grads = torch.autograd.grad({loss}, [{rename(', '.join(leaves))}], allow_unused=True)"
        )
    result += ["    with guard:", f"        count.add_({number + 1})"]
    result.append(
        f"    return [x.detach().cpu() for x in [{h}{', *grads' if trains else ''}] if x is not None]"
    )
    return [*result, f"parts.append(part{number})"]


def something(n, h) -> str:
    """What a thread does besides computing: nothing that changes its results."""
    return n.choose(
        "torch.opaque.synchronize()",
        f"_ = {h}.sum().item()",
        f"_ = {h}.detach().cpu()",
        f"_ = torch_opaque.graph({h}) if D == 'opaque' else ''",
        f"_ = torch_opaque.graph({h}, stage='fused') if D == 'opaque' else ''",
        f"_ = torch_opaque.describe({h}) if D == 'opaque' else ''",
        f"_ = torch_opaque.explain({h}, show=False) if D == 'opaque' else ''",
        "_ = torch_opaque.stats()",
        "with error():\n        _ = shared[0][torch.tensor([99], device=D)].sum().item()",
        f"_ = str({h})",
        "_ = shared[0].sum().item()",
        "with torch_opaque.unfused():\n        torch.opaque.synchronize()",
    )


def _words(text: str) -> list:
    import re

    return re.findall(r"\w+|\W", text)


def run(program, together: bool) -> dict:
    """Results by thread, turn and number; the count; what was raised."""
    space = program.without((f"TOGETHER = {together}", *program.lines)).run("opaque")
    found = {
        f"thread {i} turn {k}[{j}]": t
        for (i, k), ts in space["results"].items()
        for j, t in enumerate(ts)
    }
    found["count"] = space["count"]
    found["errors"] = "; ".join(space["errors"])
    return found


def check(program, repeat: int = 4) -> str:
    alone = run(program, together=False)
    if alone["errors"]:
        return f"alone: {alone['errors']}"
    for _ in range(repeat):
        together = run(program, together=True)
        if together["errors"]:
            return f"together: raised {together['errors']}"
        if found := unequal_bits(together, alone):
            return f"together: {found}"
    return ""


check_some = check
