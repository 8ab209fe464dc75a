"""Gradients of op_db's samples in other layouts (tests/opdb/layouts.py), and of layers. A few entries run always, all of them with --full."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "opdb"))

import layouts  # noqa: E402

FULL = bool(os.environ.get("OPAQUE_TEST_FULL"))
# The full sweep takes the better part of an hour.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(7200 if FULL else 600)]
# One of each kind of layer.
QUICK = [
    *(
        "case.batch_norm.4d.eval",
        "case.batch_norm.4d.training",
        "case.group_norm.4d",
        "case.layer_norm.3d",
    ),
    *(
        "case.conv.2d",
        "case.conv.depthwise.2d",
        "case.max_pool.2d",
        "case.linear.3d",
        "case.bmm",
        "case.patches",
    ),
    *(
        "case.attention",
        "case.softmax.4d",
        "case.cross_entropy.mean.3d",
        "case.cat.4d",
        "case.write.4d",
    ),
]
COMPRESSED = "compressed sparse tensors do not live on the device"
EXPECTED = {
    "resize_": "what is left depends on how it lies in memory (test_tensor.py compares it with the CPU's)",
    "sparse.mm.reduce": COMPRESSED,
    "sparse.sampled_addmm": COMPRESSED,
    "to_sparse": "the result is sparse, which this comparison does not take; test_sparse.py has it",
    "as_strided.partial_views": "the sample is a window of a larger storage, which a copy to the device does not take along",
}


def test_layouts():
    names = sorted(layouts.entries()) if FULL else QUICK
    layouts.check(layouts.__file__, names, FULL, EXPECTED)
