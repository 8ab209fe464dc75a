"""Random tool programs: what stats(), explain(), graph(), dump() and compare() say of a net is what a run
of it does, and asking changes nothing.

The program defines step(), a net with its gradients on values made before, and `state()`, everything
that must be as it was.
"""

import contextlib
import json
import os
import re
import subprocess
import tempfile

import numpy as np
import torch
import torch_opaque
from torch_opaque import _C
from torch_opaque.numerics import same_bits
from torch_opaque.summary import distinct

from . import nets

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
OPQ_OPT = os.path.join(ROOT, "build", "opq-opt")
MADE = ("param(", "module(", "randn(", "randint(", ".eval()")


def write(seed: int):
    """A net whose weights and inputs are made first; the rest is the body of step()."""
    n = nets.Net(seed)
    h = nets.forward(n, n.random.randint(1, 5))
    names = list(dict.fromkeys(nets.leaves(n)))
    loss = n.let("loss", f"{h}.square().mean()")
    trains = bool(names) and n.space[loss].requires_grad and n.chance(0.6)
    made = [
        x
        for x in n.lines
        if not x.startswith(" ") and any(word in x for word in MADE) and "F." not in x
    ]
    names_made = {x.split(" = ")[0] for x in made}
    body = [
        x
        for x in n.lines
        if x not in made and not re.match(r"\s*(look|_ =|torch\.opaque\.sync)", x)
    ]
    body = [x for x in body if x.strip().removeprefix("del ") not in names_made]
    if trains:
        body.append(f"grads = torch.autograd.grad({loss}, [{', '.join(names)}], allow_unused=True)")
    written = [x.split(" = ")[0] for x in made if x.startswith("c")] if trains else []
    n.lines = made + ["def step():"] + ["    " + x for x in body]
    n.lines.append(f"    return [{h}{', *grads' if trains else ''}]")
    n.lines.append(f"kept = [{', '.join(names + written)}]")
    return n.program("tools")


def check(program) -> str:
    space = program.run("opaque")
    step = space["step"]
    if found := unchanged(space):
        return f"unchanged: {found}"
    for look in (counts, shown, texts, dumped, compared, pending):
        if found := look(step):
            return f"{look.__name__}: {found}"
    return ""


check_some = check


def state(space) -> list:
    """Whatever the tools might change: weights, buffers, gradients, generators."""
    tensors = list(space["kept"])
    for value in space.values():
        if isinstance(value, torch.nn.Module):
            tensors += value.state_dict().values()
    tensors += [t.grad for t in tensors if t.is_leaf and t.grad is not None]
    tensors += [torch.opaque.get_rng_state(), torch.get_rng_state()]
    return [t.detach().cpu().clone() for t in tensors]


def difference(before: list, after: list) -> str:
    if len(before) != len(after):
        return "how many tensors there are"
    return ", ".join(
        f"value {i}" for i, (a, b) in enumerate(zip(before, after)) if not same_bits(a, b)
    )


def unchanged(space) -> str:
    """Looks leave everything as it was."""
    step = space["step"]
    with tempfile.TemporaryDirectory() as folder:
        looks = {
            "graph": lambda: torch_opaque.graph(step),
            "graph fused": lambda: torch_opaque.graph(step, stage="fused"),
            "explain": lambda: torch_opaque.explain(step, show=False),
            "compare": lambda: torch_opaque.compare(step, repeat=1, show=False),
            "dump": lambda: torch_opaque.dump(step, dir=folder),
        }
        for name, look in looks.items():
            before = state(space)
            look()
            if found := difference(before, state(space)):
                return f"{name} changed {found}"
    return ""


def only_tensors(values: list) -> list:
    return [v for v in values if isinstance(v, torch.Tensor)]


