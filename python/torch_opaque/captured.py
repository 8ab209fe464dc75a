"""Captured functions: what a function records, as one plan that later calls run without recording.

    @torch_opaque.capture
    def step(x, y):
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

The first call with arguments of some kind records and runs; later ones check that all is as it was, and run the plan. Read anew at each
call: tensors in the arguments, and every tensor of the device that the function reaches otherwise. What is not as it was (a shape, a dtype,
`training`, a mode ...) is recorded anew; what a plan cannot do (a value that Python looks at) is an error at its line.
"""

import functools
import inspect
import types
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._pytree import tree_leaves, tree_map

from . import _C
from .capture_modes import Functions, Operators
from .difference import diff
from .graphs import read
from .numbers import is_number, number
from .settings import EAGER

KINDS = 64  # of arguments, of which plans are kept
_SIMPLE = (int, float, bool, str, type(None))


def _name(optimizer, group: int) -> str:
    return f"group {group} of {type(optimizer).__name__}"


def _numbers(optimizer) -> list:
    """What an optimizer counts by itself, and its options."""
    dicts = [one for one in optimizer.state.values() if isinstance(one, dict)]
    return [
        (k, v)
        for one in (*optimizer.param_groups, *dicts)
        for k, v in one.items()
        if isinstance(v, _SIMPLE)
    ]


def reached(fn) -> list:
    """The function, the object that it is a method of, and what it closes over or names."""
    fn = inspect.unwrap(fn) if callable(fn) else fn
    function = getattr(fn, "__func__", fn)
    roots = [fn, getattr(fn, "__self__", None)]
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):  # it is empty
            roots.append(cell.cell_contents)
    names = getattr(getattr(function, "__code__", None), "co_names", ())
    return roots + [function.__globals__[name] for name in names if name in function.__globals__]


