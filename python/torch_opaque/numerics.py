"""How far two CPU tensors are apart."""

import torch


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True if two dense CPU tensors agree in dtype, shape and every bit."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    # A lone element may keep a stride that view() refuses: copied into fresh rows.
    a, b = (torch.empty(x.numel(), dtype=x.dtype).copy_(x.reshape(-1)) for x in (a, b))
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def _gaps(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Absolute differences in f64; equal infinities and two NaN differ by 0."""
    equal = (a == b) | ((a != a) & (b != b))
    return torch.where(equal, torch.zeros((), dtype=torch.float64), (a - b).abs())


def _wide(t: torch.Tensor) -> torch.Tensor:
    return t.to(torch.complex128 if t.is_complex() else torch.float64)


def _largest(t: torch.Tensor) -> float:
    return t.max().item() if t.numel() else 0.0


def max_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest absolute difference of two CPU tensors of one shape; NaN where one side alone is NaN."""
    return _largest(_gaps(_wide(a), _wide(b))) if a.shape == b.shape else float("inf")


def distances(a: torch.Tensor, b: torch.Tensor) -> tuple:
    """(largest absolute difference; that relative to the largest finite number of b; largest difference in ulps, which are those of
    a's dtype at the larger of the two numbers, None for complex numbers)."""
    if a.shape != b.shape:
        return float("inf"), float("inf"), None
    x, y = _wide(a), _wide(b)
    gaps = _gaps(x, y)
    absolute = _largest(gaps)
    scale = _largest(torch.where(y.abs().isfinite(), y.abs(), 0.0))
    relative = absolute / scale if absolute and scale else absolute
    if a.is_complex():
        return absolute, relative, None
    if not a.is_floating_point():
        return absolute, relative, absolute
    limits = torch.finfo(a.dtype)
    exponents = torch.frexp(torch.maximum(x.abs(), y.abs()))[1].to(torch.float64) - 1
    ulps = (limits.eps * torch.exp2(exponents)).clamp(min=limits.smallest_normal * limits.eps)
    return absolute, relative, _largest(gaps / ulps)
