"""Sums and their like over rows, columns and all; scans; softmax, cross entropy and norms, composed of primitives and PyTorch's own."""

import functools
import math

import torch
import torch.nn.functional as F
from registry import row

SIDE = 4096
SQUARE = 4 * SIDE * SIDE  # bytes


def square(function, *more):
    return function, (torch.randn(SIDE, SIDE), *more)


for _name, _function, _jax, _options in (
    # The sum of normal numbers is small beside what is summed.
    ("sum_all", torch.sum, lambda jax, x: x.sum(), {"tolerance": 1e-4}),
    ("sum_columns", lambda x: x.sum(0), lambda jax, x: x.sum(0), {}),
    ("mean_rows", lambda x: x.mean(-1), lambda jax, x: x.mean(-1), {}),
    ("var_rows", lambda x: x.var(-1), lambda jax, x: x.var(-1, ddof=1), {}),
    ("argmax_rows", lambda x: x.argmax(-1), lambda jax, x: x.argmax(-1), {}),
):
    row(f"{_name}_4096x4096", bytes=SQUARE, jax=_jax, **_options)(
        functools.partial(square, _function)
    )

# What a network sums over a batch: gradients of biases, norms over the batch; in cache and not.
for _name, _function, _jax, _shape in (
    ("sum", lambda x: x.sum(0), lambda jax, x: x.sum(0), (1024, 1024)),
    ("sum", lambda x: x.sum(0), lambda jax, x: x.sum(0), (4096, 768)),
    ("var", lambda x: x.var(0), lambda jax, x: x.var(0, ddof=1), (1024, 1024)),
):
    row(f"{_name}_columns_{_shape[0]}x{_shape[1]}", bytes=4 * math.prod(_shape), jax=_jax)(
        lambda function=_function, shape=_shape: (function, (torch.randn(shape),))
    )

for _name, _function, _shapes in (
    ("transposed_4096x4096", lambda x, y: (x * y.T).sum(), [(SIDE, SIDE)] * 2),
    ("transposed_1000x777", lambda x, y: (x * y.T).sum(), [(1000, 777), (777, 1000)]),
    ("row_4096x4096", lambda x, y: (x * y).sum(), [(SIDE, SIDE), (SIDE,)]),
    ("row_2048x2048x3", lambda x, y: (x * y).sum(), [(2048, 2048, 3), (3,)]),
    ("outer_4096x4096", lambda x, y: (x[:, None] * y).sum(), [(SIDE,)] * 2),
):
    row(
        f"sum_of_product_{_name}",
        bytes=sum(4 * math.prod(shape) for shape in _shapes),
        tolerance=1e-3,  # as of sum_all
        jax=lambda jax, x, y, function=_function: function(x, y),
    )(lambda function=_function, shapes=_shapes: (function, tuple(map(torch.randn, shapes))))


@row(bytes=2 * 4 * 64**3, tolerance=1e-3)
def sum_of_product_permuted_64x64x64():
    return lambda x, y: (x.permute(2, 0, 1) * y).sum(), (
        torch.randn(64, 64, 64),
        torch.randn(64, 64, 64),
    )


for _name, _function, _jax in (
    ("cumsum_rows", lambda x: torch.cumsum(x, 1), lambda jax, x: jax.numpy.cumsum(x, 1)),
    ("cumsum_columns", lambda x: torch.cumsum(x, 0), lambda jax, x: jax.numpy.cumsum(x, 0)),
):
    row(f"{_name}_4096x4096", floor=1.5, bytes=2 * SQUARE, jax=_jax)(
        functools.partial(square, _function)
    )


@row(bytes=2 * SQUARE)
def cummax_rows_4096x4096():
    return square(lambda x: torch.cummax(x, 1).values)


# ---- softmax and cross entropy


def softmax(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def softmax_jax(jax, x):
    e = jax.numpy.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def of_shape(function, *shape):
    return function, (torch.randn(shape),)


for _name, _shape, _floor in (
    ("1024x4096", (1024, 4096), 3.0),
    ("12x128x128", (12, 128, 128), None),
):
    _bytes = 8 * functools.reduce(int.__mul__, _shape)
    row(f"softmax_composed_{_name}", floor=_floor, bytes=_bytes, jax=softmax_jax)(
        functools.partial(of_shape, softmax, *_shape)
    )
    row(f"softmax_{_name}", bytes=_bytes, jax=lambda jax, x: jax.nn.softmax(x, -1))(
        functools.partial(of_shape, lambda x: torch.softmax(x, -1), *_shape)
    )


def xent(x, target):
    x = x - x.amax(-1, keepdim=True)
    losses = torch.log(torch.exp(x).sum(-1)) - x.gather(1, target[:, None])[:, 0]
    return losses.mean()


def xent_jax(jax, x, target):
    x = x - x.max(-1, keepdims=True)
    picked = jax.numpy.take_along_axis(x, target[:, None], 1)[:, 0]
    return (jax.numpy.log(jax.numpy.exp(x).sum(-1)) - picked).mean()


def classes(function):
    return function, (torch.randn(1024, 4096), torch.randint(0, 4096, (1024,)))


row("xent_composed_1024x4096", bytes=1 << 24, jax=xent_jax)(functools.partial(classes, xent))
row("xent_1024x4096", bytes=1 << 24, jax=xent_jax)(functools.partial(classes, F.cross_entropy))


# ---- norms


def layer_norm_composed(x, weight, bias):
    centred = x - x.mean(-1, keepdim=True)
    variance = (centred * centred).mean(-1, keepdim=True)
    return centred * torch.rsqrt(variance + 1e-5) * weight + bias


def layer_norm_jax(jax, x, weight, bias):
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred * centred).mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + 1e-5) * weight + bias


def layer_norm(x, weight, bias):
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


def rms_norm_composed(x, weight, bias):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * weight + bias


def rms_norm_jax(jax, x, weight, bias):
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight + bias


def normalised(function, rows, columns):
    return function, (torch.randn(rows, columns), torch.randn(columns), torch.randn(columns))


for _rows, _columns in ((512, 768), (SIDE, SIDE)):
    for _name, _function, _jax in (
        ("layer_norm_composed", layer_norm_composed, layer_norm_jax),
        ("layer_norm", layer_norm, layer_norm_jax),
        ("rms_norm_composed", rms_norm_composed, rms_norm_jax),
    ):
        row(
            f"{_name}_{_rows}x{_columns}",
            floor=1.3 if _name == "layer_norm" and _rows == SIDE else None,
            bytes=8 * _rows * _columns,
            jax=_jax,
        )(functools.partial(normalised, _function, _rows, _columns))
