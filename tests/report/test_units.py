"""Numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from rltrace.report import units
from rltrace.testing.inside.report import bar


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 s"),
        (4.21e-7, "0.421 µs"),
        (0.0421, "42.1 ms"),
        (0.099999, "100 ms"),
        (7.1418, "7.14 s"),
        (83.2, "83.2 s"),
        (163.2, "2 min 43 s"),
        (179.9, "3 min 0 s"),
        (-150, "-2 min 30 s"),
        (3599.7, "1.0 h"),
        (5400, "1.5 h"),
        (-0.0421, "-42.1 ms"),
        (math.nan, "–"),
    ],
)
def test_seconds(value: float, text: str) -> None:
    assert units.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (7, "7"),
        (12.6, "12.6"),
        (64_796, "64,796"),
        (1_234_567, "1.23 M"),
        (2e9, "2.00 G"),
    ],
)
def test_counts(value: float, text: str) -> None:
    assert units.count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 %"), (1e-6, "<0.01 %"), (0.0007, "0.07 %"), (0.0421, "4.2 %"), (0.784, "78 %")],
)
def test_shares(value: float, text: str) -> None:
    assert units.share(value) == text


def test_sizes_plurals_and_ratios() -> None:
    assert units.size(15_231_233_024) == "15.2 GB"
    assert units.size(12) == "12 B"
    assert units.plural(1, "step") == "1 step"
    assert units.plural(3, "process") == "3 processes"
    assert units.ratio(3.66) == "3.7×"


@pytest.mark.parametrize("seconds", [2e-5, 0.004, 0.2, 3.0, 42.0, 500.0])
def test_a_scale_keeps_four_figures_or_so(seconds: float) -> None:
    shown = units.scale(seconds).show(seconds).replace(".", "").lstrip("0")
    assert 3 <= len(shown) <= 5


def test_the_least_share_still_has_a_bar() -> None:
    assert bar(0, 10) == ""
    assert bar(1e-9, 10) == "▏"
    assert bar(0.5, 10) == "█████"
    assert bar(2, 10) == "█" * 10


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (units.number(1e308), "1e308"),
        (units.number(-1.2345e20), "-1.23e20"),
        (units.number(123_456_789), "123,000,000"),
        (units.number(1.25e-9), "1.25e-9"),
        (units.count(1e308), "1e308"),
        (units.count(2e15), "2,000 T"),
        (units.size(1e308), "1e296 TB"),
        (units.seconds(1e308), "2.78e304 h"),
        (units.share(1e308), "1e310 %"),
        (units.ratio(1e308), "1e308×"),
        (units.scale(1e308).show(1e308), "1e308"),
    ],
)
def test_what_is_beyond_all_measure_has_an_exponent(shown: str, text: str) -> None:
    assert shown == text


@pytest.mark.parametrize("value", [math.inf, -math.inf])
@pytest.mark.parametrize(
    "show",
    [units.seconds, units.count, units.size, units.share, units.ratio, units.number,
     units.scale(1).show],
)  # fmt: skip
def test_what_is_not_finite_is_said(show: Callable[[float], str], value: float) -> None:
    assert show(value) == "not finite"
