"""Random programs about shared memory: views of views, writes through them, storage exchanged, leaves of autograd."""

import pytest
from programs import aliasing
from programs.testing import check_block


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("block", range(8))
def test_aliasing(block):
    check_block(aliasing, block, quick=60, full=1000)
