"""Times rows against eager CPU, interleaved in one process: ratios hold where absolute times drift.

    ./dev bench [--threads N] [--seconds S] [ROW ...]

Each row is a function of tensors. It runs once on each device before timing; its values are compared; then eager and opaque take
turns and the minimum and the median are shown. On opaque a call ends with torch.opaque.synchronize(): what is lazy has run.

With OPAQUE_CPU=avx2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 in the environment the rows are those of a processor without
AVX-512. Function rows (exp_1M to sin_1M) are mostly arithmetic and show the difference.

Rows called plan_... are programs that run in other shapes each time: in kernels that there are, by a plan that has to be made. What
is shown is how long that took.
"""

import argparse
import statistics
import sys
import time

import torch
import torch.nn.functional as F
import torch_opaque

ROWS = {}
PLANS = {}


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


FUNCTIONS = {
    "exp": torch.exp,
    "log": torch.log,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "sin": torch.sin,
}


def function_row(name):
    def make():
        x = torch.randn(1 << 20)
        return FUNCTIONS[name], [x.abs() + 1e-3 if name == "log" else x]

    return make


ROWS.update({name + "_1M": (function_row(name), None) for name in FUNCTIONS})


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


@row(1.5)
def cumsum_rows_4096x4096():
    return lambda x: torch.cumsum(x, 1), [torch.randn(4096, 4096)]


@row(1.5)
def cumsum_columns_4096x4096():
    return lambda x: torch.cumsum(x, 0), [torch.randn(4096, 4096)]


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


# ---- short axes


@row(3.0)
def squared_distances_2048x2048x3():
    points = torch.randn(2048, 3)
    return lambda x: ((x[:, None] - x[None]) ** 2).sum(-1), (points,)


@row(1.0)
def sum_rows_1M_x4():
    return lambda x: x.sum(-1), (torch.randn(1 << 20, 4),)


@row(2.0)
def softmax_rows_512k_x8():
    return lambda x: torch.softmax(x, -1), (torch.randn(1 << 19, 8),)


@row(None)
def add_3_to_rows_1M_x3():
    return torch.add, (torch.randn(1 << 20, 3), torch.randn(3))


@row(1.0)
def channels_last_8x3x224x224():
    return lambda x: x.permute(0, 2, 3, 1).contiguous() * 2, (torch.randn(8, 3, 224, 224),)


@row(1.0)
def pixel_shuffle_8x64x64x64():
    return lambda x: F.pixel_shuffle(x, 2) + 1, (torch.randn(8, 64, 64, 64),)


@row(1.0)
def flip_1024x1024():
    return lambda x: x.flip(-1) + 1, (torch.randn(1024, 1024),)


# ---- images: [1, 64, 56, 56] and the like; `last` is channels-last


@row(None)
def conv_3x3_relu_64x56x56():
    function = lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1))  # noqa: E731
    return function, (torch.randn(1, 64, 56, 56), torch.randn(64, 64, 3, 3), torch.randn(64))


@row(None)
def depthwise_3x3_96x56x56():
    return lambda x, w: F.conv2d(x, w, padding=1, groups=96), (
        torch.randn(1, 96, 56, 56),
        torch.randn(96, 1, 3, 3),
    )


@row(None)
def max_pool_3_by_2_64x56x56():
    return lambda x: F.max_pool2d(x, 3, 2, 1), (torch.randn(1, 64, 56, 56),)


@row(None)
def avg_pool_2_64x56x56():
    return lambda x: F.avg_pool2d(x, 2), (torch.randn(1, 64, 56, 56),)


def doubled(x):
    return F.interpolate(x, scale_factor=2, mode="bilinear")


@row(1.5)
def bilinear_64x56x56():
    return doubled, (torch.randn(1, 64, 56, 56),)


@row(1.5)
def bilinear_8x64x56x56():
    return doubled, (torch.randn(8, 64, 56, 56),)


@row(None)
def bilinear_64x56x56_last():
    return doubled, (torch.randn(1, 64, 56, 56).contiguous(memory_format=torch.channels_last),)


@row(None)
def bilinear_8x64x56x56_last():
    return doubled, (torch.randn(8, 64, 56, 56).contiguous(memory_format=torch.channels_last),)


@row(None)
def attention_12x128x64():
    shape = (1, 12, 128, 64)
    return F.scaled_dot_product_attention, [
        torch.randn(shape),
        torch.randn(shape),
        torch.randn(shape),
    ]


# ---- planning


# ---- steps over lists of tensors, in place: of the same form on both devices

