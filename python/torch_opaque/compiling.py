"""torch.compile(model, backend="opaque"): the graphs of AOTAutograd as programs of this device, for tensors of the CPU as well.

A graph of tensors of the CPU runs on their memory: nothing is copied, what it writes lies in the tensors that it was given, and its results
are tensors of the CPU. A graph is recorded at its first call and is one plan from then on, see captured.py; a call with other sizes records
again, and compiles nothing that was compiled for others.
"""

import functools
import itertools
import logging
import operator
import re
import types
from contextlib import contextmanager, nullcontext

import torch
from torch import fx
from torch._C import DispatchKey
from torch._dynamo import trace_rules
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from . import _C
from .capture_modes import written_arguments
from .captured import Captured, _Watch
from .graphs import read

_code_log = torch._logging.getArtifactLogger("torch.opaque", "output_code")  # for TORCH_LOGS
_MODES = (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_WHOLE = (
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
    *(f"{kind}{n}d" for kind in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 2, 3)),
)
_OWN_NAMES = ("aten", "prims", "prim", "quantized", "opaque", "_c10d_functional")
_numbers = itertools.count()
trace_rules.add(__package__)  # Dynamo does not look into what is the device's own
_aten = torch.ops.aten


def _hint(number) -> int:
    if isinstance(number, int):
        return number
    return number.node.hint if number.node.has_hint() else 2


class _Strided:
    """How a new result lies that does not fill its memory."""

    def __init__(self, strides):
        self.strides = strides


def _order(value, new: bool) -> list[int] | _Strided | None:
    """The dims from the outermost in memory to the innermost, as tracing had a result: views behind it may need that. None: any order will do.

    new: it is no view of what lies elsewhere
    """
    strided = isinstance(value, torch.Tensor) and value.layout == torch.strided
    if not strided or value.dim() < 2:
        return None
    sizes, strides = map(_hint, value.shape), map(_hint, value.stride())
    dims = sorted(
        enumerate(zip(sizes, strides, strict=True)), key=lambda d: (d[1][0] == 1, -d[1][1])
    )
    expected = 1
    for _, (size, stride) in reversed(dims):
        if size != 1 and stride != expected:  # it does not fill its memory
            fixed = new and all(isinstance(stride, int) for stride in value.stride())
            return _Strided(value.stride()) if fixed else None
        expected *= size
    return [dim for dim, _ in dims]


def _ordered(tensor, order):
    if order is None or not isinstance(tensor, torch.Tensor):
        return tensor
    if isinstance(order, _Strided):
        if tensor.stride() == order.strides:
            return tensor
        made = torch.empty_strided(
            tensor.shape, order.strides, dtype=tensor.dtype, device=tensor.device
        )
        return made.copy_(tensor)
    if _C.is_ordered(tensor, order):
        return tensor
    back = sorted(range(len(order)), key=order.__getitem__)
    return tensor.permute(order).contiguous().permute(back)


def _call(target, args, kwargs):
    return target(*args, **kwargs)


def _nested(target, args, kwargs):
    return inner(target, args, kwargs)  # noqa: F821


@functools.lru_cache(4096)
def _caller(trace: str | None):
    """What calls a function as if from where the operator was called, so that its source line is the model's: of a node's stack trace the last
    line that is no package's, and the last one."""
    lines = re.findall(r'File "(.+?)", line (\d+), in ', trace or "")
    own = [line for line in lines if "site-packages" not in line[0]]
    caller = _call
    for function, places in ((_call, lines), (_nested, own)):
        if places and (function is _call or places[-1] != lines[-1]):
            name, line = places[-1]
            code = function.__code__
            code = code.replace(co_filename=name, co_firstlineno=int(line) - 1)
            caller = types.FunctionType(code, {"inner": caller})
    return caller


