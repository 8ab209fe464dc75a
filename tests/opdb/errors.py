"""PyTorch's own samples of wrong arguments (OpInfo.error_inputs): each must raise at the call what it raises on the CPU.

    errors.py [--only NAME ...]

Prints a line per sample that does not: entry, number of the sample, what came instead.
"""

import argparse
import os
import sys
import warnings

os.environ.setdefault("OPAQUE_FALLBACK_WARN", "0")

import torch
from torch.utils import _pytree


def moved(value):
    """On the device, with tensors that share memory sharing it there."""
    flat, done = {}, {}

    def move(leaf):
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in done:
            done[id(leaf)] = there(leaf)
        return done[id(leaf)]

    def there(leaf):
        if leaf.layout is not torch.strided or leaf.is_quantized:
            return leaf.to("opaque")
        key = leaf.untyped_storage().data_ptr(), leaf.dtype
        if key not in flat:
            count = leaf.untyped_storage().nbytes() // leaf.itemsize
            flat[key] = leaf.detach().as_strided((count,), (1,), 0).to("opaque")
        window = flat[key].as_strided(leaf.shape, leaf.stride(), leaf.storage_offset())
        return window.requires_grad_(leaf.requires_grad)

    return _pytree.tree_map(move, value)


def name_of(op) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def raised(op, sample):
    """The exception of the call itself; None: it came back."""
    try:
        op(sample.input, *sample.args, **sample.kwargs)
    except Exception as error:
        return error
    return None


def differences(op):
    """(number, text) of the samples that raise something else than on the CPU, or nothing, or only when they are read."""
    try:
        samples = list(op.error_inputs("cpu"))
    except Exception:
        return
    for number, case in enumerate(samples):
        sample = case.sample_input
        try:
            inputs = moved((sample.input, sample.args, sample.kwargs))
        except Exception:
            continue  # a layout or device that cannot be moved
        want = raised(op, sample)
        if want is None:
            continue
        sample.input, sample.args, sample.kwargs = inputs
        got = raised(op, sample)
        if type(got) is not type(want):
            yield number, f"{type(got).__name__}: {got} instead of {type(want).__name__}: {want}"


def sweep(names=None) -> dict:
    """{(entry, number): text}"""
    from torch.testing._internal.common_methods_invocations import op_db

    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in op_db:
            if names is None or name_of(op) in names:
                for number, text in differences(op):
                    found[name_of(op), number] = " ".join(text.split())[:300]
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*")
    for (name, number), text in sweep(parser.parse_args().only).items():
        print(f"{name} {number}: {text}")


if __name__ == "__main__":
    sys.exit(main())
