"""Every operator whose CPU kernel checks values checks them here: the same exception type, at the call or where the value is read,
naming the line.

The rows were made from the TORCH_CHECKs on values in ATen's CPU kernels and from OpInfo.error_inputs; test_error_words.py has the
words of some.
"""

import os
import traceback

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree

D = "opaque"
NAN, INF = float("nan"), float("inf")


def ones(*shape, d, dtype=None):
    return torch.ones(*shape, device=d, dtype=dtype)


def index(*values, d, dtype=torch.long):
    return torch.tensor(values, device=d, dtype=dtype)


def numbers(*values, d, dtype=torch.float):
    return torch.tensor(values, device=d, dtype=dtype)


def ctc(d, targets=(1, 2), inputs=(4,), lengths=(2,)):
    return F.ctc_loss(
        ones(4, 1, 3, d=d).log_softmax(2),
        index(targets, d=d),
        index(*inputs, d=d),
        index(*lengths, d=d),
    )


def bag(d, indices, offsets, **options):
    return F.embedding_bag(index(*indices, d=d), ones(4, 3, d=d), index(*offsets, d=d), **options)


# Values, and what PyTorch's CPU kernels check of them.
RANDOM = {
    "bernoulli above 1": lambda d: torch.bernoulli(numbers(0.5, 3, d=d)),
    "bernoulli below 0": lambda d: torch.bernoulli(numbers(-1, 0.5, d=d)),
    "bernoulli of nan": lambda d: torch.bernoulli(numbers(0.5, NAN, d=d)),
    "bernoulli of double": lambda d: torch.bernoulli(numbers(0.5, 2, d=d, dtype=torch.double)),
    "bernoulli of half": lambda d: torch.bernoulli(numbers(0.5, 2, d=d, dtype=torch.half)),
    "bernoulli_": lambda d: ones(2, d=d).bernoulli_(numbers(0.5, 3, d=d)),
    "bernoulli_ of integers": lambda d: ones(2, d=d, dtype=torch.long).bernoulli_(
        numbers(0.5, 3, d=d)
    ),
    "bernoulli_ broadcast": lambda d: ones(2, 3, d=d).bernoulli_(numbers(2, d=d)),
    "bernoulli_ by a 0-d CPU p": lambda d: ones(2, d=d).bernoulli_(torch.tensor(3.0)),
    "bernoulli_ by number": lambda d: ones(2, d=d).bernoulli_(1.5),
    "bernoulli many": lambda d: torch.bernoulli(ones(100, 77, d=d).cumsum(1)),
    "bernoulli, used": lambda d: torch.bernoulli(numbers(0.5, 3, d=d)).sum() * 2,
    "bernoulli out": lambda d: torch.bernoulli(numbers(3, d=d), out=ones(1, d=d)),
    "multinomial below 0": lambda d: torch.multinomial(numbers(0.5, -1, d=d), 1),
    "multinomial nan": lambda d: torch.multinomial(numbers(0.5, NAN, d=d), 1),
    "multinomial inf": lambda d: torch.multinomial(numbers(0.5, INF, d=d), 1),
    "multinomial of zeros": lambda d: torch.multinomial(numbers(0, 0, d=d), 1),
    "multinomial of zeros, replaced": lambda d: torch.multinomial(
        numbers(0, 0, d=d), 2, replacement=True
    ),
    "multinomial too many": lambda d: torch.multinomial(numbers(0.5, d=d), 2),
    "poisson": lambda d: torch.poisson(numbers(-1, d=d)),
    "normal std": lambda d: torch.normal(numbers(0, d=d), numbers(-1, d=d)),
    "normal std of a mean": lambda d: torch.normal(0.0, numbers(1, -1, d=d)),
    "normal std by number": lambda d: torch.normal(numbers(0, d=d), -1.0),
    "normal_": lambda d: ones(2, d=d).normal_(0, -1),
    "log_normal_": lambda d: ones(2, d=d).log_normal_(0, -1),
    "exponential_": lambda d: ones(2, d=d).exponential_(-1),
    "geometric_": lambda d: ones(2, d=d).geometric_(1.5),
    "cauchy_": lambda d: ones(2, d=d).cauchy_(0, -1),
    "uniform_": lambda d: ones(2, d=d).uniform_(1, 0),
    "random_": lambda d: ones(2, d=d).random_(1, 0),
    "randint": lambda d: torch.randint(5, 3, (2,), device=d),
    "randperm": lambda d: torch.randperm(-1, device=d),
    "rrelu": lambda d: F.rrelu(ones(2, d=d), 1.0, 0.5, training=True),
    "dropout": lambda d: F.dropout(ones(2, d=d), 1.5),
    "feature_dropout": lambda d: F.dropout1d(ones(1, 2, 2, d=d), -0.5),
    "alpha_dropout": lambda d: F.alpha_dropout(ones(2, d=d), 1.5, training=True),
}

