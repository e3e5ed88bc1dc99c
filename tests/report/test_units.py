"""Numbers as people read them, and changes: a percentage, until the factor says more."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from rltrace.report import units
from rltrace.testing.inside.analysis import Interval
from rltrace.testing.inside.report import bar
from rltrace.testing.inside.report import gate_section as ratios

READ = {
    units.seconds: {
        0.0: "0 s", 4.21e-7: "0.421 µs", 0.0421: "42.1 ms", 0.099999: "100 ms", 7.1418: "7.14 s",
        83.2: "83.2 s", 163.2: "2 min 43 s", 179.9: "3 min 0 s", -150: "-2 min 30 s",
        3599.7: "1.0 h", 5400: "1.5 h", -0.0421: "-42.1 ms", math.nan: "–", 1e308: "2.78e304 h",
    },
    units.count: {
        0: "0", 7: "7", 12.6: "12.6", 64_796: "64,796", 1_234_567: "1.23 M", 2e9: "2.00 G",
        2e15: "2,000 T", 1e308: "1e308",
    },
    units.share: {
        0: "0 %", 1e-6: "<0.01 %", 0.0007: "0.07 %", 0.0421: "4.2 %", 0.784: "78 %",
        1e308: "1e310 %",
    },
    units.size: {12: "12 B", 15_231_233_024: "15.2 GB", 1e308: "1e296 TB"},
    units.ratio: {3.66: "3.7×", 1e308: "1e308×"},
    units.number: {
        1e308: "1e308", -1.2345e20: "-1.23e20", 123_456_789: "123,000,000", 1.25e-9: "1.25e-9",
    },
    units.scale(1e308).show: {1e308: "1e308"},
    ratios.change: {
        1.042: "+4.2 %", 0.5: "-50.0 %", 3.8: "+280.0 %", 38.2: "38×", 19_001.0: "1,000× or more",
        math.inf: "1,000× or more", math.nan: units.UNKNOWN,
    },
}  # fmt: skip


@pytest.mark.parametrize("show", READ)
def test_numbers_are_read_well(show: Callable[[float], str]) -> None:
    assert {value: show(value) for value in READ[show]} == READ[show]


@pytest.mark.parametrize("value", [math.inf, -math.inf])
@pytest.mark.parametrize("show", [*list(READ)[:-2], units.scale(1).show])
def test_what_is_not_finite_is_said(show: Callable[[float], str], value: float) -> None:
    assert show(value) == "not finite"


def test_before_and_after_are_in_the_unit_of_the_longer_one() -> None:
    told = (0.678, 0.513), (0.95, 1.2), (136.2, 103.4), (2e-5, 0.004), (math.nan, 2.0)
    assert [units.before_after(*both) for both in told] == [
        "678 → 513 ms", "0.950 → 1.20 s", "136 → 103 s", "0.0200 → 4.00 ms", "– → 2.00 s",
    ]  # fmt: skip


def test_plurals() -> None:
    assert units.plural(1, "step") == "1 step"
    assert units.plural(3, "process") == "3 processes"


@pytest.mark.parametrize("seconds", [2e-5, 0.004, 0.2, 3.0, 42.0, 500.0])
def test_a_scale_keeps_four_figures_or_so(seconds: float) -> None:
    shown = units.scale(seconds).show(seconds).replace(".", "").lstrip("0")
    assert 3 <= len(shown) <= 5


def test_the_least_share_still_has_a_bar() -> None:
    assert [bar(share, 10) for share in (0, 1e-9, 0.5, 2)] == ["", "▏", "█" * 5, "█" * 10]


def test_ends_that_read_as_the_value_are_left_out_and_others_are_said_alike() -> None:
    assert ratios.percent(Interval(1.0702, 1.0699, 1.0704)) == "+7.0 %"
    assert ratios.percent(Interval(1.0702, 1.0699, 1.0714)) == "+7.0 % (+7.0 % to +7.1 %)"
    assert ratios.interval_ends(Interval(1.0702, 1.0699, 1.0704), ratios.change) == "+7.0 %"
    assert ratios.percent(Interval(20, 5, 5000)) == "20× (+400.0 % to 1,000× or more)"
