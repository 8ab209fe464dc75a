"""Single layers on images of [1, 64, 56, 56] and the like; `last` is channels-last."""

import functools
import math

import torch
import torch.nn.functional as F
from registry import row


@row(flops=2 * 64 * 64 * 9 * 56 * 56)
def conv_3x3_relu_64x56x56():
    function = lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1))  # noqa: E731
    return function, (torch.randn(1, 64, 56, 56), torch.randn(64, 64, 3, 3), torch.randn(64))


def conv_3x3(shape, dtype):
    x, w = torch.randn(shape, dtype=dtype), torch.randn(shape[1], shape[1], 3, 3, dtype=dtype)
    return lambda x, w: F.conv2d(x, w, padding=1), (x, w)


for _name, _dtype, _shape in (
    ("conv_3x3", torch.float32, (8, 16, 32, 32)),
    ("conv_3x3_bf16", torch.bfloat16, (1, 64, 56, 56)),
    ("conv_3x3_bf16", torch.bfloat16, (1, 128, 28, 28)),
    ("conv_3x3_bf16", torch.bfloat16, (4, 32, 32, 32)),
):
    row(f"{_name}_{'x'.join(map(str, _shape))}", flops=18 * math.prod(_shape) * _shape[1])(
        functools.partial(conv_3x3, _shape, _dtype)
    )


@row(kind="steps", flops=2 * 2 * 32 * 16 * 32 * 9 * 32 * 32)
def conv_3x3_gradients_32x16x32x32():
    def start(compiled, x, w, grad):
        leaves = [x.requires_grad_(), w.requires_grad_()]
        convolve = compiled(lambda: F.conv2d(*leaves, padding=1))
        return lambda: torch.autograd.grad(convolve(), leaves, grad)

    return start, (
        torch.randn(32, 16, 32, 32),
        torch.randn(32, 16, 3, 3),
        torch.randn(32, 32, 32, 32),
    )


