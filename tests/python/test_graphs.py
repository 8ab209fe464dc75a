"""Graphs as objects: what graph() returns."""

import gc
import inspect
import json
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
import torch_opaque
from torch import nn
from torch_opaque import _C
from torch_opaque.graphs import STAGES, Graph

D = "opaque"


def net(x, w):
    h = torch.relu(x @ w)
    return torch.softmax(h, -1), torch.digamma(h).exp()


def ones(*shape):
    """Computed: what is pending is no input."""
    result = torch.ones(shape, device=D)
    torch.opaque.synchronize()
    return result


@pytest.fixture
def arguments():
    return ones(4, 8), ones(8, 8)


def test_nodes_are_the_text(arguments):
    for stage in STAGES[:3]:
        g = torch_opaque.graph(net, *arguments, stage=stage)
        lines = [line.strip() for line in str(g).splitlines() if line.strip().startswith("%")]
        assert [n.text for n in g.nodes] == lines
        assert all(f"%{n.id} = {n.op} {n.dtype}" in n.text for n in g.nodes)
        assert all(n in o.users for n in g.nodes for o in n.operands)
        assert [n.name for n in g.inputs] == ["x", "w"]


def test_kernels_are_the_plan(arguments):
    g = torch_opaque.graph(net, *arguments, stage="fused")
    ran = torch_opaque.explain(net, *arguments, show=False)
    assert [k.name for k in g.kernels] == [k["name"] for k in ran.kernels]
    assert sum(k.bytes_read + k.bytes_written for k in g.kernels) == ran.bytes_moved
    assert [k.kind for k in g.kernels].count("extern") == 1
    product = g.kernels[0]
    assert [n.op for n in product.nodes][0] == "matmul" and g.inputs[0] in product.reads
    assert all(n.stored and n.kernel is product for n in product.writes) and product.writes
    assert all(n.stored for n in g.outputs) and g.outputs[0].kernel.kind == "row"
    assert repr(g.unfused) == repr(ran.unfused)
    assert not torch_opaque.graph(net, *arguments).kernels


def test_a_stage_leads_to_the_others(arguments):
    g = torch_opaque.graph(net, *arguments)
    del arguments
    for stage in STAGES:
        other = g.stage(stage)
        assert other.stage_name == stage and (other is g) == (stage == "recorded")
    fused = g.stage("asm")
    assert "define" in fused.kernels[0].text("llvm") and "void" in fused.kernels[0].text("c")
    assert fused.kernels[0].text() in str(g.stage("kernels"))
    with pytest.raises(ValueError, match="expected one of kernels, schedule, c"):
        fused.kernels[0].text("fused")
    with pytest.raises(ValueError, match="best"):
        g.stage("best")


def test_an_index_that_sweeps_share_is_checked_once():
    table = torch.randn(10, 64, device="opaque")
    rows = torch.nn.functional.embedding(torch.tensor([1, 9, 3], device="opaque"), table)
    text = str(torch_opaque.graph(torch.nn.functional.layer_norm(rows, (64,)), stage="llvm"))
    assert text.count("\nout_of_range") == 1  # three sweeps over a row read it


def test_modes_are_those_of_the_moment(arguments):
    with torch_opaque.unfused():
        g = torch_opaque.graph(lambda x: (x + 1) * 2, arguments[0])
    assert len(g.stage("fused").kernels) == 2


def test_a_graph_holds_no_tensor():
    x = ones(1 << 20)
    before = _C.memory_allocated()
    y = torch.digamma(x) + 1
    g, gone = torch_opaque.graph(y), weakref.ref(x)
    del x, y
    gc.collect()
    assert gone() is None and _C.memory_allocated() <= before - (4 << 20)
    assert len(g.stage("fused").kernels) == 2


def test_find(arguments):
    g = torch_opaque.graph(net, *arguments, stage="fused")
    assert [n.op for n in g.find("mat*")] == ["matmul"]
    assert g.find(name="w") == [g.inputs[1]]
    assert g.find(kernel=g.kernels[0].name) == g.kernels[0].nodes
    assert all("test_graphs.py" in n.line for n in g.find(line="test_graphs.py:*")) and g.find(
        "exp"
    )
    assert g.find("exp", dtype="f*") and not g.find("exp", dtype="i64")


