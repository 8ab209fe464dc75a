"""Random programs about what lies under views: paddings, flips, rolls and windows below reshapes, expands, strides and casts."""

import pytest
from programs import views
from programs.testing import check_block, run_elsewhere


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("block", range(4))
def test_views(block):
    check_block(views, block, quick=15, full=1250)


def test_views_on_the_other_width(run_warm):
    run_elsewhere(run_warm, "views", 4, 12, 1250, OPAQUE_CPU="avx2")
