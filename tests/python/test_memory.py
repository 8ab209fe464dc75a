"""Packed copies of weights: made of the right bytes, bounded, told, and dropped. Writes into parts: where the old value lies, if nobody keeps it."""

import gc

import pytest
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


def block(width):
    """What a transformer does for one token: rows with products before and behind them."""
    linear = torch.nn.Linear
    return torch.nn.Sequential(
        *(torch.nn.LayerNorm(width), linear(width, 4 * width), torch.nn.GELU()),
        *(linear(4 * width, width), torch.nn.LayerNorm(width), linear(width, width)),
    )


@pytest.mark.parametrize("rows", [1, 3, 300])
@pytest.mark.parametrize("captured", [False, True])
def test_weights_of_blocks_are_kept_packed(rows, captured):
    torch.opaque.empty_cache()
    model, x = block(128).to("opaque"), torch.randn(rows, 128).opaque()
    step = torch_opaque.capture(lambda x: model(x)) if captured else model
    with torch.no_grad():
        first = step(x).cpu()
        for _ in range(4):
            torch.testing.assert_close(step(x).cpu(), first, atol=0, rtol=0)
    assert packed_bytes() == sum(p.numel() for p in model.parameters() if p.dim() == 2) * 4


@pytest.mark.parametrize(
    ("columns", "shape"), [(1, (300,)), (1, (300, 1)), (2, (300, 2)), (7, (300, 7))]
)
def test_a_matrix_times_few_columns_is_kept_packed(columns, shape):
    torch.opaque.empty_cache()
    w, x = torch.randn(320, 300).opaque(), torch.randn(shape).opaque()
    first = torch.tanh(w @ x).cpu()
    for _ in range(3):
        torch.testing.assert_close(torch.tanh(w @ x).cpu(), first, atol=0, rtol=0)
    assert packed_bytes() == w.numel() * 4
    wanted = torch.tanh(w.cpu().double() @ x.cpu().double())
    torch.testing.assert_close(first.double(), wanted, atol=1e-4, rtol=1e-4)


def test_what_no_cache_holds_is_read_as_it_lies_by_one_row():
    torch.opaque.empty_cache()
    w, x = torch.randn(2100, 2100).opaque(), torch.randn(2, 2100).opaque()
    for _ in range(3):
        (x[:1] @ w.T).sum().item()
        (w @ x[0]).sum().item()
    assert packed_bytes() == 0
    for _ in range(3):
        (x @ w.T).sum().item()
    assert packed_bytes() > 0


def test_what_a_run_reads_again_is_packed_beside_more_than_a_cache_holds():
    torch.opaque.empty_cache()
    table, w = torch.randn(2100, 2100).opaque(), torch.randn(320, 320).opaque()
    x = torch.randn(320).opaque()
    (w @ torch.tanh(w @ x) + table.sum()).cpu()
    assert packed_bytes() == w.numel() * 4


# ---- writes into a part of what an earlier run made

SIDE = 300


def written(write, *, keep=None):
    """What `write` leaves of a matrix, the same on the CPU, and how much more than the matrix was allocated at most."""
    torch.manual_seed(0)
    want = torch.randn(SIDE, SIDE)
    got = (want.to("opaque") * 1).requires_grad_(False)
    kept = keep(got) if keep else None
    torch.opaque.synchronize()
    torch_opaque.reset_stats()
    before = torch_opaque.stats()["bytes_allocated"]
    write(got)
    torch.opaque.synchronize()
    more = torch_opaque.stats()["bytes_peak"] - before
    old = want.clone()
    write(want)
    if kept is not None:
        torch.testing.assert_close(kept.cpu(), keep(old))
    torch.testing.assert_close(got.cpu(), want)
    return more


def write_a_row(x):
    x[17] = 1


def add_to_a_column(x):
    x[:, 5] += 2


def write_thrice(x):
    x[5] = 1
    x[6] = 2
    x[7].mul_(3)


def write_every_other(x):
    x[::2, 1:9:3] = torch.arange(3.0, device=x.device)


def write_a_row_and_multiply(x):
    x[4] = x.new_ones(SIDE) * 2
    return x @ x.new_ones(SIDE, 1)


@pytest.mark.parametrize(
    "write",
    [write_a_row, add_to_a_column, write_thrice, write_every_other, write_a_row_and_multiply],
)
@pytest.mark.usefixtures("planned")
def test_a_part_is_written_where_it_lies(write):
    assert written(write) < SIDE * SIDE


def move_rows(x):
    x[1:] = x[:-1].clone()


def write_a_row_from_others(x):
    x[3] = x[4] + x[5]


def write_at_indices(x):
    x[torch.tensor([3, 8], device=x.device)] = 4.0


@pytest.mark.parametrize("write", [move_rows, write_a_row_from_others, write_at_indices])
def test_a_part_made_of_others_is_right(write):
    written(write)


@pytest.mark.parametrize("write", [write_a_row, add_to_a_column, write_thrice])
@pytest.mark.parametrize(
    "keep", [lambda x: x.clone(), lambda x: x * 1, lambda x: x.sum(0)], ids=str
)
def test_the_old_value_stays_for_who_keeps_it(write, keep):
    written(write, keep=keep)


def test_a_part_is_written_though_something_else_fails():
    x, table = torch.zeros(SIDE, SIDE).to("opaque"), torch.arange(4.0).to("opaque")
    bad = torch.tensor([9]).to("opaque")
    torch.opaque.synchronize()
    pending = x.sum(0)
    x[2] = 5
    lost = table[bad]
    wide = x @ x.T
    with pytest.raises(IndexError):
        torch.opaque.synchronize()
    assert x[2].tolist() == [5.0] * SIDE and x[1].sum().item() == 0
    assert pending.tolist() == [0.0] * SIDE and wide[2, 2].item() == 25.0 * SIDE
    with pytest.raises(IndexError):
        lost.cpu()
