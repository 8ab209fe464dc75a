"""Watching a program: each run it makes, or a call of one of its functions."""

import difflib
import gc
import inspect
import sys
import threading
import types
from collections import Counter
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import torch

from . import _C, settings, summary
from .explanation import Explanation, _with_modules, roofline
from .graphs import Graph, read
from .naming import Names, variables_of
from .program import Stopped
from .samples import Samples, signature
from .twin import LIBRARIES

_RUNS, _REASONS = 12, 5  # rows shown
_LOOKS = 8  # at runs of one kind
_watching = []  # what is told before a run, the innermost last

# ---- runs


@contextmanager
def before_runs(tell):
    """While on, tell(tensors asked for, reason, line) is called before each run."""
    _watching.append(tell)
    _C.watch_runs(tell)
    try:
        yield
    finally:
        _watching.pop()
        _C.watch_runs(_watching[-1] if _watching else None)


@dataclass
class Look:
    """At what a run is going to compute."""

    inspection: object = field(repr=False)
    bytes_unfused: int


@dataclass
class Variant:
    """Runs of a kind that launched the same: `launches`, `planned`: of the last of them; `look`: at one of them, if there was any."""

    launches: list
    planned: list
    look: Look | None = None
    samples: Samples = field(default_factory=Samples, repr=False)

    @property
    def seconds(self) -> float:
        """Of all of them, without what interrupted some."""
        return self.samples.times * self.samples.each


@dataclass
class Run:
    """Runs of one kind: what a program asked for at one line, for one reason, after as many ops. `plans`: how often it was planned, `again`: why, after the first;
    `variants`: by what they launched, as where the last batch is smaller; `look`: at the first run, `looks`: how many there were."""

    number: int
    reason: str
    line: str
    ops: int
    look: Look
    grouping: bool
    times: int = 0
    compile_seconds: float = 0.0
    plans: int = 0
    again: Counter = field(default_factory=Counter, repr=False)
    variants: dict = field(default_factory=dict, repr=False)
    looks: int = 1

    def add(self, report: dict, look: Look | None = None) -> None:
        launches, planned = report["launches"], report["runs"]
        reasons = [run["why"] for run in planned if run["why"] is not None]
        self.plans += len(reasons)
        if self.times:
            self.again.update(reasons)
        self.times += 1
        self.compile_seconds += sum(launch["compile_seconds"] for launch in launches)
        key = signature(launches)
        if key not in self.variants:
            known = None if self.variants else self.look
            self.variants[key] = Variant(launches, planned, known)
        variant = self.variants[key]
        for now, before in zip(planned, variant.planned, strict=False):
            now["unwatched"] = before["unwatched"]  # what was known before this one was looked at
        variant.launches, variant.planned = launches, planned
        variant.look = variant.look or look
        variant.samples.add(launches, bool(reasons))

    @property
    def main(self) -> Variant:
        """Those that took most of the time."""
        return max(self.variants.values(), key=lambda variant: variant.seconds)

    @property
    def usual(self) -> Variant:
        """Those that launched the most in all, which is the same however busy the machine is."""
        return max(self.variants.values(), key=lambda v: v.samples.times * len(v.launches))

    @property
    def launched(self) -> int:
        return sum(v.samples.times * len(v.launches) for v in self.variants.values())

    @property
    def launches(self) -> list:
        return self.main.launches if self.variants else []

    @property
    def seconds(self) -> float:
        return sum(variant.seconds for variant in self.variants.values())

    @property
    def wants_look(self) -> bool:
        """Is there a variant whose graph nobody has seen? Some never come again."""
        unseen = any(variant.look is None for variant in self.variants.values())
        return unseen and self.looks < _LOOKS

    def graph(self, stage: str = "fused") -> Graph:
        return read((self.usual.look or self.look).inspection, stage)

    def explanation(self) -> Explanation:
        """As explain() of what was asked for, with the times of these runs. Who keeps the results nobody knows any more."""
        main, look = self.main, self.main.look or self.look
        graph, machine = read(look.inspection, "fused"), roofline(torch.get_num_threads())
        made = Explanation(
            kernels=_with_modules(main.launches, graph, machine),
            unfused=summary.ranked(graph.unfused),
            graph=graph,
            grouping=self.grouping,
            bytes_unfused=look.bytes_unfused,
            runs=main.planned,
            machine=machine,
            reason=self.reason,
            line=self.line,
            times=self.times,
        )
        return made.timed(main.samples)