INDICES = {
    "one_hot": lambda d: F.one_hot(index(0, 5, d=d), 5),
    "one_hot negative": lambda d: F.one_hot(index(0, -5, d=d)),
    "embedding": lambda d: F.embedding(index(0, 4, d=d), ones(4, 3, d=d)),
    "embedding below 0": lambda d: F.embedding(index(0, -1, d=d), ones(4, 3, d=d)),
    "embedding of int": lambda d: F.embedding(index(0, 4, d=d, dtype=torch.int), ones(4, 3, d=d)),
    "embedding_renorm": lambda d: F.embedding(index(0, 4, d=d), ones(4, 3, d=d), max_norm=1.0),
    "embedding_bag indices": lambda d: bag(d, (0, 9), (0,)),
    "embedding_bag indices below 0": lambda d: bag(d, (0, -1), (0,), mode="sum"),
    "embedding_bag indices, max": lambda d: bag(d, (0, 9), (0,), mode="max"),
    "embedding_bag offsets": lambda d: bag(d, (0, 1), (0, 9)),
    "embedding_bag first offset": lambda d: bag(d, (0, 1), (1,)),
    "embedding_bag weighted": lambda d: bag(
        d, (0, 9), (0,), mode="sum", per_sample_weights=ones(2, d=d)
    ),
    "nll_loss": lambda d: F.nll_loss(ones(2, 3, d=d), index(0, 3, d=d)),
    "nll_loss below 0": lambda d: F.nll_loss(ones(2, 3, d=d), index(0, -1, d=d)),
    "nll_loss of one": lambda d: F.nll_loss(ones(3, d=d), torch.tensor(3, device=d)),
    "nll_loss weighted": lambda d: F.nll_loss(ones(2, 3, d=d), index(0, 3, d=d), ones(3, d=d)),
    "nll_loss2d": lambda d: F.nll_loss(ones(1, 3, 2, 2, d=d), index([[0, 1], [2, 3]], d=d)),
    "nll_loss2d, unreduced": lambda d: F.nll_loss(
        ones(1, 3, 2, 2, d=d), index([[0, 1], [2, 3]], d=d), reduction="none"
    ),
    "cross_entropy": lambda d: F.cross_entropy(ones(2, 3, d=d), index(0, 3, d=d)),
    "cross_entropy smoothed": lambda d: F.cross_entropy(
        ones(2, 3, d=d), index(0, 3, d=d), label_smoothing=0.1
    ),
    "cross_entropy weighted": lambda d: F.cross_entropy(
        ones(2, 3, d=d), index(0, 3, d=d), ones(3, d=d)
    ),
    "cross_entropy of bytes": lambda d: F.cross_entropy(
        ones(2, 3, d=d), index(0, 3, d=d, dtype=torch.uint8)
    ),
    "multi_margin_loss": lambda d: F.multi_margin_loss(ones(2, 3, d=d), index(0, 3, d=d)),
    "multilabel_margin_loss": lambda d: F.multilabel_margin_loss(
        ones(1, 3, d=d), index([0, 3, -1], d=d)
    ),
    "multilabel_margin_loss below": lambda d: F.multilabel_margin_loss(
        ones(1, 3, d=d), index([0, -2, -1], d=d)
    ),
    "ctc_loss input lengths": lambda d: ctc(d, inputs=(5,)),
    "ctc_loss target lengths": lambda d: ctc(d, lengths=(3,)),
    "ctc_loss lengths below 0": lambda d: ctc(d, lengths=(-1,)),
    "gather": lambda d: ones(3, 4, d=d).gather(0, index([0, 3], d=d)),
    "gather below 0": lambda d: ones(3, 4, d=d).gather(1, index([0, -1], d=d)),
    "take_along_dim": lambda d: torch.take_along_dim(ones(3, 4, d=d), index([[5]], d=d), 1),
    "scatter": lambda d: ones(3, 4, d=d).scatter(0, index([3], d=d), 1.0),
    "scatter of tensors": lambda d: ones(3, 4, d=d).scatter(0, index([3], d=d), ones(1, 1, d=d)),
    "scatter add": lambda d: ones(3, 4, d=d).scatter(
        0, index([3], d=d), ones(1, 1, d=d), reduce="add"
    ),
    "scatter multiply": lambda d: ones(3, 4, d=d).scatter(
        0, index([3], d=d), 2.0, reduce="multiply"
    ),
    "scatter_add": lambda d: ones(3, 4, d=d).scatter_add(0, index([-1], d=d), ones(1, 1, d=d)),
    "scatter_reduce": lambda d: ones(3, 4, d=d).scatter_reduce(
        0, index([3], d=d), ones(1, 1, d=d), "amax"
    ),
    "scatter_reduce sum": lambda d: ones(3, 4, d=d).scatter_reduce(
        0, index([3], d=d), ones(1, 1, d=d), "sum", include_self=False
    ),
    "index_select": lambda d: ones(3, 4, d=d).index_select(0, index(3, d=d)),
    "index_select of int": lambda d: ones(3, 4, d=d).index_select(
        0, index(-1, d=d, dtype=torch.int)
    ),
    "index_add": lambda d: ones(3, 4, d=d).index_add(0, index(3, d=d), ones(1, 4, d=d)),
    "index_add below 0": lambda d: ones(3, 4, d=d).index_add(0, index(-1, d=d), ones(1, 4, d=d)),
    "index_copy": lambda d: ones(3, 4, d=d).index_copy(0, index(3, d=d), ones(1, 4, d=d)),
    "index_fill": lambda d: ones(3, 4, d=d).index_fill(0, index(3, d=d), 2.0),
    "index_fill below": lambda d: ones(3, 4, d=d).index_fill(0, index(-4, d=d), 2.0),
    "index_fill of a tensor": lambda d: ones(3, 4, d=d).index_fill(
        0, index(5, d=d), torch.tensor(2.0, device=d)
    ),
    "index_reduce": lambda d: ones(3, 4, d=d).index_reduce(
        0, index(3, d=d), ones(1, 4, d=d), "prod"
    ),
    "index": lambda d: ones(3, 4, d=d)[index(3, d=d)],
    "index below": lambda d: ones(3, 4, d=d)[index(-4, d=d)],
    "index of columns": lambda d: ones(3, 4, d=d)[:, index(4, d=d)],
    "index_put": lambda d: ones(3, 4, d=d).index_put((index(3, d=d),), ones(1, 4, d=d)),
    "index_put accumulated": lambda d: ones(3, 4, d=d).index_put(
        (index(-4, d=d),), ones(1, 4, d=d), accumulate=True
    ),
    "take": lambda d: ones(3, 4, d=d).take(index(12, d=d)),
    "take below": lambda d: ones(3, 4, d=d).take(index(-13, d=d)),
    "put": lambda d: ones(3, 4, d=d).put(index(12, d=d), ones(1, d=d)),
    "put_ accumulated": lambda d: ones(3, 4, d=d).put_(index(-13, d=d), ones(1, d=d), True),
    "masked_scatter": lambda d: ones(4, d=d).masked_scatter(ones(4, d=d) > 0, ones(2, d=d)),
    "masked_scatter_": lambda d: ones(4, d=d).masked_scatter_(ones(4, d=d) > 0, ones(3, d=d)),
    "repeat_interleave": lambda d: torch.repeat_interleave(ones(2, d=d), index(1, -1, d=d)),
    "repeat_interleave by number": lambda d: torch.repeat_interleave(ones(2, d=d), -1),
    "repeat_interleave sum": lambda d: torch.repeat_interleave(
        ones(2, d=d), index(1, 1, d=d), output_size=5
    ),
    "bincount": lambda d: torch.bincount(index(0, -1, d=d)),
    "searchsorted sorter": lambda d: torch.searchsorted(
        numbers(1, 2, d=d), numbers(1, d=d), sorter=index(0, 7, d=d)
    ),
    "max_unpool1d": lambda d: F.max_unpool1d(ones(1, 1, 2, d=d), index([[0, 9]], d=d), 2),
    "max_unpool1d below": lambda d: F.max_unpool1d(ones(1, 1, 2, d=d), index([[0, -1]], d=d), 2),
    "max_unpool2d": lambda d: F.max_unpool2d(ones(1, 1, 1, 1, d=d), index([[[7]]], d=d), 2),
    "max_unpool3d": lambda d: F.max_unpool3d(ones(1, 1, 1, 1, 1, d=d), index([[[[9]]]], d=d), 2),
    "tensor_split": lambda d: torch.tensor_split(ones(4, d=d), torch.tensor(0)),
    "segment_reduce": lambda d: torch.segment_reduce(ones(4, d=d), "sum", lengths=index(1, 9, d=d)),
    "segment_reduce below 0": lambda d: torch.segment_reduce(
        ones(4, d=d), "sum", lengths=index(5, -1, d=d)
    ),
    "sparse_coo": lambda d: torch.sparse_coo_tensor(
        index([0, 9], d=d), ones(2, d=d), (3,), check_invariants=True
    ),
    "pack_padded_sequence": lambda d: torch.nn.utils.rnn.pack_padded_sequence(
        ones(3, 2, 1, d=d), torch.tensor([3, 0])
    ),
    "pack_padded_sequence order": lambda d: torch.nn.utils.rnn.pack_padded_sequence(
        ones(3, 2, 1, d=d), torch.tensor([1, 3])
    ),
}

