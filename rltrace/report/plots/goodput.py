"""Goodput as a cascade of its factors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rltrace.report import units
from rltrace.report.plots.paper import axes, colours, nothing, text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from rltrace.analysis.summary import Summary

_PEAK = "peak rate"


def goodput(summary: Summary, ax: Axes | None = None) -> Axes:
    """Tokens for each device-second: from the rate at which work generates them down to what was
    useful and fresh; each factor leaves the solid part of what was there before. Errors: see
    `axes`."""
    ax = axes(ax, 9, 4)
    cascade = summary.cascade
    peak = next((f.value for f in cascade.factors if f.name == _PEAK), 0) if cascade else 0
    if cascade is None or not peak or math.isnan(peak):
        return nothing(ax, "what goodput is made of is not known: see rltrace report")
    shades = colours()
    names, level = ["generated while at work"], peak
    ax.barh([0], [peak], color=shades["bar"], label="left")
    _say(ax, 0, peak, units.count(peak))
    for factor in cascade.factors:
        if factor.name == _PEAK:
            continue
        place, left = len(names), level * factor.value
        names.append(factor.name)
        if math.isnan(left):
            _say(ax, place, 0, f"unknown: {factor.basis}")
            break
        ax.barh([place], [left], color=shades["bar"])
        ax.barh([place], [level - left], left=left, color=shades["lost"], alpha=0.6, label="lost")
        _say(ax, place, level, f"× {units.share(factor.value)}")
        level = left
    else:
        ax.barh([len(names)], [level], color=shades["good"], label="goodput")
        _say(ax, len(names), level, units.count(level))
        names.append("goodput")
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set(xlabel=text(f"tokens per {cascade.device or 'device'}-second of the whole run"))
    ax.set_title("From what was generated to what was useful and fresh")
    ax.margins(x=0.15)
    return ax


def _say(ax: Axes, place: int, at: float, text: str) -> None:
    ax.annotate(text, (at, place), (5, 0), textcoords="offset points", va="center")
