"""Random nets: forward, gradients and optimizer steps against the CPU in float64, and every way of running against the others."""

import pytest
from programs import nets
from programs.testing import check_block, run_elsewhere


@pytest.mark.parametrize("block", range(8))
def test_nets(block):
    check_block(nets, block, quick=5, full=300)


def test_nets_on_avx2(run_python):
    run_elsewhere(run_python, "nets", 8, quick=8, full=300, OPAQUE_CPU="avx2")