SHAPES = {"1000x1k": [(1024,)] * 1000, "25M": [(5120, 1024)] * 4 + [(4096, 1024)]}
FORMS = {"for": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


def step_row(step_of, shapes):
    """A row: `step_of` parameters with gradients is made once for each device."""

    def make():
        tensors = [torch.randn(shape) for shape in shapes for _ in range(2)]
        steps = {}

        def run(*tensors):
            parameters = tensors[::2]
            device = parameters[0].device
            if device not in steps:
                for parameter, gradient in zip(parameters, tensors[1::2], strict=True):
                    parameter.requires_grad_().grad = gradient
                steps[device] = step_of(parameters)
            steps[device]()
            return parameters[0]

        return run, tensors

    return make


def optimizer_row(optimizer, form, shapes, **options):
    return step_row(lambda ps: optimizer(ps, **options, **FORMS[form]).step, SHAPES[shapes])


def ema_step(parameters):
    averages = [p.detach().clone() for p in parameters]
    return lambda: torch._foreach_lerp_(averages, parameters, 0.01)


def clip_step(parameters):
    return lambda: torch.nn.utils.clip_grad_norm_(parameters, 1.0)


OPTIMIZER_FLOORS = {
    ("adam", "for", "25M"): 2.0,
    ("adam", "foreach", "25M"): 1.5,
    ("adam", "foreach", "1000x1k"): 1.1,
    ("sgd", "for", "25M"): 1.2,
    ("sgd", "foreach", "25M"): 1.2,
}
for _name, _optimizer, _options in (
    ("adam", torch.optim.Adam, {}),
    ("sgd", torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
):
    for _shapes in SHAPES:
        for _form in FORMS:
            ROWS[f"{_name}_{_shapes}_{_form}"] = (
                optimizer_row(_optimizer, _form, _shapes, **_options),
                OPTIMIZER_FLOORS.get((_name, _form, _shapes)),
            )
ROWS["ema_1000x1k"] = (step_row(ema_step, SHAPES["1000x1k"]), None)
ROWS["clip_1000x1k"] = (step_row(clip_step, SHAPES["1000x1k"]), None)


def plan(ceiling):
    """Registers a row: a function that makes a program, which is called with 0, 1, ... and runs in other shapes each time."""

    def register(make):
        PLANS["plan_" + make.__name__] = (make, ceiling)
        return make

    return register


@plan(1.0)
def gpt_24_layers():
    """A training step."""
    width, words, length = 256, 64, 16
    layer = torch.nn.TransformerEncoderLayer(
        width, 8, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    model = torch.nn.Sequential(
        torch.nn.Embedding(words, width),
        torch.nn.TransformerEncoder(layer, 24, enable_nested_tensor=False),
        torch.nn.LayerNorm(width),
        torch.nn.Linear(width, words),
    ).to("opaque")
    optimizer = torch.optim.AdamW(model.parameters())

    def step(i):
        text = torch.randint(0, words, (2 + i, length)).to("opaque")
        loss = F.cross_entropy(model(text).flatten(0, 1), text.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@plan(1.5)
def matmuls_8000():
    def chain_of(i):
        x = w = torch.eye(8 + i, device="opaque")
        for _ in range(8000):
            x = x @ w
        return x

    return chain_of


def rows_of_one(i):
    return torch.ones(16000, 4 + i).to("opaque").split(1)


@plan(1.5)
def slices_added_16000():
    return lambda i: sum(rows_of_one(i))


@plan(1.5)
def slices_held_16000():
    return lambda i: [part.clone() for part in rows_of_one(i)]


@plan(1.5)
def shrinking_15000():
    def shrink(i):
        x = torch.ones(15001 + i).to("opaque")
        for _ in range(15000):
            x = x[1:].clone()
        return x

    return shrink


def adam_1000(foreach):
    def step(i):
        parameters = [torch.ones(4 + k % 7, 3 + i).to("opaque") for k in range(1000)]
        for parameter in parameters:
            parameter.grad = parameter.detach()
        torch.optim.Adam(parameters, foreach=foreach).step()
        return parameters

    return step


@plan(1.5)
def adam_1000_for():
    return adam_1000(False)


@plan(1.5)
def adam_1000_foreach():
    return adam_1000(True)


def planning_seconds(make):
    """The least of three plans, after runs whose kernels may be new."""
    run, seconds = make(), []
    for i in range(6):
        before = torch_opaque.stats()
        kept = run(i)
        torch.opaque.synchronize()
        del kept
        after = torch_opaque.stats()
        if after["kernels_compiled"] == before["kernels_compiled"]:
            seconds.append(after["compile_seconds"] - before["compile_seconds"])
    return min(seconds[-3:], default=float("inf"))


# ---- running


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


def run_rows(names, seconds):
    """Prints their table; gives the number of rows below their floor."""
    print(f"{'row':30} {'eager us':>20} {'opaque us':>20} {'ratio':>7} {'floor':>6}  difference")
    below = 0
    for name in names:
        make, floor = ROWS[name]
        with torch.no_grad():
            eager, opaque, difference = measure(make, seconds)
        ratio = statistics.median(eager) / statistics.median(opaque)
        below += floor is not None and ratio < floor
        cells = [f"{min(t) * 1e6:.0f} ({statistics.median(t) * 1e6:.0f})" for t in (eager, opaque)]
        print(
            f"{name:30} {cells[0]:>20} {cells[1]:>20} {ratio:6.2f}x {floor or '-':>6}  {difference:.1e}",
            flush=True,
        )
    return below


def run_plans(names):
    """Prints their table; gives the number of rows above their ceiling."""
    print(f"{'row':30} {'planned in s':>20} {'ceiling':>7}")
    above = 0
    for name in names:
        make, ceiling = PLANS[name]
        seconds = planning_seconds(make)
        above += seconds > ceiling
        print(f"{name:30} {seconds:20.3f} {ceiling:7}", flush=True)
    return above


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    choices = [*ROWS, *PLANS]
    parser.add_argument("rows", nargs="*", choices=[[], *choices], help="rows to run, default all")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="per row")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    names = options.rows or choices
    rows, plans = ([n for n in names if n in table] for table in (ROWS, PLANS))
    failed = run_rows(rows, options.seconds) if rows else 0
    failed += run_plans(plans) if plans else 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
