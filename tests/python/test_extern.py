"""Operators that run through the CPU kernel: what they are predicted to give, and what happens if that is wrong."""

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_loss_without_reduction_of_one_sample():
    x, target = torch.randn(4), torch.tensor([3, 0, -1, 1])
    loss = nn.MultiLabelMarginLoss(reduction="none")
    here = x.clone().requires_grad_()
    there = x.to("opaque").requires_grad_()
    want, got = loss(here, target), loss(there, target.to("opaque"))
    assert got.shape == want.shape == torch.Size([])
    torch.testing.assert_close(got.detach().cpu(), want.detach())
    want.backward(), got.backward()
    torch.testing.assert_close(there.grad.cpu(), here.grad)


def test_a_wrong_prediction_is_an_error_once():
    """An operator whose meta kernel promises another shape than the CPU kernel gives: an error where it is read, never a wrong
    shape, and right from the second call on."""
    with torch.library._scoped_library("opaquetest", "DEF") as library:
        library.define("total(Tensor x) -> Tensor")
        library.impl("total", lambda x: x.sum(), "CPU")
        library.impl("total", lambda x: x.new_empty(1), "Meta")
        x = torch.ones(3, device="opaque")
        with pytest.raises(
            RuntimeError,
            match=r"gave Float\[\] where the meta kernel of opaquetest::total promised Float\[1\]",
        ):
            torch.ops.opaquetest.total(x).cpu()
        for size in (3, 5):
            result = torch.ops.opaquetest.total(torch.ones(size, device="opaque"))
            assert result.shape == () and result.item() == size
