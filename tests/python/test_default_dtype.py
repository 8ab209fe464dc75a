"""PyTorch's default floating type: results of integers and Python numbers follow it, as on the CPU."""

import pytest
import torch


@pytest.fixture
def double_default():
    """Makes float64 the default type for one test."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    "source", [torch.uint8, torch.int64, torch.bool, torch.float16, torch.float32]
)
def test_numbers_follow_the_default_type(double_default, source):
    host = torch.tensor([0, 1, 1]).to(source)
    device = host.to("opaque")
    for program in (
        lambda x: x + 1.1,
        lambda x: 1.1 * x,
        lambda x: x * 1.1,
        lambda x: x / 3,
        lambda x: x.sin(),
        lambda x: torch.maximum(x, torch.tensor(0.3, dtype=torch.float16, device=x.device)),
        lambda x: x.clone().to(torch.int32).mul(1.1),
    ):
        got, want = program(device), program(host)
        assert got.dtype == want.dtype
        torch.testing.assert_close(got.cpu(), want)
