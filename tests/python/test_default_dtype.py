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


def test_another_thread_never_sees_it_change():
    """While calls that were recorded under another default type run."""
    import threading

    seen, stop = set(), threading.Event()

    def watch():
        while not stop.is_set():
            seen.add(torch.get_default_dtype())

    whole = torch.arange(1, 9, device="opaque")
    torch.set_default_dtype(torch.float64)
    try:
        recorded = [torch.lgamma(whole * k) for k in range(1, 50)]
        windows = [torch.linspace(0, 1, 9, device="opaque"), torch.special.i0(whole), whole**2.5]
    finally:
        torch.set_default_dtype(torch.float32)
    thread = threading.Thread(target=watch)
    thread.start()
    for k, result in enumerate(recorded, 1):
        assert result.dtype == torch.float64
        torch.testing.assert_close(result.cpu(), torch.lgamma((torch.arange(1, 9) * k).double()))
    assert all(result.cpu().dtype == torch.float64 for result in windows)
    stop.set()
    thread.join()
    assert seen == {torch.float32}


def test_types_are_those_of_the_line_whatever_is_set_later():
    whole = torch.arange(1, 9)
    programs = (
        lambda x: torch.lgamma(x),
        lambda x: torch.special.erfcx(x),
        lambda x: torch.polygamma(1, x),
        lambda x: torch.fft.fft(x),
        lambda x: torch.true_divide(x, 3),
        lambda x: x.to(torch.uint16) == 2.5,
        lambda x: torch.logspace(0, 1, 5, device=x.device),
        lambda x: torch.complex(x.to(torch.get_default_dtype()), x.to(torch.get_default_dtype())),
    )
    for first, second in ((torch.float64, torch.float32), (torch.float32, torch.float64)):
        torch.set_default_dtype(first)
        try:
            want = [program(whole) for program in programs]
            got = [program(whole.to("opaque")) for program in programs]
            torch.set_default_dtype(second)
            for a, b in zip(got, want, strict=True):
                assert a.dtype == b.dtype
                torch.testing.assert_close(a.cpu(), b)
        finally:
            torch.set_default_dtype(torch.float32)