def counts(step) -> str:
    """Launches and bytes: the counters of a run and explain() say the same; kernels: so do its rows and the fused graph."""
    torch.opaque.synchronize()  # the weights, which are pending too
    explained = torch_opaque.explain(step, show=False)
    fused = torch_opaque.graph(step, stage="fused")
    said = tally(explained)
    externs = sum(k.kind == "extern" for k in fused.kernels)
    drawn = (len(fused.kernels) - externs, externs)
    moved = sum(k.bytes_read + k.bytes_written for k in fused.kernels)
    before = torch_opaque.stats()
    results = only_tensors(step())
    # explain() asks for contents, as .cpu() does: of a view a copy of its elements.
    asked = [t.detach().clone(memory_format=torch.contiguous_format) for t in results]
    torch.opaque.synchronize()
    after = torch_opaque.stats()
    ran = tuple(
        after[k] - before[k] for k in ("kernels_run", "extern_calls", "bytes_read", "bytes_written")
    )
    del results, asked
    if ran[:2] != said[:2]:
        return f"ran {ran[:2]} kernels and extern calls, explain() says {said[:2]}"
    if ran[2] + ran[3] != said[2]:
        return f"moved {ran[2] + ran[3]} bytes, explain() says {said[2]}"
    rows = (sum(k["rows"] for k in explained.kernels) - externs, externs)
    if drawn != rows:
        return f"ran {rows} kernels and extern calls, graph(stage='fused') shows {drawn}"
    if moved != said[2]:
        return f"moved {said[2]} bytes, graph(stage='fused') has {moved}"
    return ""


def shown(step) -> str:
    """What graph() prints is what runs, fused and not: the same values are stored, by the same kernels, of the same bytes; and what was
    not fused has a reason."""
    for mode in (contextlib.nullcontext, torch_opaque.unfused):
        with mode():
            torch.opaque.synchronize()
            held = only_tensors(step())  # and all that autograd holds
            if not any(map(_C.is_pending, held)):
                continue
            graph = torch_opaque.graph(held, stage="fused")
            before = torch_opaque.stats()
            _C.report_begin()
            try:
                _C.materialize(held, "inspect")
            finally:
                report = _C.report_end()
            after = torch_opaque.stats()
        if found := disagreement(graph, report, before, after):
            return f"{mode.__name__}: {found}"
        if mode is not torch_opaque.unfused and (found := unexplained(graph) or overstated(graph)):
            return found
    return ""


def disagreement(graph, report, before, after) -> str:
    document = json.loads(graph.to_json())
    recorded = json.loads(graph.stage("recorded").to_json())
    leaves = ("input", "scalar")
    stored = {i for i in recorded["outputs"] if recorded["nodes"][i]["op"] not in leaves}
    if len(recorded["outputs"]) != len(document["outputs"]):
        return "the stages have other outputs"
    ran = [run["outputs"] for run in report["runs"]]
    if ran != [len(stored)]:
        return f"stored {ran} values, the graph shows {len(stored)}"
    names = [k["name"] for k in report["launches"]]
    first = {k["launch"]: k["name"] for k in reversed(document["kernels"])}
    if names != [first[i] for i in sorted(first)]:
        return f"ran {names}, the graph shows {[first[i] for i in sorted(first)]}"
    moved = sum(after[k] - before[k] for k in ("bytes_read", "bytes_written"))
    drawn = sum(k["bytes_read"] + k["bytes_written"] for k in document["kernels"])
    return "" if moved == drawn else f"moved {moved} bytes, the graph shows {drawn}"


def unexplained(graph) -> str:
    """A value that one kernel stores and another reads, of which nothing says why they are two."""
    known = {
        (e.producer.kernel.index, e.consumer.kernel.index)
        for e in graph.unfused
        if e.refusal != "none" and e.reason
    }
    for kernel in graph.kernels:
        for node in kernel.reads:
            if node.kernel and (node.kernel.index, kernel.index) not in known:
                return f"no reason between {node.kernel.name} and {kernel.name}"
    return ""


