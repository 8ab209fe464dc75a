"""module_db and optim_db, values and gradients (tests/opdb/modules.py). A few entries run always, all of them with --full."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "opdb"))

import layouts  # noqa: E402
import modules  # noqa: E402

FULL = bool(os.environ.get("OPAQUE_TEST_FULL"))
# The full sweep takes the better part of an hour.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(7200 if FULL else 600)]
QUICK = [
    *(
        "nn.BatchNorm2d",
        "nn.MultiLabelMarginLoss",
        "nn.LSTM",
        "nn.Conv2d",
        "nn.TransformerEncoderLayer",
    ),
    *("optim.Adam", "optim.SGD", "optim.RMSprop"),
]


def test_modules_and_optimizers():
    names = sorted(modules.entries()) if FULL else QUICK
    layouts.check(modules.__file__, names, FULL, {})
