"""tests/opdb/formats.py: results of elementwise operators lie in memory as on the CPU, whatever order their operands lie in.

With OPAQUE_TEST_FULL all samples, else the last few of each entry.
"""

import os
import sys
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "opdb"
sys.path.insert(0, str(FOLDER))

import formats  # noqa: E402

NAMES = [
    "rsub",
    "clamp",
    "div.floor_rounding",
    "div.trunc_rounding",
    "div.no_rounding_mode",
    "floor_divide",
    "remainder",
    "fmod",
    "where",
    "lerp",
    "addcmul",
    "addcdiv",
    "maximum",
    "minimum",
    "add",
    "sub",
    "mul",
    "pow",
    "nan_to_num",
    "logit",
    "masked_fill",
    "heaviside",
    "hypot",
    "copysign",
    "xlogy",
    "nn.functional.mse_loss",
    "nn.functional.huber_loss",
    "nn.functional.smooth_l1_loss",
    "nn.functional.dropout",
    "nn.functional.gelu",
    "nn.functional.logsigmoid",
    "nn.functional.hardtanh",
    "nn.functional.glu",
    "nn.functional.leaky_relu",
    "nn.functional.softplus",
    "nn.functional.elu",
    "nn.functional.threshold",
    "nn.functional.silu",
]


def test_elementwise_results_lie_as_on_the_cpu():
    found = formats.sweep(set(NAMES), bool(os.environ.get("OPAQUE_TEST_FULL")))
    assert not found, "\n".join(f"{name}: {text}" for name, text in found.items())


def test_images_of_each_layout():
    """What op_db's samples rarely have: four dims, one operand of another order, numbers, and operands that broadcast."""
    import torch
    import torch.nn.functional as F

    image = torch.rand(2, 3, 4, 5)
    last = image.to(memory_format=torch.channels_last)
    row, plain = torch.rand(5), torch.rand(2, 3, 4, 5)
    channel = torch.rand(3, 1, 1)
    programs = {
        "1 - x": lambda x, y: 1 - x,
        "rsub": lambda x, y: torch.rsub(x, y, alpha=2),
        "clamp": lambda x, y: x.clamp(min=y),
        "clamp both": lambda x, y: x.clamp(y, y + 1),
        "mse": lambda x, y: F.mse_loss(x, y.expand_as(x), reduction="none"),
        "huber": lambda x, y: F.huber_loss(x, y.expand_as(x), reduction="none"),
        "dropout": lambda x, y: F.dropout(x),
        "div": lambda x, y: torch.div(x, y, rounding_mode="floor"),
        "where": lambda x, y: torch.where(x > 0.5, x, y),
        "masked_fill": lambda x, y: x.masked_fill(y > 0.5, 0.0),
        "sliced": lambda x, y: 1 - x[:, :, 1:] * 2,
        "expanded": lambda x, y: torch.div(x[:1].expand_as(x), y, rounding_mode="trunc"),
        "gelu": lambda x, y: F.gelu(x[:, :, ::2]),
    }
    wrong = []
    for x in (image, last, image.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)):
        for y in (plain, plain.to(memory_format=torch.channels_last), row, channel):
            for name, program in programs.items():
                given = formats.there((x, y))
                got, want = formats.strides(program(*given)), formats.strides(program(x, y))
                if got != want:
                    wrong.append((name, x.stride(), y.stride(), got, want))
    assert not wrong, "\n".join(map(str, wrong))
