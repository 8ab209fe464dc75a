"""tests/opdb/errors.py against tests/opdb/expected_errors.txt, which may only shrink. All entries with OPAQUE_TEST_FULL."""

import os
import sys
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "opdb"
sys.path.insert(0, str(FOLDER))

import errors  # noqa: E402

# What has its own kernels here, and the ops whose meta kernels let most pass.
LINES = (
    "add sub mul div.no_rounding_mode where masked_fill clamp complex addcmul polar",
    "index_select index_add index_copy index_fill gather scatter scatter_add",
    "scatter_reduce.sum take take_along_dim put masked_scatter masked_select bucketize",
    "searchsorted aminmax nn.functional.softshrink nn.functional.hardtanh cat stack mm addmm",
    "bmm baddbmm linalg.vecdot trapezoid kthvalue diff nn.functional.layer_norm",
    "nn.functional.embedding nn.functional.l1_loss bernoulli arange eye full linspace",
    "logspace multinomial normal.number_mean unfold nn.functional.conv2d",
    "nn.functional.max_pool2d nn.functional.avg_pool2d",
)
SAMPLED = {name for line in LINES for name in line.split()}


def expected() -> dict:
    """{(entry, number): reason}"""
    found = {}
    for line in (FOLDER / "expected_errors.txt").read_text().splitlines():
        if not line.startswith("#"):
            name, number, reason = line.split(" ", 2)
            found[name, int(number)] = reason
    return found


def test_wrong_arguments_raise_where_the_cpu_raises():
    full = os.environ.get("OPAQUE_TEST_FULL")
    found = errors.sweep(None if full else SAMPLED)
    listed = {key for key in expected() if full or key[0] in SAMPLED}
    unexpected = [f"{key}: {text}" for key, text in found.items() if key not in listed]
    assert not unexpected, "\n".join(unexpected)
    assert set(found) == listed, "better than listed"