class _Watch:
    """Modules that are called and optimizers that step: what of them Python code goes by."""

    def __init__(self, free):
        self.free = free  # (name of the dict, key): numbers that each call has anew
        self.modules, self.optimizers = {}, {}
        self.counted = {}  # of an optimizer: its numbers before it steps
        self.capturing = None
        self._replaced = []

    def __enter__(self):
        self._hooks = (
            register_module_forward_pre_hook(self._module),
            register_optimizer_step_pre_hook(self._optimizer),
            register_optimizer_step_post_hook(lambda *_: self._put_back()),
        )
        return self

    def __exit__(self, *_):
        for hook in self._hooks:
            hook.remove()
        self._put_back()
        for key, optimizer in self.optimizers.items():
            if _numbers(optimizer) != self.counted[key]:
                self.capturing.refuse(f"numbers of {type(optimizer).__name__} change in it")

    def _put_back(self):
        for group, key, value in self._replaced:
            if is_number(group[key]):
                group[key] = value
        self._replaced.clear()

    def look_for_modules(self, fn, args, kwargs) -> None:
        """What the function may ask for `training` without calling it: modules that it is given, closes over, or names."""
        for root in (*reached(fn), *tree_leaves((args, kwargs))):
            held = (
                ()
                if isinstance(root, (type, types.ModuleType))
                else getattr(root, "__dict__", {}).values()
            )
            for one in (root, *held):
                if isinstance(one, torch.nn.Module):
                    for module in one.modules():
                        self._module(module, None)

    def _module(self, module, _args):
        if id(module) not in self.modules:
            simple = {k: v for k, v in vars(module).items() if isinstance(v, _SIMPLE)}
            self.modules[id(module)] = module, simple

    def _optimizer(self, optimizer, _args, _kwargs):
        self.optimizers[id(optimizer)] = optimizer
        self.counted.setdefault(id(optimizer), _numbers(optimizer))
        for i, group in enumerate(optimizer.param_groups):
            for key, value in group.items():
                if (_name(optimizer, i), key) in self.free and type(value) in (int, float):
                    register = self.capturing.dict_item(group, key)
                    group[key] = number(self.capturing, register)
                    self._replaced.append((group, key, value))

    def dicts(self) -> list:
        """(dict, keys or None for all, its name)"""
        found = []
        for module, simple in self.modules.values():
            name = type(module).__name__
            items = vars(module)
            same = tuple(k for k, v in simple.items() if items.get(k, found) is v)
            found.append((items, same, name))
            for part in (
                "_parameters",
                "_buffers",
                "_modules",
                "_forward_hooks",
                "_forward_pre_hooks",
                "_backward_hooks",
                "_backward_pre_hooks",
            ):
                found.append((items[part], None, f"{name}.{part}"))
        for optimizer in self.optimizers.values():
            kind = type(optimizer).__name__
            found.append((vars(optimizer), ("state", "param_groups"), kind))
            for part in ("state", "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
                found.append((getattr(optimizer, part), None, f"{kind}.{part}"))
            for state in optimizer.state.values():
                if isinstance(state, dict):
                    found.append((state, None, f"{kind}'s state of a parameter"))
            for i, group in enumerate(optimizer.param_groups):
                name = _name(optimizer, i)
                keys = tuple(k for k in group if (name, k) not in self.free)
                found.append((group, keys, name))
        return found


@contextmanager
def _capturing(forward=None, host=True):
    """host: does the function compute anything on the CPU?"""
    capturing = _C.Capturing()
    if forward is not None:
        capturing.follow(forward)
    try:
        with ExitStack() as stack:
            if host:
                stack.enter_context(Functions(capturing))
                stack.enter_context(Operators(capturing))
            yield capturing
    finally:
        _C.finish_backward()  # which holds what it has read
        capturing.end()


def _add_backward(draft, forward) -> str:
    """Captures what backward() of the results does, if they have a gradient. Why it needs Python, "" if it does not."""
    outputs = draft.outputs
    if not outputs:
        return ""
    incoming = [torch.ones(o.shape, dtype=o.dtype, device=o.device) for o in outputs]
    cut = draft.cut()
    try:
        with _capturing(forward) as capturing:
            gradients = torch.autograd.grad(
                outputs, cut.ends, incoming, retain_graph=True, allow_unused=True
            )
    except RuntimeError as error:
        if "backward through the graph a second time" in str(error):
            return ""  # the function went through it itself
        return f"its gradient cannot be captured: {error}"
    finally:
        cut.restore()
    return "" if draft.add_backward(capturing, incoming, gradients) else capturing.refused


class CaptureError(RuntimeError):
    """A captured function did what its plan does not."""


class Captured(_C.CapturedFunction):
    """A captured function: see capture()."""

    _host = True  # it may compute on the CPU

    def __init__(self, fn, check: int = 0):
        functools.update_wrapper(self, fn, updated=())
        self._fn = fn
        self._every = check
        self._reasons = Counter()  # why it was recorded anew
        self._refused = Counter()  # why calls need Python
        # Numbers that change: among the arguments, see capture_difference, and in dicts, which are options of optimizers
        self._traced = [], frozenset()

    def __get__(self, instance, owner=None):
        return self if instance is None else types.MethodType(self, instance)

    def __getattr__(self, name: str):  # of a module: parameters(), eval() ...
        if name == "_fn" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._fn, name)

    def __repr__(self) -> str:
        return f"<captured {getattr(self._fn, '__qualname__', self._fn)}>"

    def _plain(self, *args, **kwargs):
        return self._fn(*args, **kwargs)

    def _watch(self, args, kwargs, items) -> _Watch:
        watch = _Watch(items)
        watch.look_for_modules(self._fn, args, kwargs)
        return watch

    def _run(self, args, kwargs, traced):
        """Calls the function while it is captured. -> (the watch, its result in a list, of which nobody else has a reference)"""
        free, items = traced
        watch = self._watch(args, kwargs, items)
        with _capturing(host=self._host) as watch.capturing, watch:
            given, named = watch.capturing.arguments(
                args, kwargs, free, lambda register, _: number(watch.capturing, register)
            )
            return watch, [self._fn(*given, **named)]

    def _draft(self, watch, args, kwargs, result, traced):
        """-> (a way more of the function, why a call needs Python)"""
        capturing = watch.capturing
        draft = _C.capture_draft(capturing, args, kwargs, result, traced[0], self._inspected())
        refused = capturing.refused if draft is None else _add_backward(draft, capturing)
        return draft, refused

    def _record(self, *args, **kwargs):
        if _C.get_modes() & EAGER:
            return self._fn(*args, **kwargs)
        why, changed, item = _C.capture_difference(self, args, kwargs)
        traced = self._trace(changed, item)
        watch, box = self._run(args, kwargs, traced)
        result = box.pop()
        draft, refused = self._draft(watch, args, kwargs, result, traced)
        if refused:
            self._refuse(refused)
            return tree_map(lambda one: one.node.value if is_number(one) else one, result)
        result = draft.first_result()
        if draft.leaks():
            self._refuse("a tensor that it makes outlives the call, and is no result")
            return result
        draft.keep(self, watch.dicts(), traced)
        if why is not None:
            self._reasons[why] += 1
            _C.log("plan", f"capture: {self._name()} recorded anew: {why}")
        _C.capture_limit(self, KINDS)
        return result

    def _trace(self, changed, item):
        """Numbers that are not what they were become numbers that each call has anew."""
        free, items = self._traced
        self._traced = (
            sorted({*free, *changed}),
            items if item is None else items | {item},
        )
        return self._traced

    def _inspected(self) -> bool:
        """Is the graph of a draft looked at?"""
        return self._every > 0

    def _refuse(self, why: str) -> None:
        self._refused[why] += 1
        _C.log("plan", f"capture: {self._name()} needs Python: {why}")

    def _check(self, *args, **kwargs):
        traced = _C.capture_fits(self, args, kwargs)
        if traced is None:
            return self._record(*args, **kwargs)
        watch, box = self._run(args, kwargs, traced)
        draft, refused = self._draft(watch, args, kwargs, box[0], traced)
        if refused:
            raise CaptureError(
                f"{self._name()} needs Python, and did not when it was captured: {refused}"
            )
        if what := draft.difference(self):
            raise CaptureError(
                f"{self._name()} went another way than its plan: {self._explain(draft, what)}"
            )
        box.clear()
        return draft.first_result()

    def _explain(self, draft, what: str) -> str:
        kind, _, which = what.partition(" ")
        before, now = _C.capture_inspections(self)[0], draft.inspection
        if None in (before, now) or kind not in ("graph", "number", "constant"):
            return what
        a, b = read(before, "recorded"), read(now, "recorded")
        if kind == "graph":
            return diff(a, b).text()
        nodes = [n for n in b.nodes if n.op == ("scalar" if kind == "number" else "input")]
        node = nodes[int(which)]
        place = f", read by {node.users[0].op} at {node.users[0].place}" if node.users else ""
        return f"{'a number' if kind == 'number' else 'a tensor made of constants'} is another one{place}"

    def _name(self) -> str:
        return getattr(self._fn, "__qualname__", type(self._fn).__name__)

    def summary(self) -> str:
        """How often it was recorded and why, and which calls need Python."""
        lines = [f"{self._name()}: {len(_C.capture_info(self))} plans"]
        lines += [
            f"  {i['ops']} ops, {i['kernels']} kernels, {i['tensors']} tensors read or written"
            for i in _C.capture_info(self)
        ]
        lines += [f"  recorded anew, {n} times: {why}" for why, n in self._reasons.most_common()]
        lines += [f"  not captured, {n} calls: {why}" for why, n in self._refused.most_common()]
        return "\n".join(lines)

    def forget(self) -> None:
        """Drops the plans, and what they hold: the next call records."""
        _C.capture_forget(self)


def capture(fn=None, *, check: int = 0):
    """Makes `fn` a function whose calls run one plan, from C, as long as nothing changes that the plan depends on. A decorator, too.

    check      each so many calls one is recorded as well, and the graphs compared: what Python did that the plan does not know is an error
    """
    if fn is None:
        return functools.partial(capture, check=check)
    if not callable(fn):
        raise TypeError(f"capture() takes a function, not {type(fn).__name__}")
    return Captured(fn, check)
