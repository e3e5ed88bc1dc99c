"""How a figure changed from one run to another, in words and as a table's columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from rltrace.analysis.gate.findings import FactorChange, StageChange
from rltrace.analysis.stats.interval import Interval
from rltrace.report import units
from rltrace.report.layout import Grid, numbers, table

_A_FACTOR = 10
_ALMOST_NOTHING = 1000
"""Times what it was before: that was almost none."""
_MOST_STAGES = 7
_LEAST_SEEN = 1e-3  # of the longest stage; of what is shorter there is nothing to see
ONCE = "one value a run"
"""Stands for the interval of a factor that is measured once a run."""


GOODPUT = "goodput"
"""The row of the factors' product."""
_RATES = (GOODPUT, "peak rate")  # tokens; all else is a share


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
    """`+4.2 %` of a ratio of 1.042. From ten times as much on it is the factor, `38×`: a percentage
    of almost nothing tells nobody anything."""
    if ratio >= _ALMOST_NOTHING:
        return f"{_ALMOST_NOTHING:,}× or more"
    return f"{ratio:.0f}×" if ratio >= _A_FACTOR else signed_share(ratio - 1)


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


def of_factors(factors: Iterable[FactorChange], titles: tuple[str, str, str]) -> Grid | None:
    """How the factors of goodput changed; the interval is for pages that have the room."""
    what, *runs = titles
    rows = []
    for one in factors:
        show = units.count if one.name in _RATES else units.share
        ends_ = ONCE if one.once else ends(one.ratio, change)
        rows.append((one.name, show(one.before), show(one.after), change(one.ratio.value), ends_))
    return table(rows, what, *numbers(*runs, "change", ("95 %", 60)))


def of_stages(stages: Iterable[StageChange], runs: tuple[str, str]) -> Grid | None:
    """How the exposed time of stages changed, what changed most first."""
    by_change = sorted(stages, key=lambda one: -abs(one.after_s - one.before_s))
    longest = max((max(one.before_s, one.after_s) for one in by_change), default=0.0)
    scale = units.scale(longest)
    rows = (
        (
            one.name,
            scale.show(one.before_s),
            scale.show(one.after_s),
            signed_share(one.difference_share.value),
            ends(one.difference_share, signed_share),
        )
        for one in by_change
        if max(one.before_s, one.after_s) > _LEAST_SEEN * longest
    )
    columns = numbers(*runs, "of the step", ("95 %", 60))
    return table([*rows][:_MOST_STAGES], f"exposed, {scale.unit} a step", *columns)
