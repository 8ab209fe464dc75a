"""Packed copies of weights: made of the right bytes, bounded, told, and dropped."""

import gc

import torch
import torch_opaque


def packed_bytes():
    return torch.opaque.memory_stats()["packed_bytes.all.current"]


def test_a_weight_read_as_another_dtype():
    """The packed copy of the f16 weight is no copy of the bf16 weight with the same bits."""
    x, w = torch.randn(64, 64), torch.randn(64, 64).half()
    device_w = w.opaque()
    half, narrow = x.half().opaque(), x.bfloat16().opaque()
    for _ in range(3):
        torch.testing.assert_close((half @ device_w).cpu(), x.half() @ w, atol=0.1, rtol=1e-2)
    assert packed_bytes() > 0
    expected = (x.bfloat16().float() @ w.view(torch.bfloat16).float()).bfloat16()
    for _ in range(3):
        torch.testing.assert_close(
            (narrow @ device_w.view(torch.bfloat16)).cpu(), expected, atol=1e-3, rtol=2e-2
        )


def test_views_of_a_weight_are_told_apart():
    w = torch.randn(4 * 128, 128)
    device_w, x = w.opaque(), torch.randn(8, 128)
    device_x = x.opaque()
    views = [
        lambda w: w[:128],
        lambda w: w[:128].t(),
        lambda w: w[1:129],
        lambda w: w[0:256:2],
        lambda w: w[:128, 1:97],
        lambda w: w.view(256, 256)[:128, :128],
        lambda w: w.flatten()[: 128 * 128].view(128, 128).t(),
    ]
    for _ in range(4):
        for view in views:
            torch.testing.assert_close(
                (device_x @ view(device_w)).cpu(), x @ view(w), atol=1e-4, rtol=1e-4
            )


def test_a_sliced_weight_does_not_multiply():
    w = torch.randn(256, 256).opaque()
    x = torch.randn(4, 64).opaque()
    gc.collect()
    torch.opaque.empty_cache()
    weight = w.numel() * w.element_size()
    before = torch.opaque.memory_allocated()
    assert packed_bytes() == 0
    for _ in range(3):
        for i in range(190):
            (x @ w[i : i + 64]).sum().item()
            assert packed_bytes() <= weight
    assert packed_bytes() > 0
    assert torch.opaque.memory_allocated() == before
    del w
    gc.collect()
    assert packed_bytes() == 0


def test_empty_cache_drops_packed_copies():
    w, x = torch.randn(256, 256).opaque(), torch.randn(4, 256).opaque()
    torch.opaque.empty_cache()
    first = (x @ w).cpu()
    for _ in range(3):
        torch.testing.assert_close((x @ w).cpu(), first, atol=0, rtol=0)
    assert packed_bytes() == torch_opaque.stats()["bytes_packed"] == w.numel() * 4
    torch.opaque.empty_cache()
    assert packed_bytes() == 0
    torch.testing.assert_close((x @ w).cpu(), first, atol=0, rtol=0)
