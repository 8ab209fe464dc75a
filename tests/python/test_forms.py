"""op_db in other dtypes, in place and into out= (tests/opdb/forms.py). A few entries run always, all of them with --full."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "opdb"))

import forms  # noqa: E402
import layouts  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(layouts.SECONDS)]
QUICK = [
    *("nn.functional.conv1d", "nn.functional.conv_transpose2d"),
    *("native_dropout_backward", "native_batch_norm", "nn.functional.batch_norm"),
]
# What cannot pass, with the reason.
CANCELS = "the gradient is the difference of two equal numbers; fused halves are not rounded where the CPU rounds them"
POLICY = "PyTorch accumulates in another dtype on devices that its table of (device type, dtype) does not name"
TIES = "the order of equal values is open without stable=True: here they keep theirs, in PyTorch it is as its algorithm has it"
IN_FULL = {  # samples that only --full draws
    **dict.fromkeys(("argsort", "kthvalue", "msort", "sort", "topk"), TIES),
    "nn.functional.soft_margin_loss": "an exponential is infinite in float16",
}
EXPECTED = {
    "as_strided.partial_views": layouts.WINDOW,
    "istft": "the CPU gives no gradient of a complex window",
    "masked.normalize": CANCELS,
    "nn.functional.linear_cross_entropy.chunked": POLICY,
    "nn.functional.linear_cross_entropy.chunked_none": POLICY,
    "nn.functional.normalize": CANCELS,
    **(IN_FULL if layouts.FULL else {}),
    "sparse.mm.reduce": layouts.COMPRESSED,
    "sparse.sampled_addmm": layouts.COMPRESSED,
}


def test_dtypes_and_forms():
    layouts.check(forms, sorted({*sorted(forms.entries())[::40], *QUICK}), EXPECTED)
