"""Python numbers as operands and parameters, beyond the range of the dtype too: values, dtypes and errors are the CPU's."""

import itertools
import warnings

import pytest
import torch

D = "opaque"
DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]
NUMBERS = [
    *(True, False, 0, 1, -1, 3, 5, 128, 255, 256, 300, -129, -300, 70000, 2**31, 2**40, -(2**63)),
    *(0.0, -0.0, 0.5, 2.7, -1.5, 1e-8, 300.5, 65504.0, 7e4, 1e40, -1e40),
    *(float("inf"), float("-inf"), float("nan"), 2 + 1j),
]


def assigned(x, number):
    x = x.clone()
    x[1:3] = number
    return x


BINARY = {
    "add": lambda x, n: x + n,
    "radd": lambda x, n: n + x,
    "sub": lambda x, n: x - n,
    "rsub": lambda x, n: n - x,
    "mul": lambda x, n: x * n,
    "div": lambda x, n: x / n,
    "rdiv": lambda x, n: n / x,
    "pow": lambda x, n: x**n,
    "rpow": lambda x, n: n**x,
    "and": lambda x, n: x & n,
    "or": lambda x, n: x | n,
    "xor": lambda x, n: x ^ n,
    "shift": lambda x, n: x << (n if isinstance(n, int) and 0 <= n < 7 else 1),
    "eq": lambda x, n: x == n,
    "ne": lambda x, n: x != n,
    "lt": lambda x, n: x < n,
    "le": lambda x, n: x <= n,
    "gt": lambda x, n: x > n,
    "ge": lambda x, n: x >= n,
    "logical_and": lambda x, n: torch.logical_and(x, torch.tensor(n, device=x.device)),
    "0-d tensor": lambda x, n: x + torch.tensor(n, device=x.device),
    "0-d product": lambda x, n: x * torch.tensor(n, device=x.device),
    "maximum": lambda x, n: torch.maximum(x, torch.tensor(n, device=x.device)),
    "clamp": lambda x, n: x.clamp(n, 5),
    "clamp above": lambda x, n: x.clamp(-1, n),
    "clamp_min": lambda x, n: x.clamp_min(n),
    "clamp_max": lambda x, n: x.clamp_max(n),
    "clip_": lambda x, n: x.clone().clip_(n),
    "where": lambda x, n: torch.where(x == x, x, n),
    "where number": lambda x, n: torch.where(x != x, n, x),
    "masked_fill": lambda x, n: x.masked_fill(x == x, n),
    "fill_": lambda x, n: x.clone().fill_(n),
    "full": lambda x, n: torch.full((2,), n, dtype=x.dtype, device=x.device),
    "full_like": lambda x, n: torch.full_like(x, n),
    "new_full": lambda x, n: x.new_full((2,), n),
    "setitem": assigned,
    "add alpha": lambda x, n: torch.add(x, x, alpha=n),
    "sub alpha": lambda x, n: torch.sub(x, x, alpha=n),
    "addcmul": lambda x, n: torch.addcmul(x, x, x, value=n),
    "addcdiv": lambda x, n: torch.addcdiv(x, x, x + 1, value=n),
    "lerp": lambda x, n: torch.lerp(x, x * 2, n),
    "threshold": lambda x, n: torch.threshold(x, n, 1),
    "threshold value": lambda x, n: torch.threshold(x, 1, n),
    "hardtanh": lambda x, n: torch.nn.functional.hardtanh(x, n, 5),
    "leaky_relu": lambda x, n: torch.nn.functional.leaky_relu(x, n),
    "add_": lambda x, n: x.clone().add_(n),
    "mul_": lambda x, n: x.clone().mul_(n),
    "div_": lambda x, n: x.clone().div_(n),
    "sub_": lambda x, n: x.clone().sub_(n),
    "pow_": lambda x, n: x.clone().pow_(n),
    "eq_": lambda x, n: x.clone().eq_(n),
    "add out": lambda x, n: torch.add(x, n, out=torch.empty_like(x)),
    "mul out": lambda x, n: torch.mul(x, n, out=torch.empty_like(x)),
    "gt out": lambda x, n: torch.gt(x, n, out=torch.empty_like(x, dtype=torch.bool)),
}
# Division by zero is decided by values, and its error comes when they are read.
NONZERO = {
    "floor": lambda x, n: x // n,
    "remainder": lambda x, n: x % n,
    "fmod": lambda x, n: torch.fmod(x, n),
    "div trunc": lambda x, n: torch.div(x, n, rounding_mode="trunc"),
}


def operand(dtype):
    return torch.tensor([0, 1, 2, 3, 5, 100]).to(dtype)


def outcome(f, x, number):
    """The result on the CPU, or the type of the exception and how its text begins."""
    try:
        result = f(x, number)
        return x.cpu() if result is None else result.cpu()
    except Exception as error:
        return type(error).__name__, str(error).splitlines()[0]


def equal(got, want):
    if not isinstance(got, torch.Tensor) or not isinstance(want, torch.Tensor):
        return got == want
    if got.dtype != want.dtype or got.shape != want.shape:
        return False
    if got.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64):
        tolerance = 4 * torch.finfo(want.dtype).eps
        return torch.allclose(got, want, rtol=tolerance, atol=0, equal_nan=True)
    return got.tolist() == want.tolist()


@pytest.mark.parametrize("name", [*BINARY, *NONZERO])
def test_numbers_are_taken_as_the_cpu_takes_them(name):
    f = BINARY.get(name) or NONZERO[name]
    wrong = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for dtype, number in itertools.product(DTYPES, NUMBERS):
            if name in NONZERO and (number == 0 or number is False):
                continue
            want, got = outcome(f, operand(dtype), number), outcome(f, operand(dtype).to(D), number)
            if not equal(got, want):
                wrong.append(f"{dtype} {number!r}: {got}, the CPU gives {want}")
    assert not wrong, f"{len(wrong)} differ:\n" + "\n".join(wrong[:40])


def test_numbers_beyond_int64():
    def run(device):
        x = torch.tensor([1.0, 2.0], dtype=torch.float64, device=device)
        return [
            t.tolist()
            for t in (x.clamp(min=2**64 - 1), x + (2**64 - 1), torch.add(x, x, alpha=2**63))
        ]

    assert run("opaque") == run("cpu")