def test_json_round_trips(arguments):
    for stage in STAGES:
        g = torch_opaque.graph(
            lambda x, w: net(x, w)[0] * float("inf") + 2.5, *arguments, stage=stage
        )
        again = Graph.from_json(g.to_json())
        assert again.to_json() == g.to_json() and str(again) == str(g)
        assert again.to_dot() == g.to_dot() and [n.text for n in again.nodes] == [
            n.text for n in g.nodes
        ]
        document = json.loads(g.to_json())
        assert document["schema"] == "opaque.graph" and document["version"] == 1
    values = [
        n.attrs["value"]
        for n in torch_opaque.graph(lambda x: x * 0.1 + 3, arguments[0]).find("scalar")
    ]
    assert values == [0.1, 3.0] or values == [float(torch.tensor(0.1)), 3.0]
    with pytest.raises(ValueError, match="stage 'asm' only"):
        again.stage("fused")
    with pytest.raises(ValueError, match="read from JSON"):
        again.kernels[0].text()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"schema": "opaque.graph", "version": 2}',
        '{"schema": "opaque.graph", "version": 1}',
    ],
)
def test_what_is_no_graph_is_refused(text):
    with pytest.raises(ValueError):
        Graph.from_json(text)


def test_dot(arguments):
    recorded, kernels = (
        torch_opaque.graph(net, *arguments, stage=s).to_dot() for s in ("recorded", "kernels")
    )
    assert recorded.startswith("digraph") and "matmul" in recorded and "cluster" not in recorded
    assert (
        "k0 ->" in kernels
        and "bytes" in kernels
        and "%" not in kernels.partition("k0")[2].partition("n0")[0]
    )
    assert "cluster_0" in torch_opaque.graph(net, *arguments, stage="fused").to_dot()


def test_threads_may_ask_one_graph(arguments):
    g = torch_opaque.graph(net, *arguments)
    want = str(torch_opaque.graph(net, *arguments, stage="kernels"))
    with ThreadPoolExecutor(4) as pool:
        assert set(map(str, pool.map(g.stage, ["kernels"] * 16))) == {want}


@pytest.mark.parametrize("name", ["ä" * 200, "a" + "ä" * 200])
def test_a_line_cut_within_a_character_is_shown(name):
    module = torch.nn.Module()
    module.add_module(name, torch.nn.ReLU())
    inner = getattr(module, name)
    g = torch_opaque.graph(lambda x: inner(x) + len(list(module.modules())), ones(2))
    assert g.find("relu")[0].module[:3] in name


# ---- names


def names(graph):
    return [n.name for n in graph.inputs]


def test_parameters_have_the_names_of_their_module():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8)).to(D).eval()
    g = torch_opaque.graph(model, ones(2, 4))
    assert set(names(g)) == {
        "input",
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
        "1.running_mean",
        "1.running_var",
    }


def test_a_training_step_names_gradients_and_state():
    model = torch.nn.Linear(4, 2).to(D)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batch = {"text": ones(3, 4)}

    def step():
        model(batch["text"]).sum().backward()
        optimizer.step()

    for _ in range(2):  # a first momentum is the gradient
        step()
    torch.opaque.synchronize()
    g = torch_opaque.graph(step)
    assert set(names(g)) == {
        *(
            "weight",
            "bias",
            "weight.grad",
            "bias.grad",
            "weight.momentum_buffer",
            "bias.momentum_buffer",
        ),
        "batch['text']",
    }


def test_two_modules_are_told_apart_by_their_variables():
    first, second = torch.nn.Linear(4, 4).to(D), torch.nn.Linear(4, 4, bias=False).to(D)
    g = torch_opaque.graph(lambda x: second(first(x)), ones(1, 4))
    assert set(names(g)) == {"x", "first.weight", "first.bias", "second.weight"}


def test_keyword_arguments_and_containers():
    def f(pair, *, scale=1, mask):
        return pair[0] * pair[1] * scale + mask

    x, y, z = (ones(3) + i for i in range(3))
    torch.opaque.synchronize()
    assert names(torch_opaque.graph(f, [x, y], mask=z, scale=2)) == ["pair[0]", "pair[1]", "mask"]
    with pytest.raises(TypeError):
        torch_opaque.graph(x + 1, mask=z)
    assert (
        torch_opaque.explain(f, [x, y], mask=z, scale=2, show=False).graph.inputs[2].name == "mask"
    )
    assert torch_opaque.compare(f, [x, y], mask=z, scale=2, show=False)["eager"].same_bits


def test_variables_of_the_caller():
    weights = ones(3)
    assert names(torch_opaque.graph(weights * 2)) == ["weights"]


