"""Random nets: forward, gradients and optimizer steps against the CPU in float64, and every way of running against the others."""

import pytest
from programs import nets
from programs.oracle import Reference
from programs.testing import check_block, run_elsewhere


@pytest.mark.sampled(2)
@pytest.mark.parametrize("block", range(8))
def test_nets(block):
    check_block(nets, block, quick=5, full=300)


def test_nets_on_avx2(run_warm):
    run_elsewhere(run_warm, "nets", 8, quick=8, full=300, OPAQUE_CPU="avx2")


@pytest.mark.parametrize("tiers", ("lazy", "random"))
def test_lengths(run_warm, tiers):
    """Nets at one length after the other: plans for new sizes are written down from others, and in random mode each is compared."""
    run_elsewhere(run_warm, "lengths", 0, quick=12, full=300, OPAQUE_TIERS=tiers)


def test_the_bound_is_tight():
    """A test with bounds as large as the values would see nothing: few tensors are like that, those behind a kink that a rounding
    crosses or a cancellation."""
    blind = total = 0
    for seed in range(20):
        reference = Reference(nets.write(seed))
        names = reference.reals()
        total += len(names)
        blind += sum(reference.bound(n) > 1e-3 * reference.size(n) for n in names)
    assert total > 100 and blind < 0.03 * total, (blind, total)
