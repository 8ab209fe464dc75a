"""Random programs of several threads over shared tensors: each gives what it gives alone."""

import pytest
from programs import threads
from programs.testing import check_block


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("block", range(4))
def test_threads(block):
    check_block(threads, block, quick=2, full=100)