ARITHMETIC = {
    "integer // 0": lambda d: index(1, 2, d=d) // index(1, 0, d=d),
    "integer % 0": lambda d: index(1, 2, d=d) % index(1, 0, d=d),
    "fmod 0": lambda d: torch.fmod(index(1, 2, d=d), index(1, 0, d=d)),
    "div trunc 0": lambda d: torch.div(index(1, d=d), index(0, d=d), rounding_mode="trunc"),
    "integer ** -1": lambda d: index(2, d=d) ** -1,
    "float_power_": lambda d: index(2, d=d).float_power_(2),
    "bce input": lambda d: F.binary_cross_entropy(numbers(1.5, d=d), numbers(1, d=d)),
    "bce input nan": lambda d: F.binary_cross_entropy(numbers(NAN, d=d), numbers(1, d=d)),
    "bce input below": lambda d: F.binary_cross_entropy(
        numbers(-0.1, d=d), numbers(1, d=d), reduction="none"
    ),
    "bce target": lambda d: F.binary_cross_entropy(numbers(0.5, d=d), numbers(1.5, d=d)),
    "bce weighted": lambda d: F.binary_cross_entropy(
        numbers(1.5, d=d), numbers(1, d=d), weight=numbers(1, d=d)
    ),
    "quantile": lambda d: torch.quantile(numbers(1, 2, d=d), numbers(0.5, 1.5, d=d)),
    "quantile below": lambda d: torch.quantile(numbers(1, 2, d=d), numbers(-0.1, d=d)),
    "quantile nan": lambda d: torch.quantile(numbers(1, 2, d=d), numbers(NAN, d=d)),
    "quantile by number": lambda d: torch.quantile(numbers(1, 2, d=d), 1.5),
    "nanquantile": lambda d: torch.nanquantile(numbers(1, 2, d=d), numbers(-0.1, d=d)),
    "quantile of rows": lambda d: torch.quantile(
        ones(2, 3, d=d), numbers(1.1, d=d), dim=1, keepdim=True, interpolation="nearest"
    ),
    "histc inf": lambda d: torch.histc(numbers(1, INF, d=d)),
    "histc nan": lambda d: torch.histc(numbers(1, NAN, d=d), 4),
    "histc range": lambda d: torch.histc(numbers(1, 2, d=d), 4, 2, 1),
    "histc range inf": lambda d: torch.histc(numbers(1, 2, d=d), 4, 0, INF),
    "histogram bins": lambda d: torch.histogram(numbers(1, INF, d=d), 4),
    "histogramdd": lambda d: torch.histogramdd(numbers([1, INF], [1, 2], d=d), [2, 2]),
    "arange": lambda d: torch.arange(0, NAN, device=d),
    "arange inf": lambda d: torch.arange(0, INF, device=d),
    "linspace steps": lambda d: torch.linspace(0, 1, -1, device=d),
    "linspace of tensors": lambda d: torch.linspace(ones(2, d=d), 1, 3),
    "logspace steps": lambda d: torch.logspace(0, 1, -1, device=d),
    "item of a cast": lambda d: torch.full((), 1e30, device=d, dtype=torch.int),
    "fill_ of overflow": lambda d: index(1, d=d, dtype=torch.int8).fill_(1000),
    "assert": lambda d: torch._assert_async(ones(1, d=d) > 2),
    "assert with words": lambda d: torch.ops.aten._assert_async.msg(numbers(0, d=d), "no"),
    "assert of many": lambda d: torch._assert_async(ones(2, d=d)),
    "nonzero_static": lambda d: torch.nonzero_static(ones(2, d=d), size=-1),
    "to_sparse_csr": lambda d: torch.combinations(ones(2, d=d), -1),
    "chebyshev": lambda d: torch.special.chebyshev_polynomial_t(numbers(0.5, d=d), 2.5).cholesky(),
    "polygamma": lambda d: torch.polygamma(-1, numbers(0.5, d=d)),
    "cdist p": lambda d: torch.cdist(ones(2, 2, d=d), ones(2, 2, d=d), p=-1.0),
    "pdist p": lambda d: F.pdist(ones(2, 2, d=d), p=-1.0),
    "renorm": lambda d: torch.renorm(ones(2, 2, d=d), 2, 0, -1.0),
    "embedding max_norm": lambda d: torch.renorm(ones(2, 2, d=d), -1, 0, 1.0),
    "vander": lambda d: torch.vander(ones(2, d=d), -1),
    "roll": lambda d: torch.roll(ones(2, d=d), (1, 2)),
    "cov weights": lambda d: torch.cov(ones(2, 3, d=d), fweights=index(1, -1, 1, d=d)),
    "cov real weights": lambda d: torch.cov(ones(2, 3, d=d), aweights=numbers(1, -1, 1, d=d)),
    "dirichlet": lambda d: torch.distributions.Dirichlet(numbers(1, -1, d=d)),
    "categorical": lambda d: torch.distributions.Categorical(probs=numbers(1, -1, d=d)),
    "binomial distribution": lambda d: torch.distributions.Binomial(-1, numbers(0.5, d=d)),
    "gaussian_nll_loss": lambda d: F.gaussian_nll_loss(
        ones(2, d=d), ones(2, d=d), numbers(1, -1, d=d)
    ),
}

