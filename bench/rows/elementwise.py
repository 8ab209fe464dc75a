"""Maps: one op, a chain of eight, single functions. Small tensors show the cost of a call, large ones that of memory."""

import functools

import torch
import torch.nn.functional as F
from registry import row

KILO, MEGA = 1 << 10, 1 << 20


def chain(x, y):
    return torch.relu(torch.tanh(torch.sigmoid(x * y + x)) * y - x) + 1


def chain_jax(jax, x, y):
    return jax.nn.relu(jax.numpy.tanh(jax.nn.sigmoid(x * y + x)) * y - x) + 1


def pair(function, size):
    return function, (torch.randn(size), torch.randn(size))


for _name, _size, _add, _chain in (
    ("1k", KILO, None, None),
    ("64k", 64 * KILO, None, None),
    ("1M", MEGA, None, 3.0),
    ("16M", 16 * MEGA, None, 6.0),
    ("64M", 64 * MEGA, 2.0, None),
):
    if _name not in ("1M", "16M"):
        row(f"add_{_name}", floor=_add, bytes=12 * _size, jax=lambda jax, x, y: x + y)(
            functools.partial(pair, torch.add, _size)
        )
    if _name != "64M":
        row(f"chain_{_name}", floor=_chain, bytes=12 * _size, jax=chain_jax)(
            functools.partial(pair, chain, _size)
        )


FUNCTIONS = {
    "exp": (torch.exp, lambda jax, x: jax.numpy.exp(x)),
    "log": (torch.log, lambda jax, x: jax.numpy.log(x)),
    "tanh": (torch.tanh, lambda jax, x: jax.numpy.tanh(x)),
    "erf": (torch.erf, lambda jax, x: jax.scipy.special.erf(x)),
    "sigmoid": (torch.sigmoid, lambda jax, x: jax.nn.sigmoid(x)),
    "gelu": (F.gelu, lambda jax, x: jax.nn.gelu(x, approximate=False)),
    "gelu_tanh": (
        lambda x: F.gelu(x, approximate="tanh"),
        lambda jax, x: jax.nn.gelu(x, approximate=True),
    ),
    "pow": (lambda x: x**-1.5, lambda jax, x: x**-1.5),
    "sin": (torch.sin, lambda jax, x: jax.numpy.sin(x)),
}


def function_of_1M(name):
    x = torch.randn(MEGA)
    return FUNCTIONS[name][0], (x.abs() + 1e-3 if name in ("log", "pow") else x,)


for _name, (_, _jax) in FUNCTIONS.items():
    row(f"{_name}_1M", bytes=8 * MEGA, jax=_jax)(functools.partial(function_of_1M, _name))


@row(bytes=16 * MEGA, floor=1.0)
def tanh_f64_1M():
    return torch.tanh, (torch.randn(MEGA, dtype=torch.float64),)


@row(bytes=24 * MEGA, floor=1.0)
def chain_f64_1M():
    """What a kernel of a Gaussian process or the right-hand side of an equation is made of."""

    def function(x, y):
        return torch.exp(-0.5 * x * x) * torch.sin(y) + torch.sigmoid(x + y).log() * torch.tanh(y)

    return function, tuple(torch.randn(MEGA, dtype=torch.float64) for _ in range(2))


def small_ops_jax(jax, x, y):
    for _ in range(250):
        x = x * y + y
    return x


@row(bytes=12 * KILO, flops=500 * KILO, jax=small_ops_jax)
def small_ops_500():
    """250 multiplications and additions of 1,024 elements, each of which needs the one before."""

    def function(x, y):
        for _ in range(250):
            x = x * y + y
        return x

    return function, (torch.randn(KILO), torch.rand(KILO))
