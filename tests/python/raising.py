"""What tests of errors share: the same call on the CPU and here."""

import pytest

D = "opaque"


def both_raise(f):
    """What f("cpu") raises, and what f("opaque") does: of the same type."""
    with pytest.raises(Exception) as want:
        f("cpu")
    with pytest.raises(type(want.value)) as got:
        f(D)
    assert type(got.value) is type(want.value)
    return want.value, got.value
