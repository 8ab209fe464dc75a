"""Memory formats: results of op_db's samples, laid out as on the CPU, for inputs in several memory orders.

    formats.py [--full] [--only NAME ...]

Prints a line per sample whose results have other strides than the CPU's: entry, sample, layout, strides here and there. Strides of
dims of one element say nothing and are not compared. --full: all samples of an entry, not the first few.
"""

import argparse
import os
import sys
import warnings

os.environ.setdefault("OPAQUE_FALLBACK_WARN", "0")

import layouts
import torch
from sweep import name_of
from torch.utils import _pytree

SAMPLES = 4


def swapped(t):
    """Dense, and neither row-major nor channels-last: the first two dims change places."""
    return t.transpose(0, 1).contiguous().transpose(0, 1) if t.dim() > 1 else t


LAYOUTS = {
    "channels last": lambda t, number: layouts.channels_last(t),
    "reversed": lambda t, number: layouts.reversed_dims(t),
    "swapped": lambda t, number: swapped(t),
    "first only": lambda t, number: layouts.channels_last(t) if number == 0 else t.contiguous(),
    "others only": lambda t, number: t.contiguous() if number == 0 else layouts.channels_last(t),
}


def may_differ(sample):
    """Is there a tensor that may lie in more than one order?"""
    tensors = [t for t in _pytree.tree_leaves(sample) if isinstance(t, torch.Tensor)]
    strided = all(t.layout is torch.strided for t in tensors)
    return strided and any(t.dim() > 1 and t.numel() > 1 for t in tensors)


def laid_out(value, layout):
    count = iter(range(1000))

    def change(leaf):
        if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided:
            return leaf
        return layout(leaf.detach(), next(count))

    return _pytree.tree_map(change, value)


def there(value):
    """Moved to the device, with the strides that it has."""

    def move(leaf):
        if isinstance(leaf, torch.Tensor):
            return torch.empty_like(leaf, device="opaque").copy_(leaf)
        return leaf if leaf != torch.device("cpu") else torch.device("opaque")

    return _pytree.tree_map(move, value)


def strides(tensor):
    if tensor.layout is not torch.strided or tensor.numel() < 2:
        return ()
    return tuple(
        (size, stride)
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        if size > 1
    )


def answer(op, sample):
    value, args, kwargs = sample
    torch.manual_seed(0)
    result = op(value, *args, **kwargs)
    return [strides(t) for t in _pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]


def differences(op, full):
    """(text) of each sample and layout whose results lie in another order."""
    torch.manual_seed(0)
    try:
        samples = list(op.sample_inputs("cpu", torch.float32))
    except Exception:
        return
    samples = [s for s in ((s.input, s.args, s.kwargs) for s in samples) if may_differ(s)]
    for number, sample in enumerate(samples if full else samples[-SAMPLES:]):
        for name, layout in LAYOUTS.items():
            try:
                given = laid_out(sample, layout)
                want = answer(op, given)
            except Exception:
                continue
            try:
                got = answer(op, there(given))
            except Exception as error:
                yield f"{number} {name}: {type(error).__name__}: {error}"
                continue
            if got != want:
                yield f"{number} {name}: {got} for {want}"


def sweep(names=None, full=False, note=lambda name, text: None) -> dict:
    """{entry: first difference}; `note` is told of each as it is found."""
    from torch.testing._internal.common_methods_invocations import op_db

    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in op_db:
            name = name_of(op)
            if names is not None and name not in names:
                continue
            for text in differences(op, full):
                found[name] = " ".join(text.split())[:300]
                note(name, found[name])
                break
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--only", nargs="*")
    options = parser.parse_args()
    sweep(options.only, options.full, lambda name, text: print(f"{name}: {text}", flush=True))


if __name__ == "__main__":
    sys.exit(main())
