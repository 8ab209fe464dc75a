"""Products: square ones, those of a transformer's layers, and layers with what surrounds them."""

import functools

import torch
import torch.nn.functional as F
from registry import row
from torch import nn


def product(rows, inner, columns):
    return torch.mm, (torch.randn(rows, inner), torch.randn(inner, columns))


for _n in (16, 32, 64, 128, 256, 512, 1024):
    row(f"mm_{_n}", floor=0.9 if _n == 512 else None, flops=2 * _n**3, jax=lambda jax, x, y: x @ y)(
        functools.partial(product, _n, _n, _n)
    )


class Product(nn.Module):
    """x @ weight, where the weight is a constant."""

    def __init__(self, inner, columns):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inner, columns))

    def forward(self, x):
        return x @ self.weight


def product_by_constant(rows, inner, columns, dtype):
    return Product(inner, columns).to(dtype), (torch.randn(rows, inner, dtype=dtype),)


for _m, _k, _n in (
    (128, 768, 768),
    (128, 768, 3072),
    (128, 3072, 768),
    (8, 768, 768),
    (1, 768, 768),
):
    row(
        f"mm_{_m}x{_k}x{_n}",
        flops=2 * _m * _k * _n,
        bytes=4 * (_m * _k + _k * _n + _m * _n),
        jax=lambda jax, weights, x: x @ weights["weight"],
    )(functools.partial(product_by_constant, _m, _k, _n, torch.float32))

for _m, _k, _n in ((128, 768, 3072), (512, 512, 512), (1024, 1024, 1024), (8, 768, 768)):
    row(f"mm_bf16_{_m}x{_k}x{_n}", jax=lambda jax, weights, x: x @ weights["weight"])(
        functools.partial(product_by_constant, _m, _k, _n, torch.bfloat16)
    )


@row(jax=lambda jax, weights, x, y: x @ y)
def bmm_bf16_12x512x64x512():
    return torch.matmul, [
        torch.randn(12, *size, dtype=torch.bfloat16) for size in ((512, 64), (64, 512))
    ]


def linear_jax(weights, name, x):
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


@row(
    floor=1.0,
    flops=2 * 128 * 768 * 3072,
    jax=lambda jax, weights, x: jax.nn.gelu(linear_jax(weights, "0", x), approximate=False),
)
def linear_gelu_128x768x3072():
    return nn.Sequential(nn.Linear(768, 3072), nn.GELU()), (torch.randn(128, 768),)


class Mlp(nn.Module):
    """The half of a transformer's block that is not attention."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(768)
        self.up, self.down = nn.Linear(768, 3072), nn.Linear(3072, 768)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x)), approximate="tanh"))


def mlp_jax(jax, weights, x):
    from rows.reductions import layer_norm_jax

    y = layer_norm_jax(jax, x, weights["norm.weight"], weights["norm.bias"])
    return x + linear_jax(weights, "down", jax.nn.gelu(linear_jax(weights, "up", y)))


@row(flops=4 * 128 * 768 * 3072, jax=mlp_jax)
def mlp_block_128():
    return Mlp(), (torch.randn(128, 768),)


@row(jax=mlp_jax)
def mlp_block_bf16_128():
    return Mlp().to(torch.bfloat16), (torch.randn(128, 768, dtype=torch.bfloat16),)


# ---- quantized


def int_mm_exact(x, w):
    """oneDNN's, which eager calls, is not exact on AVX2 alone: sums of two products saturate in 16 bits."""
    return x.double() @ w.double().t()


def int_mm(rows, inner, columns):
    weight = torch.randint(-128, 128, (columns, inner), dtype=torch.int8)
    return lambda x, w: torch._int_mm(x, w.t()), (
        torch.randint(-128, 128, (rows, inner), dtype=torch.int8),
        weight,
    )


for _m, _k, _n in ((512, 512, 512), (32, 768, 3072)):
    row(f"int_mm_{_m}x{_k}x{_n}", flops=2 * _m * _k * _n, exact=int_mm_exact)(
        functools.partial(int_mm, _m, _k, _n)
    )


class ByteLinear(nn.Module):
    """A linear layer whose weight is int8, as torchao's weight-only quantization has it."""

    def __init__(self, inner, columns):
        super().__init__()
        self.register_buffer("weight", torch.randint(-128, 128, (columns, inner), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(columns) / 128)

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype)) * self.scales


for _m in (1, 16):
    row(f"linear_int8_{_m}x4096x11008", flops=2 * _m * 4096 * 11008, bytes=4096 * 11008)(
        lambda m=_m: (ByteLinear(4096, 11008), (torch.randn(m, 4096),))
    )