LINALG = {
    "cholesky": lambda d: torch.linalg.cholesky(numbers([1, 2], [2, 1], d=d)),
    "cholesky batch": lambda d: torch.linalg.cholesky(
        torch.stack([torch.eye(2, device=d), -torch.eye(2, device=d)])
    ),
    "cholesky old": lambda d: torch.cholesky(numbers([1, 2], [2, 1], d=d)),
    "inv": lambda d: torch.linalg.inv(ones(2, 2, d=d)),
    "inverse": lambda d: torch.inverse(ones(2, 2, d=d)),
    "solve": lambda d: torch.linalg.solve(ones(2, 2, d=d), ones(2, d=d)),
    "lu_factor": lambda d: torch.linalg.lu_factor(ones(2, 2, d=d) * 0),
    "ldl_factor": lambda d: torch.linalg.ldl_factor(ones(2, 2, d=d) * 0),
    "eig of inf": lambda d: torch.linalg.eig(numbers([INF, 1], [1, 2], d=d)),
    "svd of nan": lambda d: torch.linalg.svd(numbers([NAN, 1], [1, NAN], d=d)),
    "svdvals of nan": lambda d: torch.linalg.svdvals(numbers([NAN, 1], [1, NAN], d=d)),
    "pinv of nan": lambda d: torch.linalg.pinv(numbers([NAN, 1], [1, NAN], d=d)),
    "matrix_norm of nan": lambda d: torch.linalg.matrix_norm(numbers([NAN, 1], [1, 2], d=d), 2),
    "lstsq": lambda d: torch.linalg.lstsq(ones(2, 2, d=d), ones(2, 1, d=d), driver="no"),
    "tensorinv": lambda d: torch.linalg.tensorinv(ones(2, 2, d=d), 1),
    "matrix_power": lambda d: torch.linalg.matrix_power(ones(2, 2, d=d), -1),
    "cholesky_inverse": lambda d: torch.cholesky_inverse(torch.zeros(2, 2, device=d)),
    "multivariate normal": lambda d: torch.distributions.MultivariateNormal(
        ones(2, d=d), -torch.eye(2, device=d)
    ),
}

