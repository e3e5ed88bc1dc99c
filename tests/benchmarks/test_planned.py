"""The benchmark of plans: every source is whole, and plans are near what is published."""

from __future__ import annotations

import sys

import numpy as np

from benchmarks.planned import MEDIAN_ERROR, WORST_FACTOR, rows

if sys.version_info >= (3, 11):
    pass
else:
    pass


def test_plans_are_near_what_is_published_and_name_the_right_walls() -> None:
    found = list(rows())
    assert len(found) > 80
    assert float(np.median([abs(row.ratio - 1) for row in found])) <= MEDIAN_ERROR
    far = [(row.what, round(row.ratio, 2)) for row in found if row.factor > WORST_FACTOR]
    assert not far
    assert not [row.what for row in found if not row.wall_is_right]