class _Recorder(fx.Interpreter):
    """Calls the operators of a graph on tensors of this device. orders: of its nodes' results, as far as they are known."""

    def __init__(self, module: fx.GraphModule, orders: dict):
        super().__init__(module)
        self.orders = orders

    def _orders(self, node):
        value = node.meta.get("val")
        schema = getattr(node.target, "_schema", None)
        new = schema is not None and all(r.alias_info is None for r in schema.returns)
        several = isinstance(value, (tuple, list))
        return tuple(_order(one, new) for one in value) if several else _order(value, new)

    def run_node(self, node):
        if node.op != "call_function":
            return super().run_node(node)
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        result = _caller(node.meta.get("stack_trace"))(node.target, args, kwargs)
        if node not in self.orders:
            self.orders[node] = self._orders(node)
        orders = self.orders[node]
        if not isinstance(orders, tuple):
            return _ordered(result, orders)
        several = isinstance(result, (tuple, list)) and len(result) == len(orders)
        return type(result)(map(_ordered, result, orders)) if several else result


def _to_device(value):
    return torch.device("opaque") if value == torch.device("cpu") else value


def _written(graph: fx.Graph) -> list[int]:
    """Which placeholders an operator writes."""
    found = set()
    for node in graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            found.update(written_arguments(node.target, node.args, node.kwargs))
    return [i for i, node in enumerate(graph.find_nodes(op="placeholder")) if node in found]


def _tensors(graph: fx.Graph) -> list:
    """What they are known by."""
    leaves = itertools.chain(*(tree_leaves(node.meta.get("val")) for node in graph.nodes))
    return [value for value in leaves if isinstance(value, torch.Tensor)]


def _devices(graph: fx.Graph) -> set[str]:
    """Of its tensors."""
    return {value.device.type for value in _tensors(graph)}


def _is_host(node: fx.Node) -> bool:
    """A number in a tensor, which only Python looks at."""
    users = [user.target for user in node.users]
    return bool(users) and all(user is _aten._local_scalar_dense.default for user in users)


def _is_plain(graph: fx.Graph) -> bool:
    """Are they operators on tensors of one device, none of which draws random numbers, and sizes?"""

    def plain(node):
        if isinstance(node.target, torch._ops.OpOverload):
            return torch.Tag.nondeterministic_seeded not in node.target.tags
        size = isinstance(node.meta.get("val"), (int, torch.SymInt))
        return size or node.target is operator.getitem

    functions = [node for node in graph.nodes if node.op == "call_function"]
    return len(_devices(graph)) == 1 and all(map(plain, functions))


def _take_foreign(module: fx.GraphModule) -> bool:
    """Are there operators of other libraries in it that have one kernel for every device? They then see tensors of the CPU, as their users do."""
    graphs = [part.graph for part in module.modules() if isinstance(part, fx.GraphModule)]
    found = False
    for node in itertools.chain(*(graph.nodes for graph in graphs)):
        for op in (node.target, *node.args):
            if isinstance(op, torch._ops.OpOverload) and op.namespace not in _OWN_NAMES:
                _C.take_as_on_cpu(op._schema.name, op._schema.overload_name)
                found = True
    return found


@contextmanager
def _as_on_cpu():
    before = _C.set_as_on_cpu(True)
    try:
        yield
    finally:
        _C.set_as_on_cpu(before)


class Program(Captured):
    """A graph of ATen operators: a list of its arguments -> a list of its results."""

    def __init__(self, module: fx.GraphModule, kind: str, foreign: bool = False):
        self.module = module
        self.name = f"{kind} {next(_numbers)}"
        self.written = _written(module.graph)
        self._host = not _is_plain(module.graph)
        orders = {}
        around = _as_on_cpu if foreign else nullcontext

        def call(*args):
            with around():
                return _Recorder(module, orders).run(*args)

        super().__init__(call)

    def _name(self) -> str:
        return self.name

    def _watch(self, args, kwargs, items) -> _Watch:
        return _Watch(items)  # of modules it has only what are its arguments

    def _record(self, *args, **kwargs):
        # Writes are the last of a graph; of those between devices one may raise when others are done.
        before = [(args[i], args[i].clone()) for i in self.written if self._host]
        try:
            return super()._record(*args, **kwargs)
        except RuntimeError:  # all of it runs once more, by itself
            with torch.no_grad():
                for tensor, value in before:
                    tensor.copy_(value)
            raise

    def _trace(self, changed, item):
        return self._traced  # numbers are sizes

    def _inspected(self) -> bool:
        return _code_log.isEnabledFor(logging.DEBUG)

    def _draft(self, *args):
        draft, refused = super()._draft(*args)
        if draft is not None and draft.inspection is not None:
            _code_log.debug("%s:\n%s", self.name, read(draft.inspection, "kernels"))
        return draft, refused


