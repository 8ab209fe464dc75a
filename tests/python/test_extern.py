"""Operators that run through the CPU kernel: what they are predicted to give, and what happens if that is wrong."""

import pytest
import torch
import torch_opaque
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "training"])
def test_a_norm_of_half_precision_with_float_parameters(dtype, training):
    """As autocast makes it. It is native, and its statistics have the CPU's type; in evaluation there are none."""

    def run(device):
        torch.manual_seed(0)
        norm = nn.BatchNorm2d(3).train(training)
        with torch.no_grad():
            for tensor in (norm.weight, norm.running_mean, norm.running_var):
                tensor.uniform_(0.5, 1.5)
        x = torch.randn(4, 3, 5, 5, dtype=dtype).to(device).requires_grad_()
        norm.to(device)
        parts = (norm.weight, norm.bias, norm.running_mean.clone(), norm.running_var.clone())
        results = torch.ops.aten.native_batch_norm(x, *parts, training, 0.1, 1e-5)
        norm(x).float().square().sum().backward()
        return [
            t.detach().cpu()
            for t in (*results, x.grad, norm.weight.grad, norm.bias.grad, *norm.buffers())
        ]

    with torch_opaque.strict():
        got = run("opaque")
    for mine, theirs in zip(got, run("cpu"), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)


def test_a_norm_of_nothing_in_evaluation():
    norm = nn.BatchNorm1d(3).eval().to("opaque")
    x = torch.empty(0, 3, device="opaque", requires_grad=True)
    norm(x).sum().backward()
    assert x.grad.shape == (0, 3) and norm.weight.grad.tolist() == [0, 0, 0]