def overstated(graph) -> str:
    """More would be saved than is moved: by an edge than by its kernels, or by all edges than by all kernels."""
    edges = distinct(graph.unfused)
    for e in edges:
        ends = e.producer.kernel, e.consumer.kernel
        if not 0 <= e.saves <= ends[0].bytes_written + ends[1].bytes_read + ends[1].bytes_written:
            return f"{e} and {[(k.bytes_read, k.bytes_written) for k in ends]} moved"
    whole = sum(k.bytes_read + k.bytes_written for k in graph.kernels)
    saved = sum(e.saves for e in edges)
    return "" if saved <= whole else f"would save {saved} of {whole} bytes"


def tally(explained) -> tuple:
    externs = sum(k["kind"] == "extern" for k in explained.kernels)
    return len(explained.kernels) - externs, externs, explained.bytes_moved


def texts(step) -> str:
    """What is printed parses to what is printed."""
    for stage in ("recorded", "simplified", "fused"):
        graph = torch_opaque.graph(step, stage=stage)
        text = str(graph)
        result = subprocess.run(
            [OPQ_OPT, "--verify", "--print"], input=text, capture_output=True, text=True
        )
        if result.returncode:
            return f"{stage} does not parse: {result.stderr.strip()[:200]}"
        if result.stdout != text:
            return f"{stage} prints as another text"
        if type(graph).from_json(graph.to_json()).to_json() != graph.to_json():
            return f"{stage} is another graph as JSON"
    return ""


def dumped(step) -> str:
    """Run and evaluated without PyTorch: the same bits. A graph with extern calls cannot be. The evaluator rounds halves at every node."""
    with tempfile.TemporaryDirectory() as folder:
        torch_opaque.dump(step, dir=folder)
        with open(os.path.join(folder, "graph.ir")) as file:
            text = file.read()
        if "extern" in text:
            return ""
        want = [t.detach().cpu() for t in only_tensors(step())]
        for how in (["--run"], ["--unfused", "--run"], ["--eval-kernels"], ["--eval"]):
            result = subprocess.run([OPQ_OPT, *how, folder], capture_output=True, text=True)
            if result.returncode:
                return f"opq-opt {' '.join(how)}: {result.stderr.strip()[:200]}"
            for i, w in enumerate(want):
                got = torch.from_numpy(np.load(os.path.join(folder, f"out{i}.npy")))
                exact = how != ["--eval"] or "f16[" not in text
                if exact and not same_bits(got, w.contiguous()):
                    return f"opq-opt {' '.join(how)}: output {i} has other bits"
                if not exact and not torch.allclose(
                    got,
                    w,
                    1e-4,
                    1e-5 + 1e-4 * w.nan_to_num(0, 0, 0).abs().max().item() if w.numel() else 0,
                    equal_nan=True,
                ):
                    return f"opq-opt --eval: output {i} differs"
    return ""


def compared(step) -> str:
    result = torch_opaque.compare(step, repeat=1, show=False)
    wrong = [row.mode for row in result.rows if not row.same_bits]
    return f"other bits: {wrong}" if wrong else ""


def pending(step) -> str:
    """Looking at a pending tensor leaves it pending, and its value is what it would have been."""
    want = [t.detach().cpu() for t in only_tensors(step())]
    results = only_tensors(step())
    for look in (
        torch_opaque.graph,
        torch_opaque.describe,
        lambda t: torch_opaque.graph(t, stage="fused"),
        repr_free,
    ):
        waiting = [_C.is_pending(t) for t in results]
        for t in results:
            look(t)
        if [_C.is_pending(t) for t in results] != waiting:
            return "pending: a look computed a tensor"
    wrong = [i for i, (t, w) in enumerate(zip(results, want)) if not same_bits(t.detach().cpu(), w)]
    return (
        f"pending: result {wrong[0]} has other bits after looks" if wrong and not drew(step) else ""
    )


def repr_free(t) -> tuple:
    return t.shape, t.dtype, t.stride(), t.is_contiguous()


def drew(step) -> bool:
    """True if step() draws random numbers: two calls differ."""
    before = torch.opaque.get_rng_state()
    results = step()
    drawn = not torch.equal(before, torch.opaque.get_rng_state())
    del results
    return drawn