def test_standard_library_frames_hide_no_line():
    from contextlib import contextmanager

    @contextmanager
    def scope():
        yield

    with scope():
        y = F.relu(ones(3))
    model = torch.nn.Linear(3, 3).to(D)
    assert "contextlib" not in str(torch_opaque.graph(model, y))
    assert torch_opaque.graph(model, y).find("matmul")[0].line.startswith("test_graphs.py:")


def test_nodes_know_their_module_and_so_do_gradients():
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())

        def forward(self, x):
            return self.inner(x) * 2

    model = Block().to(D)
    g = torch_opaque.graph(lambda x: model(x).cos(), ones(2, 4))
    where = {n.op: n.module for n in g.nodes if n.op not in ("input", "scalar")}
    assert where == {"matmul": "inner.0", "add": "inner.0", "relu": "inner.1", "mul": "", "cos": ""}
    assert [n.op for n in g.find(module="inner.*")] == ["matmul", "add", "relu"]
    fused = g.stage("fused").kernels[0]
    assert {n.module for n in fused.nodes} == {"inner.0", "inner.1", ""}

    def gradients(x):
        return torch.autograd.grad(model(x).sum(), list(model.parameters()))

    backward = torch_opaque.graph(gradients, ones(2, 4))
    assert [n.module for n in backward.find("matmul")] == ["inner.0"] * 2

    def fails(x):
        raise RuntimeError("no")

    model.inner[1].forward = fails
    with pytest.raises(RuntimeError, match="no"):
        torch_opaque.graph(model, ones(2, 4))
    assert torch_opaque.graph(lambda x: x + 1, ones(2)).find("add")[0].module == ""


def test_a_module_is_told_from_a_file_that_looks_like_one():
    code = compile("def f(x):\n    return x.exp()", "/some where/my in.py:3 in x", "exec")
    scope = {}
    exec(code, scope)

    class M(torch.nn.Module):
        def forward(self, x):
            return scope["f"](x)

    model = torch.nn.ModuleDict({"a": M()})
    node = torch_opaque.graph(lambda x: model["a"](x), ones(2)).nodes[-1]
    assert (node.line, node.module) == ("my in.py:3 in x:2", "a")
    assert node.source == "/some where/my in.py:3 in x:2" and not node.library


def test_a_gradient_knows_what_it_is_the_gradient_of():
    w = ones(8, 8).requires_grad_()

    def step(x):
        h = torch.tanh(x @ w)
        (h * h).sum().backward()
        return w.grad

    g = torch_opaque.graph(step, ones(2, 8))
    assert [n.op for n in g.nodes[-1:]] == ["matmul"] and g.nodes[-1].forward.op == "matmul"
    assert {n.forward.op for n in g.find("tanh_backward")} == {"tanh"}
    assert all(n.forward is None for n in g.nodes[: g.find("tanh")[0].id + 1])
    assert all(n.forward.id < n.id and n.forward.line == n.line for n in g.nodes if n.forward)
    assert Graph.from_json(g.to_json()).nodes[-1].forward.op == "matmul"
    composite = torch_opaque.graph(lambda x: F.softmax(x, -1), ones(2, 8), stage="fused")
    assert {n.recorded for n in composite.kernels[0].nodes} == {"softmax"}


def test_a_library_does_not_hide_the_line_of_the_program(tmp_path):
    (tmp_path / "site-packages").mkdir()
    library = tmp_path / "site-packages" / "lib.py"
    library.write_text("def f(x, g):\n    x = x.exp()\n    return g(x)\n")
    scope = {}
    exec(compile(library.read_text(), str(library), "exec"), scope)
    g = torch_opaque.graph(lambda x: scope["f"](x, lambda y: y.cos()), ones(2))
    exp, cos = g.nodes[-2:]
    assert exp.line.startswith("test_graphs.py:") and exp.library == "lib.py:2"
    assert exp.source == f"{__file__}:{exp.line.partition(':')[2]}"
    assert cos.line.startswith("test_graphs.py:") and not cos.library  # the user's code again
    assert exp.text.endswith(f"# {exp.line} via lib.py:2")
    exec(compile("y = f(x, abs)", str(library), "exec"), scope | {"x": ones(2)})


def test_scalars_stand_where_they_are_used():
    x = ones(4)
    i = torch.ones(4, dtype=torch.int64, device=D)
    torch.opaque.synchronize()
    nodes = torch_opaque.graph(lambda: (x * 0.1 + 1e-8).where(i != -100, x)).nodes
    texts = [n.text.partition("  #")[0].partition(" = ")[2] for n in nodes[-4:]]
    assert [n.op for n in nodes[:5]] == ["input"] * 2 + ["scalar"] * 3
    assert texts[0] == "mul f32[4] %0, 0.1" and texts[1].endswith(", 1e-08")
    assert texts[2] == "ne bool[4] %1, i64 -100"


