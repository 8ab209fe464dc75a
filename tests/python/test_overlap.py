"""Writes into tensors that have one place for several elements, or whose memory is read elsewhere: as the CPU does it."""

import warnings

import pytest
import torch

D = "opaque"


def rows(base):
    return base.as_strided((3, 4), (2, 1))


def expanded(base):
    return base[:1].expand(3)


def wide(base):
    return base[:3, None].expand(3, 4)


def diagonals(base):
    return base.as_strided((4, 4), (1, 1), 2)


WINDOWS = {"rows": rows, "expanded": expanded, "wide": wide, "diagonals": diagonals}


def values(x):
    return torch.arange(10.0, 10 + x.numel(), device=x.device).reshape(x.shape)


def index(x, *items):
    return torch.tensor(items, device=x.device)


WRITES = {
    "fill_": lambda x: x.fill_(7),
    "fill_ tensor": lambda x: x.fill_(torch.tensor(7.0, device=x.device)),
    "zero_": lambda x: x.zero_(),
    "copy_": lambda x: x.copy_(values(x)),
    "copy_ from the host": lambda x: x.copy_(values(x).cpu()),
    "copy_ of one": lambda x: x.copy_(torch.tensor(3.0, device=x.device)),
    "copy_ of integers": lambda x: x.copy_(values(x).long()),
    "add_": lambda x: x.add_(1),
    "add_ tensor": lambda x: x.add_(values(x)),
    "mul_ itself": lambda x: x.mul_(x),
    "exp_": lambda x: x.exp_(),
    "addcmul_": lambda x: x.addcmul_(values(x), values(x)),
    "clamp_": lambda x: x.clamp_(0, 1),
    "masked_fill_": lambda x: x.masked_fill_(values(x) > 11, 5),
    "index_put_": lambda x: x.index_put_((index(x, 0, 2),), torch.tensor(9.0, device=x.device)),
    "index_put_ accumulate": lambda x: x.index_put_(
        (index(x, 0, 2),), torch.tensor(9.0, device=x.device), accumulate=True
    ),
    "setitem": lambda x: x.__setitem__(1, 5.0),
    "setitem mask": lambda x: x.__setitem__(values(x) > 12, 5.0),
    "index_fill_": lambda x: x.index_fill_(0, index(x, 1), 4),
    "index_copy_": lambda x: x.index_copy_(0, index(x, 2, 0), values(x)[:2]),
    "index_add_": lambda x: x.index_add_(0, index(x, 2, 0), values(x)[:2]),
    "scatter_": lambda x: x.scatter_(0, torch.zeros_like(x, dtype=torch.long), 3.0),
    "scatter_add_": lambda x: x.scatter_add_(0, torch.zeros_like(x, dtype=torch.long), values(x)),
    "put_": lambda x: x.put_(index(x, 1, 2), torch.tensor([8.0, 9.0], device=x.device)),
    "masked_scatter_": lambda x: x.masked_scatter_(values(x) > 11, values(x)),
    "cumsum_": lambda x: x.cumsum_(0),
    "out": lambda x: torch.add(values(x), 1, out=x),
    "transposed": lambda x: x.t().copy_(values(x.t())),
}
ALIASED = {
    "later from earlier": lambda x: x[1:].add_(x[:-1]),
    "earlier from later": lambda x: x[:-1].copy_(x[1:]),
    "transposed": lambda x: x[:9].view(3, 3).add_(x[:9].view(3, 3).t()),
    "apart": lambda x: x[:4].add_(x[4:8]),
    "interleaved": lambda x: x[::2].add_(x[1::2]),
    "itself": lambda x: x.add_(x),
    "out is an operand": lambda x: torch.add(x, 1, out=x),
    "out overlaps an operand": lambda x: torch.mul(x[1:], 2, out=x[:-1]),
    "where": lambda x: torch.where(x[1:] > 2, x[1:], 0.0, out=x[:-1]),
    "other dtype": lambda x: x[:5].copy_(x.view(torch.int32)[3:8]),
}


def outcome(f, window, device):
    base = torch.linspace(-1, 2, 10).to(device)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            f(window(base))
    except Exception as error:
        return type(error).__name__, str(error).splitlines()[0], base.tolist()
    return base.tolist()


def same(f, window):
    want, got = outcome(f, window, "cpu"), outcome(f, window, D)
    assert type(got) is type(want), (got, want)
    if isinstance(want, tuple):
        assert got == want
    else:
        torch.testing.assert_close(torch.tensor(got), torch.tensor(want))


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", WRITES)
def test_writes_into_overlapping_windows(name, window):
    same(WRITES[name], WINDOWS[window])


@pytest.mark.parametrize("name", ALIASED)
def test_writes_where_operands_are_read(name):
    same(ALIASED[name], lambda base: base)


def test_a_result_that_grows_has_the_order_of_its_operands():
    def run(device):
        x, whole = torch.arange(6.0, device=device).reshape(2, 3), torch.zeros(6, device=device)
        out = whole[:0]
        torch.add(x.t(), 1, out=out)
        return out.stride(), out.tolist(), whole.tolist()

    assert run("opaque") == run("cpu")
