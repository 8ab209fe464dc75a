"""Gradients of op_db's samples in other layouts (tests/opdb/layouts.py), and of layers. A few entries run always, all of them with --full."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "opdb"))

import layouts  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(layouts.SECONDS)]
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
EXPECTED = {
    "resize_": "what is left depends on how it lies in memory (test_tensor.py compares it with the CPU's)",
    "sparse.mm.reduce": layouts.COMPRESSED,
    "sparse.sampled_addmm": layouts.COMPRESSED,
    "to_sparse": "the result is sparse, which this comparison does not take; test_sparse.py has it",
    "as_strided.partial_views": layouts.WINDOW,
}


def test_layouts():
    layouts.check(layouts, QUICK, EXPECTED)
