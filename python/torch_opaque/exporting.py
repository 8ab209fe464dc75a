"""Exported models: what a function computes as one library for C, its header and a file of weights. See export().

The function is recorded once for each combination of sizes, as a captured function is; nothing is computed, and what it writes is put back.
opaque/export.c writes the plans as tables of C and the kernels as objects; here they get names, and a linker makes them a library with the
runtime that comes with the package (exported/).
"""

import copy
import inspect
import itertools
import math
import os
import re
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.utils import _pytree

from . import _C
from .captured import _capturing, reached
from .export_source import RESERVED, Tensor, header, interface
from .snapshot import PythonState, is_opaque

_SIZES = 4096  # combinations of sizes that one library holds plans for


class ExportError(RuntimeError):
    """A function that cannot be exported, and why."""


class Exported:
    """What export() wrote: `library`, `header` and `weights` are paths."""

    def __init__(self, library: Path, inputs, outputs):
        self.library = library
        self.header = library.with_suffix(".h")
        self.weights = library.with_suffix(".weights")
        self._inputs, self._outputs = inputs, outputs

    def __repr__(self) -> str:
        names = [", ".join(one.text() for one in them) for them in (self._inputs, self._outputs)]
        return f"<exported {self.library}: ({names[0]}) -> ({names[1]})>"


def _identifier(text: str, otherwise: str) -> str:
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or otherwise
    return name if name[0].isalpha() else f"{otherwise}_{name}"


class _Names:
    """Of the parameters of one function of C: each is another one, and no word of C's."""

    def __init__(self):
        self.taken = set(RESERVED)

    def give(self, name: str, if_taken: str = "") -> str:
        number, one = 0, name
        if name in self.taken and if_taken:
            one = name = f"{name}{if_taken}"
        while one in self.taken:
            number += 1
            one = f"{name}_{number}"
        self.taken.add(one)
        return one