class Runs(Names):
    """The kinds of runs that this thread makes while it is watched (a context manager), in `kinds`, in order of their first. `names`:
    those of a function of which they are parts, whose scopes are on; without, names are what the running program sees."""

    def __init__(self, names: Names | None = None):
        super().__init__(None, (), {}, [])
        self._names = names
        self._thread = threading.get_ident()
        self._recorded, self._found, self._current, self._look = 0, {}, None, None

    @property
    def kinds(self) -> list:
        return list(self._found.values())

    @contextmanager
    def watched(self):
        self._recorded = _C.stats()["ops_recorded"]
        _C.report_begin()
        try:
            with before_runs(self._before), nullcontext() if self._names else self.scopes():
                yield self
        finally:
            self._close()

    def path_of(self, module, outermost: bool) -> str:
        if outermost and id(module) not in self.modules:
            found = Names(None, (), {}, visible()).modules
            found.setdefault(id(module), ("", module))
            for name, part in module.named_modules():
                found.setdefault(id(part), (name, part))
            self.modules |= found
        return super().path_of(module, outermost)

    def _close(self) -> None:
        try:
            report = _C.report_end()
        except RuntimeError:  # the program's own explain() ended it
            report = {"launches": []}
        if self._current and report["launches"]:
            self._current.add(report, self._look)
        self._current = self._look = None

    def _before(self, tensors: list, reason: str, line: str) -> None:
        if threading.get_ident() != self._thread:
            return
        self._close()
        if tensors and not (self._names and reason == "inspect"):
            recorded = _C.stats()["ops_recorded"]
            key = reason, line, recorded - self._recorded, _C.get_modes()
            self._recorded = recorded
            self._current = self._found.get(key) or self._new(key, tensors)
            if self._current.wants_look:
                self._current.looks += 1
                self._look = self._look_at(tensors)
        _C.report_begin()

    def _new(self, key: tuple, tensors: list) -> Run:
        reason, line, ops, modes = key
        run = Run(
            number=len(self._found) + 1,
            reason=reason,
            line=line,
            ops=ops,
            look=self._look_at(tensors),
            grouping=not modes & settings.UNFUSED,
        )
        self._found[key] = run
        return run

    def _look_at(self, tensors: list) -> Look:
        names = self._names or Names(None, (), {}, visible())
        return Look(_C.Inspection(tensors, names.tensors), _C.unfused_bytes(tensors))

    def table(self) -> str:
        """A row for each kind that ran, the dearest first."""
        whole = sum(run.seconds for run in self.kinds)
        runs = sorted(self.kinds, key=lambda run: -run.seconds)
        rows = [
            (
                run.number,
                run.times,
                summary.seconds_text(run.seconds),
                f"{100 * run.seconds / whole:.0f}%" if whole else "",
                summary.seconds_text(run.seconds / max(run.times, 1)),
                summary.seconds_text(run.compile_seconds) if run.compile_seconds else "",
                run.plans or "",
                run.ops,
                len(run.launches),
                run.reason,
                run.line,
            )
            for run in runs[:_RUNS]
        ]
        header = "run times time share each compile plans ops launches reason source"
        text = summary.table(tuple(header.split()), rows)
        if len(runs) > _RUNS:
            rest = sum(run.seconds for run in runs[_RUNS:])
            text += f"\n... {len(runs) - _RUNS} more kinds of runs: {summary.seconds_text(rest)}"
        return text

    def reasons(self) -> str:
        """Why runs of a kind that had run before were planned again, the most frequent reasons first."""
        rows = sum((run.again for run in self.kinds), Counter()).most_common()
        if not rows:
            return ""
        lines = [f"  {why}{f' x {n}' if n > 1 else ''}" for why, n in rows[:_REASONS]]
        if len(rows) > _REASONS:
            lines.append(f"  ... {sum(n for _, n in rows[_REASONS:])} more")
        return "planned again, because of the nearest plan's difference:\n" + "\n".join(lines)


def visible() -> list:
    """Variables of the program's functions that are running, innermost first, and of their modules."""
    hidden = {"torch", "torch_opaque", *sys.stdlib_module_names} - {"__main__"}
    variables, outer = [], {}
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in hidden:
            variables += variables_of(frame).items()
            outer[id(frame.f_globals)] = frame.f_globals
        frame = frame.f_back
    for names in outer.values():
        variables += [(k, v) for k, v in list(names.items()) if not k.startswith("__")]
    return variables


# ---- calls


