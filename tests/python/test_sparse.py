"""Sparse COO tensors on the device: sparse gradients and the optimizers that take them, and what the CPU can do with such
tensors. Everything is compared with the CPU; where it raises, so does the device."""

import pytest
import torch
from torch import nn

DEVICES = ("cpu", "opaque")


def compare(got, expected):
    if isinstance(expected, (tuple, list)):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            compare(one, other)
    elif isinstance(expected, torch.Tensor):
        assert (
            got.device.type == "opaque"
            and got.layout == expected.layout
            and got.dtype == expected.dtype
        )
        if expected.is_sparse:
            assert got.is_coalesced() == expected.is_coalesced() and got._nnz() == expected._nnz()
            got, expected = got.to_dense(), expected.to_dense()
        torch.testing.assert_close(got.cpu(), expected)
    else:
        assert got == expected


def same(call):
    """Runs `call(device)` on both devices; results are the same, or the kinds of the errors are."""
    results = []
    for device in DEVICES:
        torch.manual_seed(0)
        try:
            results.append(call(device))
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            results.append([type(error).__name__, device, str(error)])
    expected, got = results
    failed = isinstance(expected, list) and expected[1:2] == ["cpu"]
    assert failed == (isinstance(got, list) and got[1:2] == ["opaque"]), (
        f"{got} instead of {expected}"
    )
    if failed:
        assert got[0] == expected[0], f"{got} instead of {expected}"
    else:
        compare(got, expected)


def coo(device, coalesced=False, dtype=torch.float32):
    indices = torch.tensor([[0, 1, 1, 3], [2, 0, 0, 1]], device=device)
    values = torch.tensor([1, 2, 3, 4], device=device).to(dtype)
    x = torch.sparse_coo_tensor(indices, values, (4, 3))
    return x.coalesce() if coalesced else x


def dense(device, *shape):
    return torch.arange(1.0, torch.Size(shape).numel() + 1, device=device).view(shape)


CALLS = {
    "coalesce": lambda d: coo(d).coalesce(),
    "parts": lambda d: [
        coo(d)._indices(),
        coo(d)._values(),
        coo(d, True).indices(),
        coo(d, True).values(),
    ],
    "numbers": lambda d: [
        coo(d)._nnz(),
        coo(d, True)._nnz(),
        coo(d).is_coalesced(),
        coo(d).sparse_dim(),
        coo(d).dense_dim(),
    ],
    "to_dense": lambda d: coo(d).to_dense(),
    "to_sparse": lambda d: dense(d, 3, 4).relu().sub(5).relu().to_sparse(),
    "sparse + sparse": lambda d: coo(d) + coo(d, True),
    "dense + sparse": lambda d: dense(d, 4, 3) + coo(d),
    "sparse * number": lambda d: coo(d) * 3,
    "sparse * sparse": lambda d: coo(d) * coo(d),
    "sparse * dense": lambda d: coo(d) * dense(d, 4, 3),
    "sparse.mm": lambda d: torch.sparse.mm(coo(d), dense(d, 3, 2)),
    "sparse @ dense": lambda d: coo(d) @ dense(d, 3, 2),
    "dense @ sparse": lambda d: dense(d, 2, 4) @ coo(d),
    "sparse @ sparse": lambda d: torch.sparse.mm(coo(d), coo(d).t()),
    "sparse @ vector": lambda d: coo(d) @ dense(d, 3),
    "addmm": lambda d: torch.sparse.addmm(dense(d, 4, 2), coo(d), dense(d, 3, 2)),
    "sum": lambda d: [torch.sparse.sum(coo(d)), torch.sparse.sum(coo(d), 0), coo(d).sum()],
    "softmax": lambda d: torch.sparse.softmax(coo(d), 1),
    "transpose": lambda d: coo(d).t(),
    "clone": lambda d: coo(d).clone(),
    "detach": lambda d: coo(d).detach(),
    "neg": lambda d: -coo(d),
    "abs, sqrt, relu": lambda d: [coo(d).abs(), coo(d, True).sqrt(), coo(d, True).relu()],
    "to(float64)": lambda d: coo(d).to(torch.float64),
    "sparse_mask": lambda d: dense(d, 4, 3).sparse_mask(coo(d, True)),
    "index_select": lambda d: coo(d).index_select(0, torch.tensor([1, 3], device=d)),
    "select": lambda d: coo(d)[1],
    "narrow_copy": lambda d: coo(d).narrow_copy(0, 1, 2),
    "cat": lambda d: torch.cat([coo(d), coo(d)]),
    "stack": lambda d: torch.stack([coo(d), coo(d)]),
    "norm": lambda d: coo(d, True).norm(),
    "empty": lambda d: torch.sparse_coo_tensor((2, 3), device=d),
    "zeros_like": lambda d: torch.zeros_like(coo(d)),
    "sparse zeros": lambda d: torch.zeros(2, 3, layout=torch.sparse_coo, device=d),
    "any, all": lambda d: coo(d).any(),
    "exp has no sparse kernel": lambda d: coo(d).exp(),
    "a slice has no sparse kernel": lambda d: coo(d)[:, 1:],
    "view": lambda d: coo(d).view(12),
    "indices out of range": lambda d: torch.sparse_coo_tensor(
        torch.tensor([[5]], device=d), torch.ones(1, device=d), (2,)
    ),
    "values of an uncoalesced tensor": lambda d: coo(d).values(),
    "integers": lambda d: coo(d, dtype=torch.int64).coalesce(),
    "complex": lambda d: coo(d, dtype=torch.complex64) + coo(d, dtype=torch.complex64),
}