def _parameter_names(fn, args, kwargs) -> dict:
    """{path of a leaf's top: name}"""
    forward = fn.forward if isinstance(fn, torch.nn.Module) else fn
    try:
        bound = list(inspect.signature(forward).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        bound = []
    return dict(enumerate(bound))


def _named_leaves(tree, names, otherwise) -> list:
    """[(name, leaf)] of the tensors, by path: several may have one name."""
    found = []
    for path, leaf in _pytree.tree_flatten_with_path(tree)[0]:
        if isinstance(leaf, torch.Tensor):
            parts = [
                str(getattr(p, "idx", getattr(p, "key", getattr(p, "name", "")))) for p in path
            ]
            if parts and parts[0].isdigit() and int(parts[0]) in names:
                parts[0] = names[int(parts[0])]
            found.append((_identifier("_".join(parts), otherwise), leaf))
    return found


# ---- sizes ----------------------------------------------------------------------------------------------------------


def _bounds(dim) -> tuple:
    """(name, min, max) of what dynamic_shapes has for a dim: a torch.export.Dim, or (name, min, max)."""
    if isinstance(dim, tuple):
        name, low, high = dim
    else:
        name, low, high = (
            dim.__name__,
            getattr(dim, "min", None),
            getattr(dim, "max", None),
        )
    if not isinstance(low, int) or not isinstance(high, int) or not 0 <= low <= high:
        raise ValueError(
            f"the size {name} needs a least and a largest value: torch.export.Dim({name!r}, min=1, max=64)"
        )
    return name, low, high


def _dynamic(shapes, args, kwargs) -> dict:
    """{number of the tensor among the arguments: {dim: (name, min, max)}}"""
    if shapes is None:
        return {}
    leaves = [x for x in _pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    found = {}

    def walk(given, value):
        if isinstance(value, torch.Tensor):
            number = next(i for i, leaf in enumerate(leaves) if leaf is value)
            items = given.items() if isinstance(given, dict) else enumerate(given or ())
            found[number] = {d: _bounds(dim) for d, dim in items if dim is not None}
        elif given is None:
            return
        elif isinstance(value, dict):
            for key, one in value.items():
                walk(given.get(key), one)
        elif isinstance(value, (tuple, list)):
            if len(given) != len(value):
                raise ValueError(f"dynamic_shapes has {len(given)} entries for {len(value)} values")
            for g, one in zip(given, value, strict=True):
                walk(g, one)

    if isinstance(shapes, dict) and shapes:
        names = list(shapes)
        if len(names) != len(args) + len(kwargs):
            raise ValueError(
                f"dynamic_shapes names {len(names)} arguments of {len(args) + len(kwargs)}"
            )
        walk(tuple(shapes.values()), (*args, *kwargs.values()))
    else:
        walk(tuple(shapes), (*args, *kwargs.values()))
    return {number: dims for number, dims in found.items() if dims}


def _resized(tensor, sizes) -> torch.Tensor:
    """A tensor of these sizes with values of this one's kind."""
    for dim, size in sizes.items():
        shape = [*tensor.shape]
        shape[dim] = size
        if tensor.shape[dim] == 0:
            tensor = tensor.new_zeros(shape)
        index = torch.arange(size, device=tensor.device) % max(tensor.shape[dim], 1)
        tensor = tensor.index_select(dim, index)
    return tensor


# ---- recording ------------------------------------------------------------------------------------------------------


def _on_device(fn):
    """The function, or a copy of the module on the device."""
    if isinstance(fn, torch.export.ExportedProgram):
        from torch.export.passes import move_to_device_pass

        fn = move_to_device_pass(fn, "opaque").module()
    if isinstance(fn, torch.nn.Module) and not all(
        is_opaque(t) for t in (*fn.parameters(), *fn.buffers())
    ):
        fn = copy.deepcopy(fn).to("opaque")
    return fn


def _weights(fn) -> list:
    """[(name, tensor)] of the parameters and buffers that the function may read."""
    found = []
    for root in reached(fn):
        if isinstance(root, torch.nn.Module):
            found += [*root.named_parameters(), *root.named_buffers()]
    return [(name, t.detach()) for name, t in found if is_opaque(t)]


@contextmanager
def _exporting():
    """Models ask torch.compiler whether they are exported, where they would look at values otherwise."""
    flags = [(torch.compiler, name) for name in ("_is_compiling_flag", "_is_exporting_flag")]
    before = [getattr(*flag, False) for flag in flags]
    for flag in flags:
        setattr(*flag, True)
    try:
        yield
    finally:
        for flag, value in zip(flags, before, strict=True):
            setattr(*flag, value)


class _Recorder:
    def __init__(self, fn, args, kwargs, exporter):
        self.fn, self.args, self.kwargs, self.exporter = fn, args, kwargs, exporter
        self.names = _weights(fn)
        self.state = PythonState()
        self.results = None  # of the last call, as (name, tensor)

    def call(self, resized: dict, sizes: list) -> None:
        """Records a call with these tensors in place of the arguments' (by number), for these sizes."""
        number = itertools.count()
        given = []

        def place(leaf):
            if not isinstance(leaf, torch.Tensor):
                return leaf
            tensor = resized.get(next(number), leaf)
            given.append(tensor.detach().to("opaque").clone(memory_format=torch.contiguous_format))
            return given[-1].requires_grad_(leaf.requires_grad)

        args, kwargs = _pytree.tree_map(place, (self.args, self.kwargs))
        torch.opaque.synchronize()
        try:
            self._record(args, kwargs, given, sizes)
        finally:
            self.state.restore()

    def _record(self, args, kwargs, given, sizes):
        module = isinstance(self.fn, torch.nn.Module)
        gradients = torch.is_grad_enabled() and not module
        with _capturing() as capturing:
            with _exporting(), torch.set_grad_enabled(gradients):
                result = self.fn(*args, **kwargs)
            with torch.no_grad():
                self.results = [
                    (name, self._dense(name, leaf))
                    for name, leaf in _named_leaves(result, {}, "output")
                ]
            if capturing.refused:
                raise ExportError(f"it cannot be exported: {capturing.refused}")
            tensors = [tensor for _, tensor in self.results]
            self.exporter.add(capturing, given, tensors, self.names, sizes)
            capturing.end()
            _C.capturing_restore(capturing)

    @staticmethod
    def _dense(name, tensor):
        if not is_opaque(tensor):
            raise ExportError(f"the result {name} is on {tensor.device}, and not on the device")
        return tensor.detach().clone(memory_format=torch.contiguous_format)


# ---- the library ----------------------------------------------------------------------------------------------------


def _compiler() -> str:
    wanted = os.environ.get("CC")
    for name in [wanted] if wanted else ["cc", "gcc", "clang"]:
        if found := shutil.which(name):
            return found
    raise ExportError(
        f"export() needs a C compiler{f': CC is {wanted}' if wanted else ', and there is no cc'}"
    )


def _link(compiler: str, folder: Path, library: Path, name: str) -> None:
    package = Path(__file__).parent / "exported"
    archive = package / "libopaque_exported.a"
    if not archive.exists():
        raise ExportError(f"this installation has no runtime for exported models: {archive}")
    objects = sorted(folder.glob("*.o"))
    listed = folder / "objects"
    listed.write_text("\n".join(str(one) for one in objects))
    shown = folder / "shown"
    shown.write_text(f"{{ global: {name}_*; opaque_model_library; local: *; }};")
    command = [compiler, "-shared", "-fPIC", "-O1", "-w", "-std=gnu11", "-fvisibility=hidden"]
    command += ["-I", str(package / "include"), "-I", str(folder), "-o", str(library)]
    command += [str(folder / "tables.c"), str(folder / "interface.c"), f"@{listed}", str(archive)]
    command += ["-Wl,--gc-sections,--build-id=none,--exclude-libs,ALL,-z,defs,-z,noexecstack,-s"]
    command += [f"-Wl,--version-script={shown}", "-lm", "-lpthread"]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode:
        raise ExportError(f"{compiler} could not make {library}:\n{made.stderr[-4000:]}")


def export(fn, args=(), path="model.so", *, kwargs=None, cpu=None, dynamic_shapes=None) -> Exported:
    """Writes what `fn(*args, **kwargs)` computes as a library for C: PATH.so, PATH.h and PATH.weights. Nothing of PyTorch, Python or LLVM is needed to
    run it, and it gives the bits of the device.

    fn              a module (in the mode that it is in, without gradients), a function of tensors of the device (which may be a whole training
                    step: what it writes is the state of an opened model), or a torch.export.ExportedProgram. Tensors of the CPU become such of
                    the device
    args, kwargs    tensors are what the library's function takes; everything else is as it is now
    path            of the library; its name becomes that of the model
    cpu             "avx2" or "avx512", whatever this machine has; None: as this one computes now
    dynamic_shapes  as torch.export has it, with Dim(name, min=..., max=...): sizes that each call chooses. Each combination is planned
                    when it is exported

    Raises ExportError, or what recording raises, where something of the function has no kernel of its own (by name and line), or needs Python.
    Needs a C compiler: $CC, or cc.
    """
    kwargs = kwargs or {}
    if cpu not in (None, "avx2", "avx512"):
        raise ValueError(f'the processor is "{cpu}"; known are avx2 and avx512')
    library = Path(path).with_suffix(".so")
    name = _identifier(library.stem, "model")
    compiler = _compiler()
    args = tuple(args) if isinstance(args, (tuple, list)) else (args,)
    fn = _on_device(fn)
    dynamic = _dynamic(dynamic_shapes, args, kwargs)
    bounds = _all_bounds(dynamic)
    parameters = _parameter_names(fn, args, kwargs)
    given = _named_leaves([*args, *kwargs.values()], parameters, "input")
    with tempfile.TemporaryDirectory(prefix="opaque-export-") as scratch:
        folder = Path(scratch)
        exporter = _C.Exporter(cpu or "", str(folder), len(bounds))
        recorder = _Recorder(fn, args, kwargs, exporter)
        results = _record_all(recorder, dynamic, bounds, [leaf for _, leaf in given])
        names = _Names()
        sizes = [names.give(_identifier(size, "size")) for size in bounds]
        order = list(bounds)
        inputs = [
            Tensor(
                names.give(n),
                leaf,
                {d: order.index(b[0]) for d, b in dynamic.get(k, {}).items()},
                sizes,
            )
            for k, (n, leaf) in enumerate(given)
        ]
        outputs = [
            Tensor(names.give(n, "_out"), tensor, _following(shapes, sizes), sizes)
            for n, tensor, shapes in results
        ]
        library.parent.mkdir(parents=True, exist_ok=True)
        described = [[one.described() for one in them] for them in (inputs, outputs)]
        exporter.finish(name, *described, sizes, str(library.with_suffix(".weights")))
        public = (Path(__file__).parent / "exported/include/exported/opaque_model.h").read_text()
        ranges = dict(zip(sizes, bounds.values(), strict=True))
        text = header(name, exporter.level, inputs, outputs, sizes, ranges, public)
        library.with_suffix(".h").write_text(text)
        (folder / f"{name}.h").write_text(text)
        (folder / "interface.c").write_text(interface(name, inputs, outputs, sizes))
        _link(compiler, folder, library, name)
    return Exported(library, inputs, outputs)


def _all_bounds(dynamic) -> dict:
    """{name of a size: (min, max)}"""
    bounds = {}
    for dims in dynamic.values():
        for size, low, high in dims.values():
            if bounds.setdefault(size, (low, high)) != (low, high):
                raise ValueError(f"the size {size} has two ranges")
    return bounds


def _record_all(recorder, dynamic, bounds, leaves) -> list:
    """Records each combination of sizes. -> [(name, result, {combination: its shape})]"""
    sizes = list(bounds)
    count = 1
    for low, high in bounds.values():
        count *= high - low + 1
    if count > _SIZES:
        raise ExportError(
            f"there are {count} combinations of sizes, of which {_SIZES} may be exported"
        )
    shapes = []
    for values in itertools.product(*(range(low, high + 1) for low, high in bounds.values())):
        chosen = dict(zip(sizes, values, strict=True))
        resized = {
            number: _resized(leaves[number], {d: chosen[b[0]] for d, b in dims.items()})
            for number, dims in dynamic.items()
        }
        recorder.call(resized, list(values))
        shapes = shapes or [{} for _ in recorder.results]
        for all_, (_, tensor) in zip(shapes, recorder.results, strict=True):
            all_[values] = tuple(tensor.shape)
    return [
        (name, tensor, all_) for (name, tensor), all_ in zip(recorder.results, shapes, strict=True)
    ]


def _following(shapes: dict, sizes: list) -> dict:
    """{dim of an output: number of the size that it is, or how it follows from sizes} of those that are not always the same."""
    found = {}
    ranks = {len(shape) for shape in shapes.values()}
    if len(ranks) > 1:
        raise ExportError(f"an output has {' or '.join(map(str, sorted(ranks)))} dims")
    for dim in range(ranks.pop()):
        values = {key: shape[dim] for key, shape in shapes.items()}
        if len(set(values.values())) > 1:
            same = [k for k in range(len(sizes)) if all(key[k] == v for key, v in values.items())]
            found[dim] = same[0] if same else _formula(values, sizes)
    return found


def _formula(values: dict, sizes: list) -> str:
    """{combination: value} as people read it, if it is a multiple of one size or of some, and a constant."""
    keys = list(values)
    for count in range(1, len(sizes) + 1):
        for some in itertools.combinations(range(len(sizes)), count):
            products = {key: math.prod(key[k] for k in some) for key in keys}
            low, high = min(keys, key=products.get), max(keys, key=products.get)
            if products[low] == products[high]:
                continue
            slope, rest = divmod(values[high] - values[low], products[high] - products[low])
            offset = values[low] - slope * products[low]
            if rest == 0 and all(v == slope * products[key] + offset for key, v in values.items()):
                factors = [str(slope)] * (slope != 1) + [sizes[k] for k in some]
                sign = f" {'+' if offset > 0 else '-'} {abs(offset)}" if offset else ""
                return "*".join(factors) + sign
    return "?"
