"""Changes in words: a percentage, until the factor says more."""

from __future__ import annotations

import math

import pytest

from rltrace.report import ratios
from rltrace.testing.inside.analysis import Interval
from rltrace.testing.inside.report import units


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (1.042, "+4.2 %"),
        (0.5, "-50.0 %"),
        (3.8, "+280.0 %"),
        (38.2, "×38"),
        (19_001.0, "×1,000 or more"),
        (math.inf, "×1,000 or more"),
        (math.nan, units.UNKNOWN),
    ],
)
def test_a_change_from_almost_nothing_is_no_percentage(ratio: float, words: str) -> None:
    assert ratios.change(ratio) == words


def test_ends_that_read_as_the_value_are_left_out() -> None:
    assert ratios.percent(Interval(1.0702, 1.0699, 1.0704)) == "+7.0 %"
    assert ratios.percent(Interval(1.0702, 1.0699, 1.0714)) == "+7.0 % (+7.0 % to +7.1 %)"
    assert ratios.ends(Interval(1.0702, 1.0699, 1.0704), ratios.change) == "+7.0 %"


def test_ends_are_said_alike() -> None:
    assert ratios.percent(Interval(20, 5, 5000)) == "×20 (+400.0 % to ×1,000 or more)"
