"""Every step as a column of the seconds that each stage held it up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rltrace.report.plots.paper import axes, colour, nothing, stage_legend, whole_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from rltrace.analysis.summary import Summary

_UNATTRIBUTED = "unattributed"


def steps(summary: Summary, ax: Axes | None = None) -> Axes:
    """The exposed seconds of each stage in each step, which add up to the step; warm-up is marked.
    Errors: see `axes`."""
    ax = axes(ax, 10, 4)
    times = summary.steps.times
    if not times:
        return nothing(ax, "no step was completed")
    if summary.steps.exposed_unknown:
        return nothing(ax, f"what held each step up is unknown: {summary.steps.exposed_unknown}")
    seen = [row.name for row in summary.stages]
    parts = {name: [step.exposed_s.get(name, 0.0) for step in times] for name in seen}
    parts[_UNATTRIBUTED] = [step.unattributed_s for step in times]
    edges = np.arange(len(times) + 1) - 0.5
    level = np.zeros(len(times))
    shown = []
    for name, seconds in parts.items():
        if not any(seconds):
            continue
        shown.append(name)
        top = level + seconds
        ax.stairs(top, edges, baseline=level, fill=True, color=colour(name), label=name)
        level = top
    warm = sum(step.warmup for step in times)
    if warm:
        ax.axvspan(-0.5, warm - 0.5, color="black", alpha=0.06, lw=0)
        ax.annotate("warm-up", (-0.5, 1), xycoords=("data", "axes fraction"), va="bottom")
    numbers = [str(step.step) for step in times]
    whole_numbers(ax)
    ax.xaxis.set_major_formatter(lambda x, _: numbers[round(x)] if 0 <= x < len(times) else "")
    ax.set(xlabel="step", ylabel="seconds", xlim=(edges[0], edges[-1]), ylim=(0, None))
    ax.set_title("What held each step up")
    stage_legend(ax, reversed(shown))
    return ax