class _Boxed:
    """A program as AOTAutograd calls it: with a list of arguments, which is emptied."""

    def __init__(self, program: Program):
        self._boxed_call = True
        self.program = program
        self.refused = None  # why it is recorded at each call

    def run(self, given: list, take=lambda results: results):
        """take(results) computes them. Modes saw the operators when they were traced."""
        if torch._C._len_torch_dispatch_stack() > 0:
            with _disable_current_modes():
                return self.run(given, take)
        error = None
        if self.refused is None:
            try:
                return take(self.program(*given))
            except RuntimeError as raised:
                error = raised
        results = take(
            self.program.__wrapped__(*given)
        )  # which raises the same if it is the arguments'
        if error:
            self.refused = str(error)
            _C.log("plan", f"compile: {self.program.name} is recorded at each call: {error}")
        return results

    def __call__(self, arguments: list):
        given = list(arguments)
        arguments.clear()
        return self.run(given)


class _OnCPU(_Boxed):
    """For tensors of the CPU."""

    def __init__(self, program: Program):
        super().__init__(program)
        nodes = program.module.graph.find_nodes(op="placeholder")
        self.left = [i for i, node in enumerate(nodes) if _is_host(node)]

    def __call__(self, arguments: list):
        loan = _C.Loan()
        given = loan.take(arguments, self.left)
        arguments.clear()
        return self.run(given, lambda results: loan.give(results, self.program.written))


def _move(module: fx.GraphModule) -> None:
    """What the graph makes and holds on the CPU is of this device."""
    for node in module.graph.nodes:
        node.args = tree_map(_to_device, node.args)
        node.kwargs = tree_map(_to_device, node.kwargs)
        if node.op == "get_attr":
            *path, name = node.target.split(".")
            owner = module.get_submodule(".".join(path))
            held = getattr(owner, name)
            if isinstance(held, torch.Tensor) and held.device.type == "cpu":
                with unset_fake_temporarily():
                    there = held.detach().to("opaque")
                delattr(owner, name)
                setattr(owner, name, there)
    module.recompile()


def _compiler(kind: str):
    def compile_graph(module: fx.GraphModule, inputs):
        devices = _devices(module.graph)
        strided = all(value.layout == torch.strided for value in _tensors(module.graph))
        if not devices <= {"cpu", "opaque", "meta"} or not strided:
            from functorch.compile import make_boxed_func

            _C.log(
                "plan", f"compile: a {kind} graph runs as PyTorch has it: other devices or layouts"
            )
            return make_boxed_func(module.forward)
        if "opaque" in devices:
            return _Boxed(Program(module, kind))
        _move(module)
        return _OnCPU(Program(module, kind, _take_foreign(module)))

    return compile_graph


@contextmanager
def _whole():
    """While on, tracing leaves operators whole that have kernels here and that it would take apart to gathers."""
    keys = DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd
    taken = []
    for name, overload in itertools.product(_WHOLE, ("default", "vec")):
        op = getattr(getattr(_aten, name), overload)
        taken += [(op, key, op.py_kernels.pop(key)) for key in keys if key in op.py_kernels]
        op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, key, kernel in taken:
            op.py_kernels[key] = kernel
            op._dispatch_cache.clear()


def backend(module: fx.GraphModule, inputs, *, mode=None, options=None):
    """What torch.compile(..., backend="opaque") calls for each graph of Dynamo's. Modes change nothing; there are no options."""
    from functorch.compile import min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd

    if mode not in _MODES:
        raise ValueError(f"torch.compile(backend='opaque') has no mode {mode!r}")
    if options:
        raise ValueError(f"torch.compile(backend='opaque') has no option {next(iter(options))!r}")
    compiled = aot_autograd(
        fw_compiler=_compiler("forward"),
        bw_compiler=_compiler("backward"),
        inference_compiler=_compiler("inference"),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    with _whole():
        return compiled(module, inputs)