READ = {
    "int of nan": lambda d: int(numbers(NAN, d=d)),
    "int of inf": lambda d: int(numbers(INF, d=d)),
    "allclose": lambda d: torch.allclose(ones(2, d=d), ones(2, d=d), rtol=-1.0),
    "assert_close": lambda d: torch.testing.assert_close(ones(2, d=d), 2 * ones(2, d=d)),
    "range by item": lambda d: range(numbers(2.5, d=d)[0]),
    "pad by nan": lambda d: F.pad(index(1, d=d), (1, 1), value=NAN),
    "clip_grad_norm": lambda d: clipped(d),
    "all of many": lambda d: bool(ones(2, d=d)),
}


def clipped(d):
    weight = torch.nn.Parameter(ones(2, d=d))
    weight.grad = numbers(NAN, 1, d=d)
    return torch.nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)


ROWS = {**RANDOM, **INDICES, **ARITHMETIC, **LINALG, **READ}


def read(result):
    for leaf in _pytree.tree_leaves(result):
        if isinstance(leaf, torch.Tensor):
            leaf.cpu()


def raised(f, d):
    try:
        read(f(d))
        torch.opaque.synchronize()
    except Exception as error:
        return error
    return None


def lines_named(error):
    """Lines of this file in the traceback of the call, or in the text."""
    here = os.path.basename(__file__)
    frames = traceback.extract_tb(error.__traceback__)
    at = {frame.lineno for frame in frames if frame.filename.endswith(here)}
    for part in str(error).split(here + ":")[1:]:
        at.add(int("".join(c for c in part[:6] if c.isdigit()) or 0))
    return at


