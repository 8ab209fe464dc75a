"""torch.set_flush_denormal: kernels flush as the thread that runs them says, on however many threads they run."""

import pytest
import torch

COUNT = 1 << 20


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_flush_denormal(False)
    torch.set_num_threads(before)


def nonzero(t):
    return int((t != 0).sum())


def test_all_elements_or_none(threads):
    x = torch.full((COUNT,), 1e-30).opaque()
    small = (torch.full((COUNT,), 1e-10)).opaque()
    for flush in (True, False, True):
        torch.set_flush_denormal(flush)
        y = (x * small).cpu()
        torch.set_flush_denormal(False)
        assert nonzero(y) == (0 if flush else COUNT)


def test_operands_that_are_denormal(threads):
    x = (torch.full((COUNT,), 1e-30) * 1e-10).opaque()
    torch.opaque.synchronize()
    torch.set_flush_denormal(True)
    flushed = (x * 1e20).cpu()
    torch.set_flush_denormal(False)
    assert nonzero(flushed) == 0
    assert nonzero((x * 1e20).cpu()) == COUNT


def test_a_matmul_flushes(threads):
    a, b = torch.full((256, 1), 1e-30).opaque(), torch.full((1, 4096), 1e-10).opaque()
    torch.set_flush_denormal(True)
    flushed = (a @ b).cpu()
    torch.set_flush_denormal(False)
    assert nonzero(flushed) == 0
    assert nonzero((a @ b).cpu()) == 256 * 4096


def test_a_row_reduction_flushes(threads):
    x = torch.full((4096, 256), 1e-39).opaque()
    torch.set_flush_denormal(True)
    flushed = (x + 0).sum(1).cpu()
    torch.set_flush_denormal(False)
    assert nonzero(flushed) == 0
    assert nonzero((x + 0).sum(1).cpu()) == 4096


def test_the_thread_that_looks_decides(threads):
    """An op is computed when its value is needed, under what holds then."""
    x = torch.full((COUNT,), 1e-30).opaque()
    y = x * 1e-10
    torch.set_flush_denormal(True)
    assert nonzero(y.cpu()) == 0
    torch.set_flush_denormal(False)
    torch.set_flush_denormal(True)
    z = x * 1e-10
    torch.set_flush_denormal(False)
    assert nonzero(z.cpu()) == COUNT


def test_code_made_while_flushing_is_not_flushed():
    """A kernel compiled under one setting is used under the other: its constants are exact."""
    x, y = torch.full((777,), 3.0).opaque(), torch.linspace(-1e-38, 1e-38, 777)
    for fn in (torch.tanh, torch.expm1, torch.log1p, torch.asinh):
        torch.set_flush_denormal(True)
        fn(x).cpu()
        torch.set_flush_denormal(False)
        torch.testing.assert_close(fn(y.opaque()).cpu(), fn(y), atol=0, rtol=1e-5)