class Layer(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up, self.down = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


@torch.no_grad()
def test_equal_layers_are_folded():
    layers = [Layer(8) for _ in range(7)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(8, 3)).to(D)
    g = torch_opaque.graph(model, ones(2, 8))
    text = g.fold()
    assert text.count("x 7 {") == 2 and "0.norm to 6.norm" in text  # inputs, ops
    assert text.count("gelu") == 1 and len(text.splitlines()) == 25 < len(str(g).splitlines()) - 60
    assert text.startswith("graph @g {\n") and text.endswith(f"  output %{g.outputs[0].id}\n}}\n")
    assert {line.strip() for line in text.splitlines() if " = " in line} <= {
        n.text for n in g.nodes
    }
    fused = g.stage("fused").fold()
    assert fused.count("kernel ") == 5 and len(g.stage("fused").kernels) == 10
    with pytest.raises(ValueError, match="no nodes to fold"):
        g.stage("c").fold()
    layers[3].down.bias = None
    other = torch_opaque.graph(model, ones(2, 8)).fold()
    assert "x 7 {" not in other and "x 3 {" in other  # the odd one stands between
    x = ones(4)
    assert torch_opaque.graph(lambda: x + 1).fold() == str(torch_opaque.graph(lambda: x + 1))
    crossed = torch_opaque.graph(lambda: [(a := x.exp(), b := a.cos(), b + a, b + b)][0]).fold()
    assert "x 2" not in crossed


def test_numbers_are_no_boxes():
    dot = torch_opaque.graph(lambda x: x * 0.5 + 3, ones(2)).to_dot()
    assert "scalar" not in dot and "mul 0.5" in dot and "add 3" in dot


# ---- lines of gradients


def line_of(fn, word: str) -> int:
    """The number of the line of fn's source that has the word."""
    lines, first = inspect.getsourcelines(fn)
    (found,) = [first + i for i, line in enumerate(lines) if word in line]
    return found


def gradient_lines(g, op: str) -> set:
    return {n.line.rpartition(":")[2] for n in g.nodes if n.backward and n.op == op}


def test_a_gradient_has_the_line_of_its_op_not_of_one_without_a_gradient_behind_it():
    conv, bn = nn.Conv2d(3, 8, 3).to("opaque"), nn.BatchNorm2d(8).to("opaque")

    def step(x):
        y = conv(x)
        z = bn(y)  # counts batches, which autograd knows nothing of, before it is itself an op
        return torch.autograd.grad(z.square().mean(), conv.weight)

    g = torch_opaque.graph(step, ones(2, 3, 8, 8))
    assert gradient_lines(g, "matmul") == {str(line_of(step, "y = conv"))}
    assert {n.module for n in g.nodes if n.backward and n.op == "matmul"} == {"conv"}


def test_gradients_of_views_and_of_compositions_have_lines():
    linear, cell = nn.Linear(4, 12).to("opaque"), nn.GRUCell(4, 4).to("opaque")

    def step(x):
        h = linear(x)
        q, k, v = h.split(4, -1)
        y = torch.sigmoid(q) * k + v
        z = cell(x, y)
        return torch.autograd.grad(z.sum(), [linear.weight, cell.weight_ih, cell.weight_hh])

    g = torch_opaque.graph(step, ones(2, 4))
    split, in_cell = str(line_of(step, "h.split")), str(line_of(step, "cell(x"))
    assert gradient_lines(g, "concat") == {split}
    assert gradient_lines(g, "gru_backward") == {in_cell}
    assert all(n.line for n in g.nodes if n.backward)


def test_threads_have_lines_of_their_own():
    """Autograd numbers its nodes in each thread from 0."""
    found = {}

    def one(x):
        return torch.autograd.grad(torch.tanh(x).sum(), x)

    def other(x):
        return torch.autograd.grad(torch.tanh(x).sum(), x)

    def look(fn):
        x = ones(3).requires_grad_()
        found[fn] = gradient_lines(torch_opaque.graph(fn, x), "tanh_backward")

    for fn in (one, other):
        thread = threading.Thread(target=look, args=(fn,))
        thread.start()
        thread.join()
    assert found == {fn: {str(line_of(fn, "torch.tanh"))} for fn in (one, other)}
