"""Values and gradients of op_db when operands and cotangents do not lie in memory as they are written down.

    layouts.py [NAME ...] [--jobs N] [--full] [--out FILE]

Every sample of an entry is run on the device with its inputs and its grad_outputs in one of the layouts and in one of the modes
below; --full runs them all. The truth is what the CPU computes in float64 from contiguous tensors: some CPU kernels are wrong for
layouts with extents of 1 (test_layouts.py has one), so the CPU's answer for the same layout is no reference. Where float64 cannot be
had, the CPU's float32 is. The device may be off by a few times as much as the CPU's float32. Entries are those of op_db and those of
cases.py, which vary extents of 1. Rows as those of sweep.py, with the number of comparisons as the note.
"""

import argparse
import contextlib
import csv
import os
import sys
import warnings

import cases
import sweep

# ---- layouts: functions from a tensor to a tensor of the same values that lies differently in memory


def transposed(t):
    """The first and the last dimension, or all of them, lie in reverse order."""
    return (
        t.mT.contiguous().mT if t.dim() == 2 else t.transpose(0, -1).contiguous().transpose(0, -1)
    )


def reversed_dims(t):
    order = list(range(t.dim()))[::-1]
    return t.permute(order).contiguous().permute(order)


def sliced(t):
    """Every second element of a larger tensor, from its third on: neither dense nor at offset 0."""
    if t.dim() == 0:
        return sliced(t[None])[0]
    larger = t.new_empty([*t.shape[:-1], 2 * t.shape[-1] + 3]).fill_(7)
    larger[..., 2 : 2 + 2 * t.shape[-1] : 2] = t
    return larger[..., 2 : 2 + 2 * t.shape[-1] : 2]


def cropped(t):
    """A window that leaves out a border of the first dimensions."""
    larger = t.new_empty([s + 2 for s in t.shape]).fill_(7)
    window = tuple(slice(1, 1 + s) for s in t.shape)
    larger[window] = t
    return larger[window]


def channels_last(t):
    import torch

    if t.dim() in (4, 5):
        kind = torch.channels_last if t.dim() == 4 else torch.channels_last_3d
        return t.contiguous(memory_format=kind)
    return t.transpose(1, -1).contiguous().transpose(1, -1) if t.dim() > 2 else transposed(t)


def odd_ones(t):
    """Contiguous, but extents of 1 have strides that say nothing; where there are none, a row of a transposed matrix."""
    if 1 not in t.shape:
        return t[None].transpose(0, -1).contiguous().transpose(0, -1)[0]
    t = t.contiguous()
    strides = [3 * d + 1 if s == 1 else t.stride(d) for d, s in enumerate(t.shape)]
    return t.as_strided(t.shape, strides)


def expanded(t):
    """Stride 0 in the first dimension of more than one element. Changes the values: cotangents only."""
    for d, s in enumerate(t.shape):
        if s > 1:
            return t.narrow(d, 0, 1).expand(t.shape)
    return t


def one_number(t):
    """What sum().backward() passes on."""
    return t.reshape(-1)[:1].reshape(()).expand(t.shape) if t.numel() else t


def contiguous(t):
    return t.contiguous()


INPUTS = (contiguous, transposed, reversed_dims, sliced, cropped, channels_last, odd_ones)
COTANGENTS = (
    transposed,
    reversed_dims,
    expanded,
    one_number,
    sliced,
    cropped,
    channels_last,
    odd_ones,
)


def modes():
    import torch_opaque

    return (
        ("fused", contextlib.nullcontext),
        ("unfused", torch_opaque.unfused),
        ("eager", torch_opaque.eager),
    )


def plans(index: int, full: bool, values: bool = False):
    """(layout of the inputs, layout of the cotangents, mode, are intermediate tensors kept alive) for a sample. With `values`,
    no layout that changes values."""
    cotangents = [c for c in COTANGENTS if not (values and c in (expanded, one_number))]
    if full:
        kinds = [(contiguous, c) for c in cotangents] + [(i, contiguous) for i in INPUTS[1:]]
        for at, (i, c) in enumerate(kinds):
            for k, mode in enumerate(modes()):
                yield i, c, mode, (at + k + index) % 2 == 0
        return
    yield (
        INPUTS[index % len(INPUTS)],
        cotangents[index % len(cotangents)],
        modes()[index % 3],
        index // 3 % 2 == 0,
    )


def title(plan) -> str:
    return f"{plan[0].__name__} {plan[1].__name__} {plan[2][0]}{' kept' if plan[3] else ''}"


# ---- what every comparison does


