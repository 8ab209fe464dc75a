"""How far results may be from the reference, the CPU in float64.

The measure of a program is how far legitimate roundings move its results: the float32 CPU's own
error, and that of runs in float64 in which each op's result is moved by a few float32 roundings at
random, and so is each element that an op sums, because a sum that cancels rounds by the size of its
terms; normalizations, softmax and gelu are taken as the ops that they are made of, because the mean and the
scale that they round are shared by many results. Ours may be a small multiple of the largest of these, plus a few roundings of the tensor's
own size. A program that amplifies roundings is given what it amplifies and no more; and one lucky
run of the CPU does not make the bound too small, because before a difference is reported, more
noise is drawn. A program in float64 is measured in the same way by float64 roundings.
"""

import re

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch_opaque.numerics import max_difference, same_bits

MULTIPLE = 4
_UNIT = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}
_FLOOR = 16  # roundings of the largest element
_ROUNDINGS = 4
_a = torch.ops.aten
_COMPOSED = torch._decomp.get_decompositions(
    [
        *(_a.native_batch_norm, _a.native_layer_norm, _a.native_group_norm),
        *(
            _a.native_batch_norm_backward,
            _a.native_layer_norm_backward,
            _a.native_group_norm_backward,
        ),
        *(_a._softmax, _a._log_softmax, _a._softmax_backward_data, _a._log_softmax_backward_data),
        *(_a.gelu_backward, _a.softplus_backward, _a.elu_backward, _a.silu_backward),
    ]
)
_COMPOSED[_a.gelu.default] = torch._refs.nn.functional.gelu
_SUMS = (
    "sum",
    "mean",
    "var",
    "mm",
    "addmv",
    "mv",
    "dot",
    "linear",
    "norm",
    "softmax",
    "logsumexp",
    "conv",
    "loss",
    "scatter_add",
)
_EXACT = {"clone", "copy_", "_to_copy", "cat", "index_select", "index", "zero_", "fill_", "detach"}


class Noise(TorchDispatchMode):
    """Moves each real result on the CPU by a few roundings `unit`. Ops that only move data are exact, so that
    equal values stay equal."""

    def __init__(self, seed: int, unit: float):
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)
        self.width = 2 * _ROUNDINGS * unit

    def moved(self, t):
        return t * self.factor(t) if _is_cpu_real(t) else t

    def factor(self, t):
        factor = torch.rand(t.shape, dtype=t.dtype, generator=self.generator)
        return factor.sub_(0.5).mul_(self.width).add_(1)

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op in _COMPOSED:
            with self:
                return _COMPOSED[op](*args, **(kwargs or {}))
        name = op._schema.name.split("::")[1]
        aliases = [r.alias_info for r in op._schema.returns]
        if any(part in name for part in _SUMS) and not any(aliases):
            args = tree_map(self.moved, args)
        result = op(*args, **(kwargs or {}))
        is_view = any(a is not None and not a.is_write for a in aliases)
        if not is_view and name not in _EXACT:
            for t in tree_leaves(result):
                if _is_cpu_real(t):
                    t.mul_(self.factor(t))
        return result


def _is_cpu_real(t) -> bool:
    return isinstance(t, torch.Tensor) and t.device.type == "cpu" and t.is_floating_point()


