"""The benchmark of plans: every source is whole, and plans are near what is published."""

from __future__ import annotations

import sys

import numpy as np

from benchmarks.planned import FILES, MEDIAN_ERROR, WORST_FACTOR, rows

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def test_every_source_says_where_it_is_from_and_what_was_assumed() -> None:
    for path in FILES.glob("*.toml"):
        tables = tomllib.loads(path.read_text("utf-8"))
        assert tables["source"], path
        assert tables["assumed"], path
        assert tables["use"] in ("development", "held out"), path


def test_plans_are_near_what_is_published_and_name_the_right_walls() -> None:
    found = list(rows())
    assert len(found) > 80
    assert float(np.median([abs(row.ratio - 1) for row in found])) <= MEDIAN_ERROR
    far = [(row.what, round(row.ratio, 2)) for row in found if row.factor > WORST_FACTOR]
    assert not far
    assert not [row.what for row in found if not row.wall_is_right]
