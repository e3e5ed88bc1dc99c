"""What part of a step each stage takes, and how much of its work hides behind others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rltrace.report import units
from rltrace.report.plots.paper import axes, colour, nothing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from rltrace.analysis.summary import Summary

_HIDDEN = 0.35


def stages(summary: Summary, ax: Axes | None = None) -> Axes:
    """Mean seconds a step by stage: solid where it holds the step up (with its share of the step),
    pale where it runs behind another, or where nobody knows. Errors: see `axes`."""
    ax = axes(ax, 8, 4)
    rows = [row for row in summary.stages if row.tau_s.n]
    if not rows:
        return nothing(ax, "no stage was seen in a step")
    places = np.arange(len(rows))
    exposed = np.array([row.exposed_s.mean for row in rows])
    hidden = np.nan_to_num([row.hidden_s.mean for row in rows])
    if summary.steps.exposed_unknown:
        exposed, hidden = np.zeros(len(rows)), np.array([row.tau_s.mean for row in rows])
    shades = [colour(row.name) for row in rows]
    ax.barh(places, exposed, color=shades, label="exposed")
    ax.barh(places, hidden, left=exposed, color=shades, alpha=_HIDDEN, label="hidden")
    for place, row, end in zip(places, rows, exposed + hidden, strict=True):
        ax.annotate(
            units.share(row.share), (end, place), (4, 0), textcoords="offset points", va="center"
        )
    ax.set_yticks(places, [f"{row.name} {row.symbol}".strip() for row in rows])
    ax.invert_yaxis()
    pale = "what held the step up is unknown" if summary.steps.exposed_unknown else ""
    ax.set(xlabel=f"mean seconds a step; pale: {pale or 'behind another stage'}")
    ax.set_title("Stages, and their share of the step")
    ax.margins(x=0.12)
    return ax