class Reference:
    """What a program is worth on the CPU, with the values of `seed`."""

    def __init__(self, program, seed=None):
        self.program, self.seed = program, seed
        self.want = program.results("cpu", torch.float64, seed)
        self.cpu = program.results("cpu", torch.float32, seed)
        self.others = {torch.float32: [self.cpu], torch.float64: []}

    def more_noise(self, dtype, count: int) -> None:
        others = self.others[dtype]
        for _ in range(count):
            with Noise(len(others), _UNIT[dtype]):
                others.append(self.program.results("cpu", torch.float64, self.seed))

    def bound(self, name: str, dtype=torch.float32) -> float:
        """How far the largest difference of tensor `name`, computed in `dtype`, may be."""
        want, others = self.want[name], self.others[dtype]
        if len(others) < 3:
            self.more_noise(dtype, 3 - len(others))
        errors = [_distance(other[name], want) for other in others if name in other]
        return MULTIPLE * max(errors) + _FLOOR * _UNIT[dtype] * _size(want)

    def reals(self) -> list:
        """Names of the real tensors that are not all zero."""
        return [n for n, w in self.want.items() if _is_real(w) and w.any()]

    def size(self, name: str) -> float:
        return _size(self.want[name])

    def difference(self, got: dict) -> str:
        """What is wrong with `got`, or ""."""
        found = self._difference(got)
        if found:
            for dtype, others in self.others.items():
                if others:
                    self.more_noise(dtype, 8)
            found = self._difference(got)
        return found

    def _difference(self, got: dict) -> str:
        if got.get("raised") != self.want.get("raised"):
            return f"raised {got.get('raised')} ({got.get('message')}), the CPU {self.want.get('raised')}"
        if got.keys() != self.want.keys():
            return f"variables {sorted(got.keys() ^ self.want.keys())} on one side only"
        for name, want in self.want.items():
            if name != "message" and (found := self._compare(name, got[name], want)):
                return f"{name}: {found}"
        return ""

    def _compare(self, name, got, want) -> str:
        if not isinstance(want, torch.Tensor):
            return "" if got == want else f"{got}, the CPU {want}"
        if got.shape != want.shape:
            return f"shape {list(got.shape)}, the CPU {list(want.shape)}"
        if not _is_real(want):
            return "" if torch.equal(got, want) else f"{got}, the CPU {want}"
        cpu = self.cpu[name]
        if got.dtype not in (cpu.dtype, want.dtype):
            return f"{got.dtype}, the CPU {cpu.dtype}"
        if not torch.equal(cpu.isfinite(), want.isfinite()):
            return ""  # float32 overflows where float64 does not
        distance, bound = _distance(got, want), self.bound(name, got.dtype)
        return (
            ""
            if distance <= bound
            else f"off by {distance:.3g}, allowed {bound:.3g} of {_size(want):.3g}"
        )


def unequal_bits(got: dict, want: dict) -> str:
    """The first result that differs in type, shape or a bit, or "". All NaN count as one. Results named r and a
    number are of inexact ops: they may differ by a few roundings."""
    if got.get("raised") != want.get("raised"):
        return f"raised {got.get('raised')} ({got.get('message')}), not {want.get('raised')}"
    if got.keys() != want.keys():
        return f"variables {sorted(got.keys() ^ want.keys())} on one side only"
    for name, w in want.items():
        g = got[name]
        if not isinstance(w, torch.Tensor) or not isinstance(g, torch.Tensor):
            if name != "message" and str(g) != str(w):
                return f"{name}: {g}, not {w}"
        elif g.dtype != w.dtype or g.shape != w.shape:
            return f"{name}: {g.dtype}{list(g.shape)}, not {w.dtype}{list(w.shape)}"
        elif re.fullmatch(r"r\d+(\[\d+\])?", name) and _is_near(g, w):
            pass
        elif not same_bits(_one_nan(g), _one_nan(w)):
            return f"{name}: other bits, off by {max_difference(g, w):.3g}: {_short(g)}, not {_short(w)}"
    return ""


def _one_nan(x):
    """x with one NaN for all; what PyTorch cannot fill is widened, which is exact."""
    if not x.is_floating_point() and not x.is_complex():
        return x
    if x.dtype.itemsize == 1 or x.dtype == torch.complex32:
        x = x.to(torch.complex64 if x.is_complex() else torch.float32)
    return x.masked_fill(x != x, float("nan"))


def _is_near(got, want) -> bool:
    """Within 8 roundings of each element's size."""
    if not want.is_floating_point() and not want.is_complex():
        return torch.equal(got, want)
    wide = torch.complex128 if want.is_complex() else torch.float64
    return torch.allclose(
        got.to(wide),
        want.to(wide),
        8 * torch.finfo(want.dtype).eps,
        torch.finfo(want.dtype).tiny,
        equal_nan=True,
    )


def _short(x) -> str:
    return " ".join(str(x.flatten()[:12].tolist()).split())


def _is_real(x) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def _size(x) -> float:
    finite = x[x.isfinite()]
    return finite.abs().max().item() if finite.numel() else 0.0


def _distance(got, want) -> float:
    """Largest difference; infinite where one is not finite and the other is something else."""
    if got.shape != want.shape:
        return float("inf")
    got, want = got.double(), want.double()
    same = (got == want) | (got.isnan() & want.isnan())
    gap = torch.where(same, 0.0, (got - want).abs()).nan_to_num(float("inf"))
    return gap.max().item() if gap.numel() else 0.0