@pytest.mark.parametrize("name", ROWS)
def test_values_are_checked(name):
    f = ROWS[name]
    want = raised(f, "cpu")
    assert want is not None, "the CPU does not check"
    got = raised(f, D)
    assert got is not None, f"nothing raised for {want}"
    assert type(got) is type(want), f"{type(got)} {got} for {type(want)} {want}"
    lines = {line for _, _, line in f.__code__.co_lines()}
    assert lines & lines_named(got), str(got)


def test_eigenvalues_of_what_is_not_finite():
    """PyTorch's own linalg.eigvals ends the process there; linalg.eig has the words."""
    for bad in (NAN, INF):
        matrix = torch.tensor([[bad, 1.0], [1.0, bad]], device=D)
        for call in (
            torch.linalg.eigvals,
            torch.linalg.eig,
            lambda m: torch.linalg.eigvals(m + 0j),
        ):
            with pytest.raises(RuntimeError, match="should not contain infs or NaNs"):
                read(call(matrix))


def test_what_holds_is_no_error():
    """Bounds included, empty, broadcast, in each mode and beside what else is computed."""
    import torch_opaque

    for p in (0.0, 1.0, 0.5):
        for shape in ((), (0,), (3, 5), (70, 33)):
            drawn = torch.bernoulli(torch.full(shape, p, device=D))
            assert drawn.shape == shape and bool(((drawn == 0) | (drawn == 1)).all())
            if p != 0.5:
                assert bool((drawn == p).all())
    q = torch.tensor([0.0, 0.25, 1.0])
    x = torch.rand(6, 4)
    for dim in (None, 0, 1):
        for name in ("quantile", "nanquantile"):
            f = getattr(torch, name)
            torch.testing.assert_close(f(x.to(D), q.to(D), dim=dim).cpu(), f(x, q, dim=dim))
    weight, at = x.clone().requires_grad_(), x.to(D).requires_grad_()
    torch.quantile(weight, q).sum().backward()
    torch.quantile(at, q.to(D)).sum().backward()
    torch.testing.assert_close(at.grad.cpu(), weight.grad)
    with torch_opaque.unfused(), pytest.raises(RuntimeError, match="p_in <= 1"):
        torch.bernoulli(torch.tensor([2.0], device=D)).cpu()
    with torch_opaque.eager(), pytest.raises(RuntimeError, match="p_in <= 1"):
        torch.bernoulli(torch.tensor([2.0], device=D))
    good = torch.ones(3, device=D).exp()
    bad = torch.bernoulli(good)
    with pytest.raises(
        RuntimeError,
        match=r"aten::bernoulli \(recorded at test_value_checks.py:\d+\): Expected p_in",
    ):
        bad.cpu()
    torch.testing.assert_close(good.cpu(), torch.ones(3).exp())