@pytest.mark.parametrize("name", CALLS)
def test_as_on_the_cpu(name):
    same(CALLS[name])


def test_in_place():
    def call(device):
        x, d = coo(device), dense(device, 4, 3)
        row = d[1]
        x.add_(x)
        x.mul_(0.5)
        d.add_(x, alpha=2)
        z = coo(device).zero_()
        return [x, d, row, z, z._nnz()]

    same(call)


def test_a_dense_tensor_is_changed_where_it_lies():
    """And whoever read it before has what it read."""
    d = torch.ones(4, 3, device="opaque")
    before = d * 1
    copy = d.clone()
    d.add_(coo("opaque"))
    assert torch.equal(d.cpu(), torch.ones(4, 3) + coo("cpu").to_dense())
    assert torch.equal(before.cpu(), torch.ones(4, 3)) and torch.equal(copy.cpu(), torch.ones(4, 3))


def test_between_devices():
    x = coo("cpu").to("opaque")
    assert x.is_sparse and x.device.type == "opaque" and not x.is_coalesced()
    assert x._indices().device.type == x._values().device.type == "opaque"
    back = x.cpu()
    assert back.device.type == "cpu" and torch.equal(back.to_dense(), coo("cpu").to_dense())
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(4, 3, device="opaque") + coo("cpu")


def test_repr():
    assert "opaque" in repr(coo("opaque")) and "sparse_coo" in repr(coo("opaque"))


def embedding(device):
    return nn.Embedding(12, 4, sparse=True, padding_idx=0)


def bag(device):
    return nn.EmbeddingBag(12, 4, mode="sum", sparse=True)


WORDS = torch.tensor([[1, 2, 2], [0, 5, 11]])
OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD for-loop": lambda p: torch.optim.SGD(p, lr=0.1, foreach=False),
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "SparseAdam": lambda p: torch.optim.SparseAdam(p, lr=0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "Adam takes none": lambda p: torch.optim.Adam(p, lr=0.1),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("make", [embedding, bag])
def test_training_with_sparse_gradients(make, optimizer):
    def call(device):
        module = make(device).to(device)
        optimize = OPTIMIZERS[optimizer](list(module.parameters()))
        gradients = []
        for step in range(3):
            optimize.zero_grad()
            module((WORDS + step).remainder(12).to(device)).square().sum().backward()
            assert module.weight.grad.is_sparse
            gradients.append(module.weight.grad.clone())
            optimize.step()
        return [*gradients, module.weight.detach()]

    same(call)


def test_gradients_accumulate():
    def call(device):
        module = embedding(device).to(device)
        for _ in range(2):
            module(WORDS.to(device)).sum().backward()
        return module.weight.grad

    same(call)


def test_gradient_of_sparse_mm():
    def call(device):
        x, y = coo(device).requires_grad_(), dense(device, 3, 2).requires_grad_()
        torch.sparse.mm(x, y).square().sum().backward()
        return [x.grad, y.grad]

    same(call)


@pytest.mark.parametrize("layout", ["csr", "csc", "bsr"])
def test_compressed_layouts_are_an_error(layout):
    x = torch.eye(4, device="opaque")
    with pytest.raises((NotImplementedError, RuntimeError), match="(?i)sparse"):
        x.to_sparse_bsr((2, 2)) if layout == "bsr" else getattr(x, f"to_sparse_{layout}")()
