"""Errors that depend on values say what PyTorch says; and what the CPU does not look at is no error."""

import pytest
import torch
import torch.nn.functional as F
from raising import both_raise

D = "opaque"


def ones(*shape, d):
    return torch.ones(*shape, device=d)


def index(*values, d):
    return torch.tensor(values, device=d)


def put(x, *indices, accumulate=False):
    one = torch.ones((), dtype=x.dtype, device=x.device)
    return x.index_put(indices, one, accumulate=accumulate)


# PyTorch's words, behind the operator and the line.
SAME_WORDS = {
    "one_hot": lambda d: F.one_hot(index(0, 5, d=d), 5),
    "one_hot, many": lambda d: F.one_hot(torch.arange(20, device=d), 19),
    "one_hot below zero": lambda d: F.one_hot(index(0, -1, d=d), 5),
    "cross_entropy": lambda d: F.cross_entropy(ones(2, 5, d=d), index(0, 5, d=d)),
    "cross_entropy below zero": lambda d: F.cross_entropy(ones(2, 5, d=d), index(0, -1, d=d)),
    "cross_entropy, weighted": lambda d: F.cross_entropy(
        ones(2, 5, d=d), index(0, 5, d=d), ones(5, d=d)
    ),
    "nll_loss": lambda d: F.nll_loss(ones(2, 5, d=d), index(0, 7, d=d), reduction="none"),
    "index": lambda d: ones(3, 4, d=d)[index(0, -5, d=d)],
    "index of rows": lambda d: ones(3, 4, d=d)[index(0, 3, d=d), index(0, 1, d=d)],
    "index of columns": lambda d: ones(3, 4, d=d)[index(0, 2, d=d), index(0, 4, d=d)],
    "index of columns below zero": lambda d: ones(3, 4, d=d)[index(0, 2, d=d), index(0, -5, d=d)],
    "index of two from behind": lambda d: ones(2, 3, 4, d=d)[:, index(0, 2, d=d), index(0, 4, d=d)],
    "index of two apart": lambda d: ones(2, 3, 4, d=d)[index(0, 2, d=d), :, index(0, 3, d=d)],
    "index of three": lambda d: ones(2, 3, 4, d=d)[
        index(1, d=d), index(2, d=d), index(1 << 40, d=d)
    ],
    "index_put": lambda d: put(ones(3, 4, d=d), index(0, -4, d=d)),
    "index_put of rows": lambda d: put(ones(3, 4, d=d), index(0, 3, d=d), index(0, 1, d=d)),
    "index_put of columns": lambda d: put(ones(3, 4, d=d), index(0, 2, d=d), index(0, 4, d=d)),
    "index_fill below zero": lambda d: ones(3, 4, d=d).index_fill(0, index(0, -9, d=d), 1.0),
    "index_put, accumulated": lambda d: put(
        ones(3, 4, d=d), index(0, 2, d=d), index(0, -5, d=d), accumulate=True
    ),
    "index_put, many": lambda d: put(
        ones(30, 4, d=d), torch.arange(20, device=d), torch.arange(20, device=d) // 5 + 1
    ),
}


@pytest.mark.parametrize("name", SAME_WORDS)
def test_the_words_are_pytorchs(name):
    want, got = both_raise(lambda device: SAME_WORDS[name](device).cpu())
    assert str(want).splitlines()[0] in str(got)


def test_what_is_not_looked_at_may_be_anything():
    nan = float("nan")
    for dtype in (torch.long, torch.uint8, torch.bool):
        x = torch.arange(6).reshape(2, 3).to(dtype)
        for width in ((0, 0), (-1, 0), (0, -1, -1, 0)):
            assert torch.equal(F.pad(x.to(D), width, value=nan).cpu(), F.pad(x, width, value=nan))
    for scan in (torch.cumsum, torch.cumprod):
        for x in (torch.ones(0), torch.ones(2, 0, dtype=torch.long), torch.tensor(2.5)):
            out = torch.empty(x.shape, dtype=torch.bool)
            there = scan(x.to(D), 0, out=out.to(D)).cpu()
            assert torch.equal(there, scan(x, 0, out=out)) and there.dtype == torch.bool
            there = scan(x.to(D), 0, dtype=torch.bool).cpu()
            assert torch.equal(there, scan(x, 0, dtype=torch.bool))
    x = torch.ones(1, 2, 4, 8)
    both = {"attn_mask": torch.ones(4, 4).tril() > 0, "is_causal": True}
    assert torch.allclose(
        F.scaled_dot_product_attention(x, x, x, **both),
        F.scaled_dot_product_attention(
            x.to(D), x.to(D), x.to(D), attn_mask=both["attn_mask"].to(D), is_causal=True
        ).cpu(),
    )
