"""Attention of 12 heads of 64: composed of primitives, and PyTorch's own; causal by an added mask and by the flag."""

import functools
import math

import torch
import torch.nn.functional as F
from registry import row

HEADS, WIDTH = 12, 64


def composed(q, k, v, mask=None):
    scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH)
    return torch.softmax(scores if mask is None else scores + mask, -1) @ v


def composed_jax(jax, q, k, v, mask=None):
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(WIDTH)
    return jax.nn.softmax(scores if mask is None else scores + mask, -1) @ v


def causal_jax(jax, q, k, v):
    mask = jax.numpy.triu(jax.numpy.full(q.shape[-2:-1] * 2, -math.inf), 1)
    return composed_jax(jax, q, k, v, mask)


def causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def heads(function, length, masked=False, dtype=torch.float32):
    arguments = [torch.randn(1, HEADS, length, WIDTH, dtype=dtype) for _ in range(3)]
    if masked:
        arguments.append(torch.full((length, length), -math.inf).triu(1))
    return function, arguments


def gradients(function):
    """start(compiled, q, k, v, grad) for a row of kind steps: forward, and the gradients of all three."""

    def start(compiled, q, k, v, grad):
        leaves = [x.requires_grad_() for x in (q, k, v)]
        attend = compiled(lambda: function(*leaves))
        return lambda: torch.autograd.grad(attend(), leaves, grad)

    return start


def gradients_jax(function):
    def start(jax, q, k, v, grad):
        step = jax.jit(lambda *x: jax.vjp(lambda *x: function(jax, *x), *x[:3])[1](x[3]))
        return lambda: step(q, k, v, grad)

    return start


def with_gradients(function, length):
    return gradients(function), [torch.randn(1, HEADS, length, WIDTH) for _ in range(4)]


for _length in (128, 512, 1024):
    for _name, _function, _half, _jax in (
        ("attention_gradients", F.scaled_dot_product_attention, False, composed_jax),
        ("attention_causal_gradients", causal, True, causal_jax),
    ):
        row(
            f"{_name}_12x{_length}x64",
            kind="steps",
            flops=(7 if _half else 14) * HEADS * _length * _length * WIDTH,
            jax=gradients_jax(_jax),
        )(functools.partial(with_gradients, _function, _length))
    for _name, _function, _masked, _half, _jax in (
        ("attention_composed", composed, False, False, composed_jax),
        ("attention_composed_causal", composed, True, True, composed_jax),
        ("attention", F.scaled_dot_product_attention, False, False, composed_jax),
        ("attention_causal", causal, False, True, causal_jax),
    ):
        row(
            f"{_name}_12x{_length}x64",
            flops=(2 if _half else 4) * HEADS * _length * _length * WIDTH,
            jax=_jax,
        )(functools.partial(heads, _function, _length, _masked))
    for _name, _function in (
        ("attention_bf16", F.scaled_dot_product_attention),
        ("attention_causal_bf16", causal),
    ):
        row(f"{_name}_12x{_length}x64")(
            functools.partial(heads, _function, _length, False, torch.bfloat16)
        )
