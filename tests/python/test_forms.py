"""op_db in other dtypes, in place and into out= (tests/opdb/forms.py). A few entries run always, all of them with --full."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "opdb"))

import forms  # noqa: E402
import layouts  # noqa: E402

FULL = bool(os.environ.get("OPAQUE_TEST_FULL"))
# The full sweep takes the better part of an hour.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(7200 if FULL else 600)]
QUICK = [
    *("nn.functional.conv1d", "nn.functional.conv_transpose2d"),
    *("native_dropout_backward", "native_batch_norm", "nn.functional.batch_norm"),
]
# What cannot pass, with the reason.
CANCELS = "the gradient is the difference of two equal numbers; fused halves are not rounded where the CPU rounds them"
POLICY = "PyTorch accumulates in another dtype on devices that its table of (device type, dtype) does not name"
TIES = "which of equal values comes first is open without stable=True: here the first one, in PyTorch as its algorithm has it"
BIAS = "a transposed convolution of a stride rounds its sums to a half before the bias is added"
IN_FULL = {  # samples that only --full draws
    **dict.fromkeys(("argsort", "kthvalue", "msort", "sort", "topk"), TIES),
    **dict.fromkeys(("nn.functional.conv_transpose1d", "nn.functional.conv_transpose3d"), BIAS),
    "nn.functional.soft_margin_loss": "an exponential is infinite in float16",
}
EXPECTED = {
    "as_strided.partial_views": "the sample is a window of a larger storage, which a copy to the device does not take along",
    "istft": "the CPU gives no gradient of a complex window",
    "masked.normalize": CANCELS,
    "nn.functional.linear_cross_entropy.chunked": POLICY,
    "nn.functional.linear_cross_entropy.chunked_none": POLICY,
    "nn.functional.normalize": CANCELS,
    **(IN_FULL if FULL else {}),
    "sparse.mm.reduce": "compressed sparse tensors do not live on the device",
    "sparse.sampled_addmm": "compressed sparse tensors do not live on the device",
}


def test_dtypes_and_forms():
    names = sorted(forms.entries())
    names = names if FULL else sorted({*names[::40], *QUICK})
    layouts.check(forms.__file__, names, FULL, EXPECTED)
