"""What shares memory: data_ptr(), copy.copy and copy.deepcopy say the same as on the CPU."""

import copy

import pytest
import torch

DEVICES = ("cpu", "opaque")


def on_both(call):
    expected, got = call("cpu"), call("opaque")
    assert got == expected


@pytest.mark.parametrize("source", ["cpu", "opaque"])
def test_shallow_copy_shares_memory(source):
    x = torch.arange(4.0, device=source, requires_grad=True)
    x.note = "kept"
    y = copy.copy(x)
    assert y.requires_grad and y.is_leaf and y is not x and y.note == "kept"
    with torch.no_grad():
        y.fill_(1)
    assert x.tolist() == [1.0] * 4


def test_shallow_copy_of_views_parameters_and_others():
    def run(device):
        x = torch.arange(6.0, device=device).reshape(2, 3)
        view = copy.copy(x.t()[1:])
        view.mul_(10)
        parameter = torch.nn.Parameter(torch.zeros(2, device=device))
        copied = copy.copy(parameter)
        with torch.no_grad():
            copied.add_(1)
        return x.tolist(), view.stride(), parameter.tolist(), type(copied)

    on_both(run)
    assert copy.copy(torch.arange(3).to_sparse()).to_dense().tolist() == [0, 1, 2]


def test_deep_copies_of_views_share_memory():
    def run(device):
        x = torch.arange(12.0, device=device)
        copies = copy.deepcopy([x, x.view(3, 4), x[2:8:2], x.view(torch.int32)])
        copies[0].add_(1)
        copies[2].mul_(2)
        return [c.tolist() for c in copies], [c.stride() for c in copies], x.tolist()

    on_both(run)


def test_deep_copies_beginning_with_a_view():
    def run(device):
        x = torch.arange(12.0, device=device).reshape(3, 4)
        window, whole, other = copy.deepcopy([x.t()[1:3], x, x.clone()])
        window.zero_()
        other.add_(1)
        return window.stride(), window.storage_offset(), whole.tolist(), other.tolist(), x.tolist()

    on_both(run)


def test_deep_copy_of_a_module_with_a_buffer_of_views():
    def run(device):
        module = torch.nn.BatchNorm1d(3).to(device)
        module.window = module.running_mean[1:]
        copied = copy.deepcopy(module)
        copied(torch.arange(6.0, device=device).reshape(2, 3))
        return copied.window.tolist(), copied.running_mean.tolist(), module.running_mean.tolist()

    on_both(run)


def test_deep_copy_keeps_gradients_and_flags():
    def run(device):
        x = torch.arange(3.0, device=device, requires_grad=True)
        (x * x).sum().backward()
        y = copy.deepcopy(x)
        y.grad.add_(1)
        return y.requires_grad, y.tolist(), y.grad.tolist(), x.grad.tolist()

    on_both(run)
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(torch.zeros(2, device="opaque", requires_grad=True) * 2)


def test_data_ptr_tells_what_shares_memory():
    x, y = torch.zeros(4, 6, device="opaque"), torch.zeros(4, 6, device="opaque")
    assert x.data_ptr() == x.view(24).data_ptr() == x.t().data_ptr() == x.detach().data_ptr()
    assert (
        x[1:].data_ptr() == x.data_ptr() + 6 * 4
        and x.view(torch.int16)[0, 1:].data_ptr() == x.data_ptr() + 2
    )
    assert abs(x.data_ptr() - y.data_ptr()) >= x.nbytes and x.clone().data_ptr() != x.data_ptr()
    before = x.data_ptr()
    x.add_(1)
    assert x.data_ptr() == before == x.untyped_storage().data_ptr()
    x.set_(y)
    assert x.data_ptr() == y.data_ptr() != before
    assert torch.zeros(0, device="opaque").data_ptr() == torch.zeros(0).data_ptr() == 0
    # No processor can map it: a program that reads there fails.
    assert before >> 60 == 1


def test_data_ptr_of_others():
    x = torch.zeros(3)
    assert (
        x.data_ptr() == x.untyped_storage().data_ptr() > 0
        and torch.Tensor.data_ptr(x) == x.data_ptr()
    )
    with pytest.raises(RuntimeError):
        x.to_sparse().data_ptr()


def test_tied_weights_are_found():
    model = torch.nn.Sequential(torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False)).to(
        "opaque"
    )
    model[1].weight = model[0].weight
    pointers = [t.data_ptr() for t in model.state_dict().values()]
    assert pointers[0] == pointers[1]


def test_deep_copies_of_storages():
    def run(device):
        x, y = torch.arange(4.0, device=device), torch.zeros(3, device=device)
        copied, (first, second), other, view = copy.deepcopy(
            [x, [x.untyped_storage(), y.untyped_storage()], y, x.view(2, 2)]
        )
        copied.add_(1)
        other.add_(2)
        return first.tolist(), second.tolist(), view.tolist(), x.tolist(), y.tolist()

    on_both(run)
