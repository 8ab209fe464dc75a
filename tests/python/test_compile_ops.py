"""PyTorch's operator samples (op_db, float32) under torch.compile(backend="opaque"), on tensors of the CPU: values, strides and gradients are
eager's, at the first call and by plan."""

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

BLOCK, SAMPLES, TOLERANCE = 20, 2, 2e-3
ENTRIES = [op for op in op_db if torch.float32 in op.supported_dtypes("cpu")]
# Its values are random, or are not defined: shapes and dtypes are compared.
UNDEFINED = (
    "bernoulli",
    "cauchy",
    "dropout",
    "empty",
    "exponential",
    "fractional_max_pool",
    "geometric",
    "log_normal",
    "multinomial",
    "normal",
    "rand",
    "rrelu",
    "uniform",
)


def samples(op) -> list:
    torch.manual_seed(0)
    found = []
    for sample in op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd):
        found.append(((sample.input, *sample.args), sample.kwargs))
        if len(found) == SAMPLES:
            break
    return found


def copies(given):
    def copy(x):
        return x.detach().clone().requires_grad_(x.requires_grad) if is_tensor(x) else x

    return tree_map(copy, given)


def is_tensor(x) -> bool:
    return isinstance(x, torch.Tensor) and x.layout == torch.strided


def results(fn, given) -> list:
    """What it gives, then the gradients of all tensors among its arguments."""
    torch.manual_seed(1)
    values = [x for x in tree_leaves(fn(*given)) if is_tensor(x)]
    outputs = [x for x in values if x.requires_grad]
    inputs = [x for x in tree_leaves(given) if is_tensor(x) and x.requires_grad]
    if not outputs or not inputs:
        return values
    half = [torch.full_like(x, 0.5) for x in outputs]
    return values + list(torch.autograd.grad(outputs, inputs, half, allow_unused=True))


def strides(x) -> list:
    return [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1]


def same(name, got, wanted) -> None:
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted, strict=True):
        if b is None:
            assert a is None
        elif any(word in name for word in UNDEFINED):
            assert a.shape == b.shape and a.dtype == b.dtype
        else:
            torch.testing.assert_close(a, b, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
            assert b.numel() < 2 or b.grad_fn is None or strides(a) == strides(b)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("first", range(0, len(ENTRIES), BLOCK))
def test_operators(first):
    wrong = []
    for op in ENTRIES[first : first + BLOCK]:
        for number, given in enumerate(samples(op)):
            torch._dynamo.reset()
            fn = torch.compile(lambda args, kw, op=op: op.op(*args, **kw), backend="opaque")
            try:
                wanted = results(lambda args, kw, op=op: op.op(*args, **kw), copies(given))
            except Exception:  # an operator that cannot, in eager mode either
                continue
            try:
                for _ in range(2):
                    same(op.name, results(fn, copies(given)), wanted)
            except Exception as error:
                wrong.append(f"{op.name} {op.variant_test_name}, sample {number}: {error}")
                break
    torch._dynamo.reset()
    assert not wrong, "\n".join(wrong)
