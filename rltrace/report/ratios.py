"""How a figure changed from one run to another, in words and as a table's columns."""

from __future__ import annotations

import math
from collections.abc import Callable

from rltrace.analysis.bootstrap import Interval
from rltrace.report import units
from rltrace.report.layout import Column

_A_FACTOR = 10
_ALMOST_NOTHING = 1000
"""Times what it was before: that was almost none."""


def percent(ratio: Interval) -> str:
    """`+4.2 % (+1.0 % to +7.5 %)` of a ratio of 1.042, without its ends where they are unknown or
    read as it does."""
    return change(ratio.value) + beside(ratio, change)


def beside(interval: Interval, show: Callable[[float], str], what: str = "") -> str:
    """` (1.0 to 2.0)`, to stand behind the value (`what` in front of the ends); empty where an end
    is unknown, and where both read as the value."""
    between = ends(interval, show)
    return f" ({what}{between})" if between not in ("", show(interval.value)) else ""


def change(ratio: float) -> str:
    """`+4.2 %` of a ratio of 1.042. From ten times as much on it is the factor, `×38`: a percentage
    of almost nothing tells nobody anything."""
    if ratio >= _ALMOST_NOTHING:
        return f"×{_ALMOST_NOTHING:,} or more"
    return f"×{ratio:.0f}" if ratio >= _A_FACTOR else signed_share(ratio - 1)


def signed_share(share: float) -> str:
    """`+4.2 %` of 0.042; nothing that is seen has no sign."""
    if math.isnan(share):
        return units.UNKNOWN
    shown = f"{100 * share:+.1f}"
    return f"{shown if float(shown) else '0.0'} %"


def ends(interval: Interval, show: Callable[[float], str]) -> str:
    """`1.0 to 2.0`, or one figure where both read the same; empty where an end is unknown."""
    if math.isnan(interval.low) or math.isnan(interval.high):
        return ""
    return units.between(show(interval.low), show(interval.high))


def columns(what: str, before: str, after: str) -> tuple[Column, ...]:
    """Of a table of changes, with an interval on pages that have the room."""
    return (
        Column(what),
        Column(before, right=True),
        Column(after, right=True),
        Column("change", right=True),
        Column("95 %", right=True, least_width=60),
    )


def factor(name: str, value: float) -> str:
    """A factor of goodput: a share, or tokens for each device-second."""
    return units.count(value) if name == "peak rate" else units.share(value)
