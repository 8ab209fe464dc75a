"""The CPU's default generator is the program's: nothing that runs on the device draws from it, tries and predictions included."""

import os
import threading
import warnings

import pytest
import torch
import torch.nn.functional as F

D = "opaque"
DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64),
    *(torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool),
)


def tensor(dtype):
    return torch.ones(7, 3).to(dtype).to(D)


P = torch.full((7, 3), 0.5)
DRAWS = {
    "bernoulli_": lambda x: x.bernoulli_(0.5),
    "bernoulli_ by a tensor": lambda x: x.bernoulli_(P.to(D)),
    "bernoulli": lambda x: torch.bernoulli(x),
    "bernoulli p": lambda x: torch.bernoulli(x, 0.5),
    "bernoulli out": lambda x: torch.bernoulli(P.to(D), out=x),
    "bernoulli, given": lambda x: x.bernoulli_(0.5, generator=torch.Generator(D).manual_seed(1)),
    "uniform_": lambda x: x.uniform_(),
    "normal_": lambda x: x.normal_(),
    "normal": lambda x: torch.normal(x, 1.0),
    "normal of std": lambda x: torch.normal(0.0, x),
    "normal of both": lambda x: torch.normal(x, x),
    "random_": lambda x: x.random_(),
    "random_ to": lambda x: x.random_(1),
    "exponential_": lambda x: x.exponential_(),
    "geometric_": lambda x: x.geometric_(0.5),
    "cauchy_": lambda x: x.cauchy_(),
    "log_normal_": lambda x: x.log_normal_(),
    "multinomial": lambda x: torch.multinomial(x, 2),
    "poisson": lambda x: torch.poisson(x),
    "binomial": lambda x: torch.binomial(x, x),
    "rand_like": lambda x: torch.rand_like(x),
    "randn_like": lambda x: torch.randn_like(x),
    "randint_like": lambda x: torch.randint_like(x, 2),
    "randperm": lambda x: torch.randperm(7, device=D, dtype=x.dtype),
    "randint": lambda x: torch.randint(2, (7,), device=D, dtype=x.dtype),
    "dropout": lambda x: F.dropout(x),
    "dropout in place": lambda x: F.dropout(x, inplace=True),
    "native_dropout": lambda x: torch.native_dropout(x, 0.5, True),
    "dropout1d": lambda x: F.dropout1d(x[None]),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, True),
    "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x[None], 0.5, True),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x),
    "fractional_max_pool2d": lambda x: F.fractional_max_pool2d(x[None], 2, output_size=(2, 2)),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
    "dirichlet": lambda x: torch._sample_dirichlet(x),
    "gamma": lambda x: torch._standard_gamma(x),
    "svd_lowrank": lambda x: torch.svd_lowrank(x, 2),
    "masked rows": lambda x: x[torch.rand(7, device=D) > 0.5],
}


def attempt(f):
    """Runs it; an error is as good as a result."""
    try:
        for result in torch.utils._pytree.tree_leaves(f()):
            if isinstance(result, torch.Tensor):
                result.cpu()
        torch.opaque.synchronize()
    except Exception:
        pass


def draws_nothing(f):
    before = torch.get_rng_state()
    attempt(f)
    return torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", DRAWS)
def test_random_operators(name):
    wrong = []

    def all_dtypes():
        for dtype in DTYPES:
            x = tensor(dtype)
            for _ in range(2):
                if not draws_nothing(lambda x=x: DRAWS[name](x)):
                    wrong.append((dtype, threading.current_thread().name))

    all_dtypes()
    thread = threading.Thread(target=all_dtypes)  # which has its own list of what it has tried
    thread.start()
    thread.join()
    assert not wrong


def test_a_trial_and_what_follows_draw_the_same():
    """The device's own numbers do not depend on which kinds of calls a thread has seen."""
    results = []

    def draw():
        torch.manual_seed(5)
        generator = torch.Generator(D).manual_seed(3)
        for dtype in DTYPES[5:]:
            x = tensor(dtype)
            results.append((x.bernoulli_(0.5).cpu(), x.bernoulli_(0.5, generator=generator).cpu()))

    for _ in range(2):
        draw()
    thread = threading.Thread(target=draw)
    thread.start()
    thread.join()
    count = len(DTYPES) - 5
    for again in (results[count : 2 * count], results[2 * count :]):
        for (a, b), (c, d) in zip(results[:count], again, strict=True):
            assert torch.equal(a, c) and torch.equal(b, d)


def entries():
    from torch.testing._internal.common_methods_invocations import op_db

    return op_db


@pytest.mark.skipif(
    not os.environ.get("OPAQUE_TEST_FULL"),
    reason="with --full; test_opdb.py looks at it in float32",
)
@pytest.mark.parametrize("part", range(4))
def test_samples_of_all_operators(part):
    wrong = []
    for op in entries()[part::4]:
        for dtype in (torch.int64, torch.bool):
            try:
                samples = list(op.sample_inputs(D, dtype)) if dtype in op.dtypes else []
            except Exception:
                continue
            for sample in samples:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    call = (sample.input, *sample.args)
                    if not draws_nothing(lambda: op(*call, **sample.kwargs)):  # noqa: B023
                        wrong.append((op.name, op.variant_test_name, dtype))
    assert not wrong
