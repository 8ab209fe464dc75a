"""Random nets under the tools: stats(), explain(), graph(), dump() and compare() agree with a run and change nothing."""

import pytest
from programs import tools
from programs.testing import check_block


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("block", range(4))
def test_tools(block):
    check_block(tools, block, quick=2, full=100)