class Calls:
    """Looks at calls of the function `name` by calling `look(function, *args, **kwargs)` before each, up to the `last`, at which the
    program stops. `result`: what the look at the last of them gave; `seen`: how many there were.

    `name` is the end of a path as in "train_step" (of the program's own functions), "Model.forward", "package.module.function", or a module in a variable and
    its method, "model.forward", or without it. sys.settrace() tells of calls, so that the function is found wherever it is; the look itself is
    not traced."""

    def __init__(self, name: str, last: int, look):
        self._name, self._last, self._look = name, last, look
        self._owner, _, self._method = name.rpartition(".")
        self.result, self.error, self.seen = None, None, 0
        self._codes = set()  # of all functions that were called

    @contextmanager
    def watched(self):
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            yield self
        finally:
            sys.settrace(before)

    def _trace(self, frame, event: str, _) -> None:
        code = frame.f_code
        self._codes.add(code)
        if (
            event != "call"
            or code.co_name not in (self._method, "forward")
            or self.seen >= self._last
        ):
            return
        if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE) or not self._is_it(frame):
            return
        self.seen += 1
        try:
            function, args, kwargs = _call_of(frame)
            _C.synchronize("inspect")  # what the arguments wait for is not the function's
            self.result = self._look(function, *args, **kwargs)
        except Exception as error:
            self.error, self._last = error, self.seen
        # The look emptied the dict of this frame's variables, from which Python restores them after a trace: read anew.
        frame.f_locals  # noqa: B018
        if self.seen >= self._last:
            raise Stopped

    @property
    def near(self) -> list:
        """Functions of the program that were called and have nearly this name."""
        own = {code.co_name for code in self._codes if not _is_installed(code)}
        return difflib.get_close_matches(self._method, own - {self._method})

    def _is_it(self, frame) -> bool:
        path = f"{frame.f_globals.get('__name__', '')}.{frame.f_code.co_qualname.replace('<locals>.', '')}"
        if f".{path}".endswith(f".{self._name}"):
            return bool(self._owner) or not _is_installed(frame.f_code)
        first = _first_argument(frame)
        if not isinstance(first, torch.nn.Module):
            return False
        is_owner = frame.f_code.co_name == self._method and _held_as(self._owner, first, frame)
        return is_owner or (
            frame.f_code.co_name == "forward" and _held_as(self._name, first, frame)
        )


def _is_installed(code) -> bool:
    """Is it of Python or of an installed package, whose names the program does not mean unless it gives their path?"""
    return code.co_filename.startswith((*LIBRARIES, "<frozen"))


def _first_argument(frame):
    code = frame.f_code
    return frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None


def _held_as(path: str, value, frame) -> bool:
    """Is it what a function that is running calls by this path?"""
    name, *attributes = path.split(".")
    while (frame := frame.f_back) is not None:
        found = variables_of(frame).get(name, frame.f_globals.get(name))
        for attribute in attributes:
            found = getattr(found, attribute, None)
        if found is value:
            return True
    return False


def _call_of(frame) -> tuple:
    """(function, positional arguments, keyword arguments) of a call that begins."""
    code, values = frame.f_code, dict(frame.f_locals)
    names = list(code.co_varnames)
    count = code.co_argcount + code.co_kwonlyargcount
    args = [values[name] for name in names[: code.co_argcount]]
    kwargs = {name: values[name] for name in names[code.co_argcount : count]}
    if code.co_flags & inspect.CO_VARARGS:
        args += values[names[count]]
        count += 1
    if code.co_flags & inspect.CO_VARKEYWORDS:
        kwargs |= values[names[count]]
    function = _function_of(frame, values)
    if args and code.co_varnames[0] == "self":
        owner = args.pop(0)
        # A module is called as the program does it, with its hooks.
        is_forward = isinstance(owner, torch.nn.Module) and type(owner).forward is function
        function = owner if is_forward else types.MethodType(function, owner)
    return function, args, kwargs


def _function_of(frame, values: dict):
    """The function with this frame's code that sees its globals and these values of outer functions: copies see others."""
    code = frame.f_code

    def fits(function) -> bool:
        cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
        return all(name in values and cell.cell_contents is values[name] for name, cell in cells)

    # After gc.freeze() referrers are not found: methods and functions of a module are where their names are, too.
    first = values.get(code.co_varnames[0]) if code.co_argcount else None
    scopes = [*map(vars, type(first).__mro__), frame.f_globals]
    known = [*gc.get_referrers(code), *(scope.get(code.co_name) for scope in scopes)]
    functions = [f for f in known if isinstance(f, types.FunctionType)]
    functions = [f for f in functions if f.__code__ is code and f.__globals__ is frame.f_globals]
    if not functions:
        raise LookupError(
            f"{code.co_qualname} is nowhere to be found, perhaps because of gc.freeze()"
        )
    return next(filter(fits, functions), functions[0])
