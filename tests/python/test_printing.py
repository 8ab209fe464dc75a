"""repr is that of the CPU tensor plus the device; one run with reason "print", nothing compiled for printing itself."""

import pytest
import torch
import torch_opaque

TENSORS = {
    "scalar": lambda: torch.tensor(1.5),
    "ints": lambda: torch.arange(6).reshape(2, 3),
    "bool": lambda: torch.tensor([True, False]),
    "bf16": lambda: torch.tensor([1.0, 2.5], dtype=torch.bfloat16),
    "empty": lambda: torch.ones(0, 3),
    "summarized": lambda: torch.linspace(0, 1, 4000).reshape(40, 100),
    "special": lambda: torch.tensor([float("nan"), float("inf"), -0.0, 1e-9]),
    "complex": lambda: torch.tensor([1 + 2j, 3 - 1j]),
    "strided": lambda: torch.arange(12.0).reshape(3, 4).t()[1:],
    "conj": lambda: torch.tensor([1 + 2j]).conj(),
}


def expected(cpu: torch.Tensor) -> str:
    """What PyTorch prints for a device it knows: with the device suffix, before dtype and size."""
    return repr(cpu).replace("\n", "").replace(" ", "")


@pytest.mark.parametrize("make", TENSORS.values(), ids=TENSORS.keys())
def test_as_cpu_with_the_device(make):
    shown = repr(make().to("opaque"))
    assert "device='opaque:0'" in shown
    assert shown.replace("device='opaque:0',", "").replace(",device='opaque:0'", "").replace(
        "\n", ""
    ).replace(" ", "").replace(",device='opaque:0'", "") == expected(make())


def test_grad_suffixes():
    x = torch.ones(2, device="opaque", requires_grad=True)
    assert repr(x) == "tensor([1., 1.], device='opaque:0', requires_grad=True)"
    assert repr(x * 2) == "tensor([2., 2.], device='opaque:0', grad_fn=<MulBackward0>)"
    assert repr(torch.nn.Parameter(x.detach())).startswith(
        "Parameter containing:\ntensor([1., 1.], device='opaque:0'"
    )


@pytest.mark.usefixtures("planned")
def test_one_run_and_no_kernel_of_its_own():
    x = torch.linspace(0, 1, 4000, device="opaque").reshape(40, 100)
    torch.opaque.synchronize()
    repr(x)
    torch_opaque.reset_stats()
    repr(x)
    assert (
        torch_opaque.stats()["kernels_compiled"] == 0 and torch_opaque.stats()["kernels_run"] == 0
    )
    y = x * 3 + 1
    torch_opaque.reset_stats()
    repr(y)
    assert torch_opaque.stats()["flushes"] == {"print": 1}
    assert torch_opaque.stats()["kernels_run"] == 1
    repr(y)
    assert torch_opaque.stats()["flushes"] == {"print": 1}


def test_format_and_list():
    x = torch.tensor([1.5, 2.5], device="opaque")
    assert x.tolist() == [1.5, 2.5] and f"{x[0]:.2f}" == "1.50" and str(x[1].item()) == "2.5"


def test_other_devices_unchanged():
    assert repr(torch.ones(2)) == "tensor([1., 1.])"
    assert repr(torch.ones(2, device="meta")) == "tensor(..., device='meta', size=(2,))"


def test_fake_tensor():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        assert "FakeTensor(..., device='opaque:0', size=(2,))" in repr(
            torch.ones(2, device="opaque")
        )
