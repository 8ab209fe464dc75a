"""Times rows against eager CPU, interleaved in one process: ratios hold where absolute times drift.

    ./dev bench [--threads N] [--seconds S] [ROW ...]

Each row is a function of tensors. It runs once on each device before timing; its values are compared; then eager and opaque take
turns and the minimum and the median are shown. On opaque a call ends with torch.opaque.synchronize(): what is lazy has run.
"""

import argparse
import statistics
import sys
import time

import torch
import torch.nn.functional as F

ROWS = {}


def row(floor):
    """Registers a row: a function that makes its arguments and returns (function, arguments)."""

    def register(make):
        ROWS[make.__name__] = (make, floor)
        return make

    return register


def chain(x, y):
    return torch.relu(torch.tanh(torch.sigmoid(x * y + x)) * y - x) + 1


def softmax(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


@row(3.0)
def chain_1M():
    return chain, [torch.randn(1 << 20), torch.randn(1 << 20)]


@row(6.0)
def chain_16M():
    return chain, [torch.randn(1 << 24), torch.randn(1 << 24)]


@row(2.0)
def add_64M():
    return torch.add, [torch.randn(1 << 26), torch.randn(1 << 26)]


@row(3.0)
def softmax_composed_1024x4096():
    return softmax, [torch.randn(1024, 4096)]


@row(1.3)
def layer_norm_4096x4096():
    weight, bias = torch.randn(4096), torch.randn(4096)
    return lambda x, w, b: F.layer_norm(x, (4096,), w, b), [torch.randn(4096, 4096), weight, bias]


@row(0.9)
def mm_512():
    return torch.mm, [torch.randn(512, 512), torch.randn(512, 512)]


@row(1.0)
def linear_gelu_128x768x3072():
    return lambda x, w, b: F.gelu(F.linear(x, w, b)), [
        torch.randn(128, 768),
        torch.randn(3072, 768),
        torch.randn(3072),
    ]


@row(None)
def sum_all_4096x4096():
    return torch.sum, [torch.randn(4096, 4096)]


@row(None)
def sum_columns_4096x4096():
    return lambda x: x.sum(0), [torch.randn(4096, 4096)]


@row(None)
def argmax_rows_4096x4096():
    return lambda x: x.argmax(-1), [torch.randn(4096, 4096)]


@row(None)
def attention_12x128x64():
    shape = (1, 12, 128, 64)
    return F.scaled_dot_product_attention, [
        torch.randn(shape),
        torch.randn(shape),
        torch.randn(shape),
    ]


def time_once(function, arguments, synchronize):
    start = time.perf_counter()
    result = function(*arguments)
    if synchronize:
        torch.opaque.synchronize()
    del result
    return time.perf_counter() - start


def measure(make, seconds):
    """Minimum and median seconds of eager and of opaque, and the largest difference of their values."""
    function, arguments = make()
    moved = [a.to("opaque") for a in arguments]
    difference = (
        (function(*moved).cpu().double() - function(*arguments).double()).abs().max().item()
    )
    for _ in range(2):
        time_once(function, moved, True)
    eager, opaque = [], []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(eager) < 5:
        eager.append(time_once(function, arguments, False))
        opaque.append(time_once(function, moved, True))
    return eager, opaque, difference


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", choices=[[], *ROWS], help="rows to run, default all")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="per row")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{'row':30} {'eager us':>20} {'opaque us':>20} {'ratio':>7} {'floor':>6}  difference")
    below = 0
    for name in options.rows or ROWS:
        make, floor = ROWS[name]
        with torch.no_grad():
            eager, opaque, difference = measure(make, options.seconds)
        ratio = statistics.median(eager) / statistics.median(opaque)
        below += floor is not None and ratio < floor
        cells = [f"{min(t) * 1e6:.0f} ({statistics.median(t) * 1e6:.0f})" for t in (eager, opaque)]
        print(
            f"{name:30} {cells[0]:>20} {cells[1]:>20} {ratio:6.2f}x {floor or '-':>6}  {difference:.1e}",
            flush=True,
        )
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main())