class Comparison:
    """Counts what was compared and what went wrong."""

    def __init__(self):
        import torch

        self.torch, self.tolerance = torch, {}
        self.wide = {torch.float32: torch.float64, torch.complex64: torch.complex128}
        self.done, self.failed, self.wrong, self.notes = 0, 0, False, []

    def tensors(self, value):
        from torch.utils import _pytree

        return [t for t in _pytree.tree_leaves(value) if isinstance(t, self.torch.Tensor)]

    def cast(self, value):
        """float32 as float64, through lists and dictionaries."""
        torch = self.torch
        if isinstance(value, torch.Tensor):
            return (
                value.detach()
                .to(self.wide.get(value.dtype, value.dtype))
                .requires_grad_(value.requires_grad)
            )
        if isinstance(value, torch.dtype):
            return self.wide.get(value, value)
        if type(value) in (list, tuple):
            return type(value)(self.cast(v) for v in value)
        return {k: self.cast(v) for k, v in value.items()} if isinstance(value, dict) else value

    def read(self, tensor):
        """On the CPU; here errors of what ran late appear."""
        return None if tensor is None else tensor.detach().cpu()

    def near(self, name, got, narrow, wide):
        """`got`, read from the device, against float64; `narrow` is what the CPU makes of float32, `wide` may be missing."""
        torch = self.torch
        if got is None or narrow is None:
            assert got is narrow, f"{name}: given on one side only"
            return
        narrow = narrow.detach()
        if got.shape != narrow.shape or got.dtype != narrow.dtype:
            raise AssertionError(
                f"{name}: {got.dtype}{list(got.shape)} for {narrow.dtype}{list(narrow.shape)}"
            )
        if got.is_floating_point() and got.dtype.itemsize == 1:  # compared bit by bit otherwise
            got, narrow, wide = got.float(), narrow.float(), None
        if wide is None or not (got.is_floating_point() or got.is_complex()):
            wide, slack = narrow, 0.0
        else:
            error = (narrow.to(wide.dtype) - wide.detach()).abs()
            slack = error[error.isfinite()].max().item() if error.isfinite().any() else 0.0
        limits = {
            "atol": max(1e-5, self.tolerance.get("atol", 0)) + 8 * slack,
            "rtol": max(1e-5, self.tolerance.get("rtol", 0)),
        }
        torch.testing.assert_close(
            got.to(wide.dtype),
            wide.detach(),
            equal_nan=True,
            msg=lambda m: f"{name}: {m}",
            **limits,
        )

    def attempt(self, name, compare, *arguments):
        """compare(...) is false if there is nothing to compare, and raises if something is wrong."""
        try:
            self.done += bool(compare(*arguments))
        except Exception as error:
            self.failed += 1
            self.wrong |= isinstance(error, AssertionError)
            if len(self.notes) < 8:
                text = " ".join(str(error).split())[:160]
                self.notes.append(f"{name}: {type(error).__name__}: {text}")

    def verdict(self):
        if self.failed:
            note = f"{self.failed} of {self.done + self.failed}; " + " | ".join(self.notes)
            return ("wrong" if self.wrong else "error"), "-", note
        return ("ok" if self.done else "-"), "-", str(self.done)


# ---- one entry


