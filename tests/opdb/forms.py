"""op_db in its other dtypes and forms: the function, its in-place and its out= form, and gradients.

    forms.py [NAME ...] [--jobs N] [--full] [--out FILE]

Without --full each sample of an entry is taken in one of the dtypes below that the CPU has the operator for, in turn; with it all
samples are taken in all of them. Where the CPU raises, the device has to raise as well, at the call or where the result is read.
Floating results may be off from float64 by a few times as much as the CPU's are, halves by four units in the last place besides,
because many entries are several roundings; everything else has to be equal. Rows as those of
sweep.py, with the number of comparisons as the note.
"""

import os

import layouts
import sweep
import torch

DTYPES = ["float16", "bfloat16", "float64", "int64", "int32", "uint8", "bool", "complex64"]


HALVES = (torch.float16, torch.bfloat16)


def same(a, b) -> bool:
    """The same shape, dtype and values, NaN for NaN."""
    try:
        if a.is_sparse:
            a, b = a.to_dense(), b.to_dense()
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    except Exception:
        return False
    return True


class Entry(layouts.Comparison):
    def __init__(self, op, full: bool):
        super().__init__()
        self.op, self.full = op, full
        self.base = sweep.Entry(op)
        self.wide = {
            torch.float16: torch.float64,
            torch.bfloat16: torch.float64,
            torch.float32: torch.float64,
            torch.complex64: torch.complex128,
        }

    # ---- the forms: functions of arguments on either device, tensors out

    def functional(self, args, kwargs):
        return self.tensors(self.op(*args, **kwargs))

    def inplace(self, args, kwargs):
        target = args[0].detach().clone()
        self.op.inplace_variant(target, *args[1:], **kwargs)
        return [target]

    def into(self, args, kwargs):
        """Into tensors of the right shape and into empty ones, which grow."""
        shapes = [(r.shape, r.dtype) for r in self.tensors(self.op(*args, **kwargs))]
        made = []
        for right in (True, False):
            device = kwargs.get("device") or next(t.device for t in self.tensors((args, kwargs)))
            outs = [
                torch.zeros(shape if right else 0, dtype=dtype, device=device)
                for shape, dtype in shapes
            ]
            self.op(*args, **kwargs, out=tuple(outs) if len(outs) > 1 else outs[0])
            made += outs
        return made

    def gradients(self, args, kwargs):
        leaves = [t for t in self.tensors((args, kwargs)) if t.requires_grad]
        outs = [t for t in self.functional(args, kwargs) if t.requires_grad]
        if not leaves or not outs:
            return []
        torch.manual_seed(1)
        weights = [torch.randn(t.shape).to(t.device, t.dtype) for t in outs]
        return torch.autograd.grad(outs, leaves, weights, allow_unused=True)

    def forms(self, sample, dtype):
        no_grad = torch.no_grad()
        yield "function", self.functional
        if self.op.inplace_variant and not sample.broadcasts_input:
            yield "in place", no_grad(self.inplace)
        if self.op.supports_out:
            yield "out=", no_grad(self.into)
        if self.op.supports_autograd and (dtype.is_floating_point or dtype.is_complex):
            yield "gradients", self.gradients

    # ---- one form of one sample

    def answer(self, form, args, kwargs):
        """The results, read; or the error."""
        torch.manual_seed(0)
        try:
            return [self.read(t) for t in form(args, kwargs)]
        except Exception as error:
            return error

    def one(self, form, args, kwargs):
        narrow = self.answer(form, args, kwargs)
        there = {k: self.base.moved(v) for k, v in kwargs.items()}
        if kwargs.get("device") is not None:
            there["device"] = "opaque"
        got = self.answer(form, self.base.moved(args), there)
        if isinstance(narrow, Exception) or isinstance(got, Exception):
            if isinstance(got, Exception) and isinstance(narrow, Exception):
                return True
            if isinstance(got, Exception):
                raise got
            raise AssertionError(f"the CPU refuses: {narrow}")
        assert len(got) == len(narrow), f"{len(got)} results for {len(narrow)}"
        wide = None
        asked = [v for v in kwargs.values() if isinstance(v, torch.dtype)]
        if any(d in self.wide for d in [*asked, *(t.dtype for t in self.tensors((args, kwargs)))]):
            wide = self.answer(form, self.cast(args), self.cast(kwargs))
        if not isinstance(wide, list) or len(wide) != len(narrow):
            wide = [None] * len(narrow)
        for i, (g, n, w) in enumerate(zip(got, narrow, wide, strict=True)):
            if same(g, n):
                continue
            self.tolerance = self.base.tolerance
            if n is not None and w is not None and n.dtype in HALVES:
                w = w.to(n.dtype).to(w.dtype)  # a large number is infinite
                self.tolerance = {"rtol": 4 * torch.finfo(n.dtype).eps}
            self.near(f"result {i}", g, n, w)
        return True

    def run(self):
        if self.op.name in sweep.RANDOM:
            return "-", "-", "draws random numbers"
        names = [n for n in DTYPES if getattr(torch, n) in self.op.dtypes]
        for turn, name in enumerate(names):
            dtype = getattr(torch, name)
            torch.manual_seed(int(os.environ.get("OPAQUE_TEST_SEED", "0")))
            grad = self.op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
            for index, sample in enumerate(self.op.sample_inputs("cpu", dtype, requires_grad=grad)):
                if self.base.drops(sample) or not self.full and index % len(names) != turn:
                    continue
                args, kwargs = (sample.input, *sample.args), sample.kwargs
                for title, form in self.forms(sample, dtype):
                    self.attempt(f"{name} sample {index} {title}", self.one, form, args, kwargs)
        return self.verdict()


def entries() -> dict:
    """{name: its comparison}"""
    from torch.testing._internal.common_methods_invocations import op_db

    return {sweep.name_of(op): lambda full, op=op: Entry(op, full) for op in op_db}


if __name__ == "__main__":
    layouts.main(__file__, entries)
