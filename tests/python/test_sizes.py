"""Numbers that a user gives and that no machine has room for: refused where they are written, in a moment, with PyTorch's type."""

import time

import pytest
import torch
import torch.nn.functional as F

D = "opaque"
BIG = 10**15
HUGE = 1 << 62
SECONDS = 2.0  # of the processor; what is refused takes milliseconds, what is not takes minutes or all memory


def x(*shape, d):
    return torch.ones(*shape, device=d)


ROWS = {
    "interpolate": lambda d: F.interpolate(x(1, 1, 4, 4, d=d), scale_factor=1e18),
    "interpolate 1d": lambda d: F.interpolate(x(1, 1, 4, d=d), scale_factor=1e15),
    "interpolate to a size": lambda d: F.interpolate(x(1, 1, 4, d=d), BIG),
    "interpolate to a prime": lambda d: F.interpolate(x(1, 1, 4, d=d), BIG + 37),
    "interpolate exactly": lambda d: F.interpolate(x(1, 1, 4, d=d), BIG, mode="nearest-exact"),
    "interpolate linearly": lambda d: F.interpolate(x(1, 1, 4, d=d), BIG, mode="linear"),
    "interpolate bilinearly": lambda d: F.interpolate(
        x(1, 1, 4, 4, d=d), scale_factor=1e12, mode="bilinear"
    ),
    "interpolate trilinearly": lambda d: F.interpolate(
        x(1, 1, 4, 4, 4, d=d), (1 << 20, 1 << 20, 1 << 20), mode="trilinear"
    ),
    "interpolate bicubically": lambda d: F.interpolate(
        x(1, 1, 4, 4, d=d), (BIG, 2), mode="bicubic"
    ),
    "interpolate by area": lambda d: F.interpolate(x(1, 1, 4, 4, d=d), (BIG, 3), mode="area"),
    "interpolate by inf": lambda d: F.interpolate(x(1, 1, 4, d=d), scale_factor=float("inf")),
    "adaptive_avg_pool1d": lambda d: F.adaptive_avg_pool1d(x(1, 1, 4, d=d), BIG),
    "adaptive_avg_pool2d": lambda d: F.adaptive_avg_pool2d(x(1, 1, 4, 4, d=d), (BIG, 3)),
    "adaptive_max_pool2d": lambda d: F.adaptive_max_pool2d(x(1, 1, 4, 4, d=d), (BIG, 3)),
    "adaptive_max_pool3d": lambda d: F.adaptive_max_pool3d(x(1, 1, 4, 4, 4, d=d), BIG),
    "max_pool2d kernel": lambda d: F.max_pool2d(x(1, 1, 4, 4, d=d), BIG),
    "max_pool2d padding": lambda d: F.max_pool2d(x(1, 1, 4, 4, d=d), 2, padding=BIG),
    "avg_pool2d kernel": lambda d: F.avg_pool2d(x(1, 1, 4, 4, d=d), BIG),
    "avg_pool2d padding": lambda d: F.avg_pool2d(x(1, 1, 4, 4, d=d), BIG, padding=BIG // 2),
    "lp_pool2d": lambda d: F.lp_pool2d(x(1, 1, 4, 4, d=d), 2, BIG),
    "max_pool dilation": lambda d: F.max_pool2d(x(1, 1, 4, 4, d=d), 2, dilation=HUGE),
    "max_unpool2d": lambda d: F.max_unpool2d(
        x(1, 1, 2, 2, d=d), torch.zeros(1, 1, 2, 2, dtype=torch.long, device=d), BIG
    ),
    "conv1d padding": lambda d: F.conv1d(x(1, 1, 4, d=d), x(1, 1, 3, d=d), padding=BIG),
    "conv2d padding": lambda d: F.conv2d(x(1, 1, 4, 4, d=d), x(1, 1, 3, 3, d=d), padding=BIG),
    "conv_transpose stride": lambda d: F.conv_transpose2d(
        x(1, 1, 4, 4, d=d), x(1, 1, 3, 3, d=d), stride=BIG
    ),
    "conv_transpose1d stride": lambda d: F.conv_transpose1d(
        x(1, 1, 4, d=d), x(1, 1, 3, d=d), stride=BIG
    ),
    "unfold": lambda d: F.unfold(x(1, 1, 4, 4, d=d), 2, padding=BIG),
    "fold": lambda d: F.fold(x(1, 4, 9, d=d), BIG, 2),
    "unfold of a tensor": lambda d: x(4, d=d).unfold(0, BIG, 1),
    "pad": lambda d: F.pad(x(4, d=d), (BIG, BIG)),
    "pad huge": lambda d: F.pad(x(4, d=d), (HUGE, HUGE)),
    "pad reflect": lambda d: F.pad(x(1, 1, 4, d=d), (BIG, 1), mode="reflect"),
    "pad replicate": lambda d: F.pad(x(1, 1, 4, d=d), (BIG, 1), mode="replicate"),
    "pad circular": lambda d: F.pad(x(1, 1, 4, d=d), (BIG, 1), mode="circular"),
    "arange": lambda d: torch.arange(BIG, device=d),
    "arange step": lambda d: torch.arange(0, 1, 1e-16, device=d),
    "range": lambda d: torch.range(0, 1e15, device=d),
    "linspace": lambda d: torch.linspace(0, 1, BIG, device=d),
    "logspace": lambda d: torch.logspace(0, 1, BIG, device=d),
    "eye": lambda d: torch.eye(1 << 31, device=d),
    "tril_indices": lambda d: torch.tril_indices(1 << 30, 1 << 30, device=d),
    "triu_indices": lambda d: torch.triu_indices(1 << 30, 1 << 30, device=d),
    "full": lambda d: torch.full((1 << 30, 1 << 30), 1.0, device=d),
    "ones": lambda d: torch.ones(1 << 40, 1 << 40, device=d),
    "zeros": lambda d: torch.zeros(BIG, device=d),
    "empty": lambda d: torch.empty(1 << 62, device=d),
    "rand": lambda d: torch.rand(BIG, device=d),
    "randint": lambda d: torch.randint(5, (BIG,), device=d),
    "randperm": lambda d: torch.randperm(BIG, device=d),
    "bernoulli of many": lambda d: torch.full((BIG,), 0.5, device=d).bernoulli(),
    "hann_window": lambda d: torch.hann_window(BIG, device=d),
    "kaiser_window": lambda d: torch.kaiser_window(BIG, device=d),
    "one_hot": lambda d: F.one_hot(torch.tensor([1], device=d), BIG),
    "repeat": lambda d: x(4, d=d).repeat(BIG),
    "repeat of many": lambda d: x(4, d=d).repeat(1 << 31, 1 << 31),
    "tile": lambda d: torch.tile(x(4, d=d), (BIG,)),
    "repeat_interleave": lambda d: x(4, d=d).repeat_interleave(BIG),
    "expand, copied": lambda d: x(1, d=d).expand(1 << 30, 1 << 30).contiguous(),
    "expand, computed": lambda d: x(1, d=d).expand(1 << 30, 1 << 30) + 1,
    "expand, scanned": lambda d: x(1, d=d).expand(1 << 30, 1 << 30).cumsum(1),
    "expand, scanned twice": lambda d: x(1, d=d).expand(1 << 30, 1 << 30).cumsum(1).cumsum(0).sum(),
    "outer": lambda d: torch.outer(x(1, d=d).expand(1 << 30), x(1, d=d).expand(1 << 30)),
    "matmul": lambda d: x(1, 1, d=d).expand(1 << 30, 1) @ x(1, 1, d=d).expand(1, 1 << 30),
    "kron": lambda d: torch.kron(x(1, d=d).expand(1 << 30), x(1, d=d).expand(1 << 30)),
    "meshgrid": lambda d: torch.meshgrid(*[x(1, d=d).expand(1 << 30)] * 2, indexing="ij")[
        0
    ].contiguous(),
    "cartesian_prod": lambda d: torch.cartesian_prod(*[torch.arange(1 << 10, device=d)] * 6),
    "combinations": lambda d: torch.combinations(torch.arange(100, device=d), 9),
    "block_diag": lambda d: torch.block_diag(*[x(1, 1, d=d).expand(1 << 30, 1 << 30)] * 2),
    "diag_embed": lambda d: torch.diag_embed(x(1, d=d).expand(1 << 30)),
    "diag": lambda d: torch.diag(x(4, d=d), 1 << 32),
    "vander": lambda d: torch.vander(x(4, d=d), BIG),
    "bincount": lambda d: torch.bincount(torch.tensor([1], device=d), minlength=BIG),
    "histc": lambda d: torch.histc(x(4, d=d), BIG),
    "new_zeros": lambda d: x(4, d=d).new_zeros(BIG),
    "fft": lambda d: torch.fft.fft(x(4, d=d), BIG),
    "stft": lambda d: torch.stft(x(4, d=d), BIG, return_complex=True),
    "topk": lambda d: torch.topk(x(4, d=d), BIG),
    "unflatten": lambda d: x(4, d=d).unflatten(0, (BIG, -1)),
    "split": lambda d: torch.tensor_split(x(4, d=d), BIG),
    "pixel_shuffle": lambda d: F.pixel_shuffle(x(1, 4, 2, 2, d=d), HUGE),
    "multinomial": lambda d: torch.multinomial(x(4, d=d), BIG, replacement=True),
    "embedding_bag": lambda d: F.embedding(
        torch.zeros(1, dtype=torch.long, device=d).expand(1 << 40), x(4, 1 << 10, d=d)
    ),
    "index": lambda d: x(4, 1 << 10, d=d)[
        torch.zeros(1, dtype=torch.long, device=d).expand(1 << 40)
    ],
    "gather": lambda d: x(4, d=d).gather(
        0, torch.zeros(1, dtype=torch.long, device=d).expand(1 << 47)
    ),
    "resize_": lambda d: x(4, d=d).resize_(BIG),
    "grid_sample": lambda d: F.affine_grid(x(1, 2, 3, d=d), (1, 1, 1 << 24, 1 << 24)),
    "dropout": lambda d: F.dropout(x(1, d=d).expand(1 << 30, 1 << 30)),
    "softmax": lambda d: x(1, d=d).expand(1 << 30, 1 << 30).softmax(1),
    "cat": lambda d: torch.cat([x(1, 1, d=d).expand(1 << 30, 1 << 29)] * 2),
    "stack": lambda d: torch.stack([x(1, 1, d=d).expand(1 << 30, 1 << 28)] * 4),
}


def outcome(f, d):
    start = time.process_time()
    try:
        f(d)
        error = None
    except Exception as raised:
        error = raised
    return error, time.process_time() - start


@pytest.mark.parametrize("name", ROWS)
def test_refused_in_a_moment(name):
    want, _ = outcome(ROWS[name], "cpu")
    assert want is not None, "the CPU can"
    got, seconds = outcome(ROWS[name], D)
    assert got is not None, f"recorded; the CPU says {type(want)} {want}"
    assert isinstance(got, type(want)), f"{type(got)} {got} for {type(want)} {want}"
    assert seconds < SECONDS


def test_large_tables_are_left_to_the_cpu_kernels():
    for size in ((1 << 22) + 3, 1 << 23):
        row = torch.rand(1, 1, 5)
        for mode in ("nearest", "nearest-exact", "linear"):
            assert torch.equal(
                F.interpolate(row.to(D), size, mode=mode).cpu(), F.interpolate(row, size, mode=mode)
            )