class Entry(Comparison):
    """Compares one OpInfo, or what cases.py offers in its place."""

    def __init__(self, op, full: bool):
        super().__init__()
        self.op, self.full, self.leaves = op, full, []
        self.base = sweep.Entry(op)
        self.tolerance = self.base.tolerance

    def laid_out(self, value, layout, kept, device):
        """On the device, computed there and not yet known, in a layout; what it is made of becomes a leaf."""
        torch = self.torch
        if (
            isinstance(value, torch.Tensor)
            and value.layout == torch.strided
            and value.device.type == "cpu"
        ):
            leaf = (
                value.detach()
                .resolve_conj()
                .resolve_neg()
                .to(device)
                .requires_grad_(value.requires_grad)
            )
            if value.requires_grad:
                self.leaves.append(leaf)
            made = layout(leaf.clone())
            if kept is not None:
                kept.append(made)
            return made
        if type(value) in (list, tuple):
            return type(value)(self.laid_out(v, layout, kept, device) for v in value)
        return torch.device(device) if isinstance(value, torch.device) else value

    def there(self, sample, plan, change, device="opaque"):
        """Results and gradients of a sample that is laid out as planned."""
        layout, cotangent, _, keep = plan
        self.leaves, kept = [], [] if keep else None
        args = self.laid_out((sample.input, *sample.args), layout, kept, device)
        kwargs = {k: self.laid_out(v, layout, kept, device) for k, v in sample.kwargs.items()}
        if kwargs.get("device") is not None:
            kwargs["device"] = self.torch.device(device)
        return self.answer(args, kwargs, self.leaves, change, cotangent)

    def answer(self, args, kwargs, leaves, change, layout):
        """Results and gradients; the cotangents are `change`d in value first, then laid out."""
        torch = self.torch
        torch.manual_seed(0)
        out = self.op(*args, **kwargs)
        outs = [t for t in self.tensors(out) if t.requires_grad]
        if not leaves or not outs:
            return self.tensors(out), None
        torch.manual_seed(1)
        weights = []
        for t in outs:
            weight = torch.randn(
                t.shape, dtype=torch.complex64 if t.is_complex() else torch.float32
            )
            weights.append(layout(change(weight).to(t.device, t.dtype)))
        return self.tensors(out), torch.autograd.grad(outs, leaves, weights, allow_unused=True)

    def truth(self, args, kwargs, change):
        leaves = [t for t in self.tensors((args, kwargs)) if t.requires_grad]
        return self.answer(args, kwargs, leaves, change, contiguous)

    def wide_truth(self, narrow, args, kwargs, change):
        """None: the entry does not compute in float64."""
        try:
            wide = self.truth(self.cast(args), self.cast(kwargs), change)
        except Exception:
            return None
        alike = all(
            a.shape == b.shape and (not a.is_floating_point() or b.dtype == self.torch.float64)
            for a, b in zip(narrow[0], wide[0], strict=True)
        )
        return wide if alike else None

    def one(self, sample, plan):
        cotangent, mode = plan[1], plan[2][1]
        args, kwargs = (sample.input, *sample.args), sample.kwargs
        change = cotangent if cotangent in (expanded, one_number) else contiguous
        try:
            narrow = self.truth(args, kwargs, change)
        except Exception:
            return False
        wide = self.wide_truth(narrow, args, kwargs, change)
        with mode():
            try:
                got = [
                    [self.read(t) for t in part or ()] for part in self.there(sample, plan, change)
                ]
            except Exception:
                try:
                    self.there(sample, plan, change, "cpu")
                except Exception:  # not in this layout, says PyTorch
                    return False
                raise
            for kind, at in (("result", 0), ("gradient", 1)):
                for i, (g, n) in enumerate(zip(got[at], narrow[at] or (), strict=True)):
                    self.near(f"{kind} {i}", g, n, wide[at][i] if wide else None)
        return True

    def run(self):
        torch = self.torch
        torch.manual_seed(int(os.environ.get("OPAQUE_TEST_SEED", "0")))
        if self.op.name in sweep.RANDOM:
            return "-", "-", "draws random numbers"
        if self.op.name.startswith("as_strided"):
            return "-", "-", "strides are its arguments"
        samples = self.op.sample_inputs(
            "cpu", torch.float32, requires_grad=self.op.supports_autograd
        )
        for index, sample in enumerate(samples):
            if self.base.drops(sample):
                continue
            if not self.full and self.done + self.failed >= self.op.sample_limit:
                break
            for plan in plans(index, self.full):
                self.attempt(f"sample {index} {title(plan)}", self.one, sample, plan)
        return self.verdict()


def entries() -> dict:
    """{name: its comparison}"""
    from torch.testing._internal.common_methods_invocations import op_db

    found = {}
    for op in [*op_db, *cases.all_cases()]:
        op.sample_limit = getattr(op, "sample_limit", 6)
        found[sweep.name_of(op)] = lambda full, op=op: Entry(op, full)
    return found


# ---- workers, for this file and its kin


def work(entries, full: bool) -> None:
    """Reads entry names from stdin, writes a CSV row each to stdout."""
    warnings.simplefilter("ignore")
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch
    import torch_opaque  # noqa: F401

    torch.set_num_threads(1)
    found, writer = entries(), csv.writer(out)
    for line in sys.stdin:
        name = line.strip()
        writer.writerow([name, *found[name](full).run()])
        out.flush()


def run(file: str, names: list, full: bool, jobs: int = 1, note=lambda row: None) -> dict:
    """{name: (verdict, "-", note)} of the entries of a file like this one."""
    arguments = [os.path.abspath(file), "--worker", *(["--full"] if full else [])]
    return sweep.sweep(names, jobs=jobs, note=note, arguments=arguments)


# ---- for tests/python/: some entries run always, all of them with --full

FULL = bool(os.environ.get("OPAQUE_TEST_FULL"))
SECONDS = 7200 if FULL else 600  # of a full sweep; the longest takes the better part of an hour
WINDOW = (
    "the sample is a window of a larger storage, which a copy to the device does not take along"
)
COMPRESSED = "compressed sparse tensors do not live on the device"


def check(module, quick: list, expected: dict) -> None:
    """AssertionError if one of the entries of a module like this goes wrong, or passes though it is expected not to."""
    jobs = int(os.environ.get("OPAQUE_TEST_JOBS", len(os.sched_getaffinity(0))))
    names = sorted(module.entries()) if FULL else quick
    bad = []
    for name, row in run(module.__file__, names, FULL, jobs=jobs).items():
        if row[0] not in ("ok", "-") and name not in expected:
            bad.append(f"{name}: {row}")
        if row[0] == "ok" and name in expected:
            bad.append(f"{name} passes, and is listed")
        if row[0] == "-" and name.startswith("case."):
            bad.append(f"{name} compares nothing")
    assert not bad, "\n".join(bad)


def main(file: str, entries) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    if options.worker:
        return work(entries, options.full)
    out = open(options.out, "w", newline="") if options.out else sys.stdout  # noqa: SIM115
    writer = csv.writer(out)

    def note(row):
        writer.writerow(row)
        out.flush()

    run(file, options.names or sorted(entries()), options.full, options.jobs, note)


if __name__ == "__main__":
    main(__file__, entries)
