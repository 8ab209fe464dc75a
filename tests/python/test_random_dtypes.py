"""Random programs over all dtypes, numbers that may not fit, in-place and out forms, against the CPU's bits."""

import pytest
from programs import dtypes
from programs.testing import check_block


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("block", range(8))
def test_dtypes(block):
    check_block(dtypes, block, quick=60, full=1000)
