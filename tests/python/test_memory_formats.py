"""tests/opdb/formats.py: results of elementwise operators lie in memory as on the CPU, whatever order their operands lie in.

With OPAQUE_TEST_FULL all samples, else the last few of each entry.
"""

import itertools
import os
import random
import sys
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "opdb"
sys.path.insert(0, str(FOLDER))

import formats  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

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
    "ldexp",
    "float_power",
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


def test_columns_beside_rows_columns_and_numbers():
    """What lies in one dimension at any stride: values, dtypes and strides of the four operations."""
    generator = torch.Generator().manual_seed(0)
    parts = [
        lambda x: x[:, 1],
        lambda x: x[::2, 3],
        lambda x: x[1:2, 2],
        lambda x: x[:4, 0],
        lambda x: x[0],
        lambda x: x[0, 0],
        lambda x: x[:, :1],
        lambda x: x[0, :1].expand(6),
        lambda x: 3,
        lambda x: 2.5,
    ]
    dtypes = [torch.float32, torch.float64, torch.int64, torch.bool]
    values = [(torch.rand(6, 4, generator=generator) * 5 + 1).to(dtype) for dtype in dtypes]
    for left, right, op in itertools.product(
        values, values, (torch.add, torch.sub, torch.mul, torch.div)
    ):
        a, b = left.to("opaque"), right.to("opaque")
        for f, g in itertools.product(parts[:-2], parts):
            try:
                expected = op(f(left), g(right))
            except RuntimeError:
                with pytest.raises(RuntimeError):
                    op(f(a), g(b))
                continue
            result = op(f(a), g(b))
            assert result.dtype == expected.dtype and result.stride() == expected.stride()
            assert torch.equal(result.cpu(), expected)


def test_images_of_each_layout():
    """What op_db's samples rarely have: four dims, one operand of another order, numbers, and operands that broadcast."""
    image = torch.rand(2, 3, 4, 5)
    last = image.to(memory_format=torch.channels_last)
    row, plain = torch.rand(5), torch.rand(2, 3, 4, 5)
    channel = torch.rand(3, 1, 1)
    programs = {
        "1 - x": lambda x, y: 1 - x,
        "2 ** x": lambda x, y: 2**x + y,
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


def indexed(draw):
    """A tensor of any memory order, with dims of one element, what is to be sliced from it, and indices of some dims: transposed and broadcast
    ones, too."""
    sizes = [draw.randint(1, 4) for _ in range(draw.randint(1, 5))]
    order = draw.sample(range(len(sizes)), len(sizes))
    x = torch.randn([sizes[d] for d in order]).permute([order.index(d) for d in range(len(sizes))])
    if draw.random() < 0.3:
        x = x.unsqueeze(draw.randint(0, x.dim()))
    part = [slice(None, None, draw.choice([1, 2]) if draw.random() < 0.1 else 1) for _ in x.shape]
    sizes = x[tuple(part)].shape
    indices, shape = [None] * x.dim(), draw.choice([[3], [2, 2], [1, 3], [3, 1], [2, 1, 2]])
    for d in draw.sample(range(x.dim()), draw.randint(1, min(x.dim(), 3))):
        index = torch.randint(sizes[d], [1 if draw.random() < 0.3 else n for n in shape])
        indices[d] = index.t() if index.shape == (2, 2) and draw.random() < 0.5 else index
    return x, tuple(part), indices


def test_what_is_indexed_lies_as_on_the_cpu():
    draw = random.Random(6)
    torch.manual_seed(6)
    for _ in range(4000 if os.environ.get("OPAQUE_TEST_FULL") else 400):
        x, part, indices = indexed(draw)
        want = torch.ops.aten.index(x[part], indices)
        moved, there = formats.there((x, indices))
        got = torch.ops.aten.index(moved[part], there)
        what = [(tuple(t.shape), t.stride()) for t in (x[part], *indices) if t is not None]
        assert formats.strides(got) == formats.strides(want), what
        assert torch.equal(got.cpu(), want), what


def test_masks_of_images_of_each_layout():
    image = torch.rand(2, 3, 4, 5)
    for x in (image, image.to(memory_format=torch.channels_last)):
        for mask in (
            torch.tensor([True, False]),
            torch.rand(2, 3) > 0.5,
            torch.rand(2, 3, 4, 5) > 0.5,
        ):
            y, given = formats.there((x, mask))
            assert formats.strides(y[given]) == formats.strides(x[mask])
            assert formats.strides(y[mask]) == formats.strides(x[mask])