def weight_gradients(batch, rows, columns, size, taps):
    """Of a convolution: sums of batch * size * size terms."""
    extra = [[1, 1], [taps // 2] * 2, [1, 1], False, [0, 0], 1, [False, True, False]]
    backward = torch.ops.aten.convolution_backward
    return lambda grad, x, w: backward(grad, x, w, None, *extra)[1], (
        torch.randn(batch, rows, size, size),
        torch.randn(batch, columns, size, size),
        torch.randn(rows, columns, taps, taps),
    )


for _taps, _shape in ((1, (16, 96, 24, 32)), (1, (4, 256, 64, 56)), (3, (16, 32, 3, 32))):
    row(
        f"conv_{_taps}x{_taps}_weights_{'x'.join(map(str, _shape))}",
        flops=2 * math.prod(_shape) * _shape[3] * _taps**2,
    )(functools.partial(weight_gradients, *_shape, _taps))


@row(bytes=8 * 3 * 224 * 224, flops=2 * 3 * 25 * 224 * 224)
def blur_5x5_3x224x224():
    return lambda x, w: F.conv2d(x, w, padding=2, groups=3), (
        torch.randn(1, 3, 224, 224),
        torch.randn(3, 1, 5, 5),
    )


@row(bytes=8 * 96 * 56 * 56, flops=2 * 96 * 9 * 56 * 56)
def depthwise_3x3_96x56x56():
    return lambda x, w: F.conv2d(x, w, padding=1, groups=96), (
        torch.randn(1, 96, 56, 56),
        torch.randn(96, 1, 3, 3),
    )


def depthwise_by_2(size):
    return lambda x, w: F.conv2d(x, w, stride=2, padding=size // 2, groups=96), (
        torch.randn(8, 96, 112, 112),
        torch.randn(96, 1, size, size),
    )


for _size in (3, 5):
    row(f"depthwise_{_size}x{_size}_8x96x112x112_by_2", bytes=20 * 8 * 96 * 56 * 56)(
        functools.partial(depthwise_by_2, _size)
    )


SHORT_ROWS = {
    "slice": (lambda x: x[:, :, 1:-1, 1:-1] * 2, 2.0),
    "flip": (lambda x: x.flip(-1), 2.0),
    "sum": (lambda x: x.sum(-1), 1.0),
    "layer_norm": (lambda x: F.layer_norm(x, (28,)), 2.0),
    "max_pool_2": (lambda x: F.max_pool2d(x, 2), 1.25),
    "avg_pool_2": (lambda x: F.avg_pool2d(x, 2), 1.25),
}
for _name, (_function, _moved) in SHORT_ROWS.items():
    row(f"{_name}_16x512x28x28", bytes=4 * _moved * 16 * 512 * 28 * 28)(
        lambda function=_function: (function, (torch.randn(16, 512, 28, 28),))
    )


@row(bytes=5 * 64 * 56 * 56)
def max_pool_3_by_2_64x56x56():
    return lambda x: F.max_pool2d(x, 3, 2, 1), (torch.randn(1, 64, 56, 56),)


@row(bytes=4 * 64 * (4 * 56 * 56 + 12 * 28 * 28))
def max_pool_3_by_2_gradients_4x64x56x56():
    x = torch.randn(4, 64, 56, 56)
    y, places = F.max_pool2d(x, 3, 2, 1, return_indices=True)
    window = [[n, n] for n in (3, 2, 1, 1)]
    backward = torch.ops.aten.max_pool2d_with_indices_backward
    return lambda *of: backward(of[0], of[1], *window, False, of[2]), (
        torch.randn_like(y),
        x,
        places,
    )


@row(bytes=2.5 * 16 * 32 * 32 * 32)
def max_pool_2_bf16_16x32x32x32():
    return lambda x: F.max_pool2d(x, 2), (torch.randn(16, 32, 32, 32, dtype=torch.bfloat16),)


@row(bytes=5 * 64 * 56 * 56)
def avg_pool_2_64x56x56():
    return lambda x: F.avg_pool2d(x, 2), (torch.randn(1, 64, 56, 56),)


def doubled(batch, layout):
    x = torch.randn(batch, 64, 56, 56).contiguous(memory_format=layout)
    return lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (x,)


for _batch in (1, 8):
    for _layout, _suffix in ((torch.contiguous_format, ""), (torch.channels_last, "_last")):
        row(
            f"bilinear_{'8x' if _batch == 8 else ''}64x56x56{_suffix}",
            floor=None if _suffix else 1.5,
            bytes=20 * _batch * 64 * 56 * 56,
        )(functools.partial(doubled, _batch, _layout))


def depthwise_weights(shape, taps, stride, layout):
    """The gradient of a depthwise convolution's weights."""
    x = torch.randn(shape).contiguous(memory_format=layout)
    w = torch.randn(shape[1], 1, taps, taps)
    g = F.conv2d(x, w, stride=stride, padding=taps // 2, groups=shape[1])
    rest = ([stride] * 2, [taps // 2] * 2, [1, 1], False, [0, 0], shape[1], [False, True, False])
    return lambda g, x, w: torch.ops.aten.convolution_backward(g, x, w, None, *rest)[1], (g, x, w)


for _shape, _taps, _stride in (
    ((8, 64, 32, 32), 3, 1),
    ((4, 96, 112, 112), 3, 2),
    ((8, 192, 28, 28), 7, 1),
    ((8, 384, 14, 14), 3, 1),
):
    for _layout, _suffix in ((torch.contiguous_format, ""), (torch.channels_last, "_last")):
        _elements = _shape[0] * _shape[1] * _shape[2] * _shape[3]
        row(
            f"depthwise_weights_{_taps}x{_taps}_{'x'.join(map(str, _shape))}{_suffix}",
            floor=1.0,
            bytes=4 * (_elements + _elements // _stride**2),
            flops=2 * _elements // _stride**2 * _taps**2,
        )(functools.partial(depthwise_weights, _shape, _taps, _stride, _layout))
