"""module_db and optim_db, values and gradients (tests/opdb/modules.py). A few entries run always, all of them with --full."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "opdb"))

import layouts  # noqa: E402
import modules  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(layouts.SECONDS)]
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
    layouts.check(modules, QUICK, {})
