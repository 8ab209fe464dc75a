"""Rows of few elements, and what only moves elements."""

import torch
import torch.nn.functional as F
from registry import row


@row(
    floor=3.0,
    bytes=4 * 2048 * 2048,
    flops=8 * 2048 * 2048,
    jax=lambda jax, x: ((x[:, None] - x[None]) ** 2).sum(-1),
)
def squared_distances_2048x2048x3():
    return lambda x: ((x[:, None] - x[None]) ** 2).sum(-1), (torch.randn(2048, 3),)


@row(floor=1.0, bytes=20 << 20, jax=lambda jax, x: x.sum(-1))
def sum_rows_1M_x4():
    return lambda x: x.sum(-1), (torch.randn(1 << 20, 4),)


@row(floor=2.0, bytes=32 << 20, jax=lambda jax, x: jax.nn.softmax(x, -1))
def softmax_rows_512k_x8():
    return lambda x: torch.softmax(x, -1), (torch.randn(1 << 19, 8),)


@row(bytes=24 << 20, jax=lambda jax, x, y: x + y)
def add_3_to_rows_1M_x3():
    return torch.add, (torch.randn(1 << 20, 3), torch.randn(3))


@row(
    floor=1.0,
    bytes=8 * 8 * 3 * 224 * 224,
    jax=lambda jax, x: jax.numpy.transpose(x, (0, 2, 3, 1)) * 2,
)
def channels_last_8x3x224x224():
    return lambda x: x.permute(0, 2, 3, 1).contiguous() * 2, (torch.randn(8, 3, 224, 224),)


@row(floor=1.0, bytes=8 * 8 * 64 * 64 * 64)
def pixel_shuffle_8x64x64x64():
    return lambda x: F.pixel_shuffle(x, 2) + 1, (torch.randn(8, 64, 64, 64),)


@row(floor=1.0, bytes=8 << 20, jax=lambda jax, x: jax.numpy.flip(x, -1) + 1)
def flip_1024x1024():
    return lambda x: x.flip(-1) + 1, (torch.randn(1024, 1024),)
