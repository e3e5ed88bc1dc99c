"""How stale the samples were that were trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rltrace.report import units
from rltrace.report.plots.paper import axes, colours, nothing, whole_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from rltrace.analysis.summary import Summary


def lags(summary: Summary, ax: Axes | None = None) -> Axes:
    """The share of the trained trajectories (under each version anew) with each lag, from their
    first token; those whose lag nobody recorded stand apart. Errors: see `axes`."""
    ax = axes(ax, 7, 4)
    found = summary.staleness
    if not found.trajectories:
        return nothing(ax, "nothing was seen to be trained on")
    known = [bar for bar in found.by_first_token if bar.lag is not None]
    of = found.uses
    if known:
        shares = [bar.trajectories / of for bar in known]
        ax.bar([bar.lag for bar in known], shares, color=colours()["bar"], label="known")
    title = "No lag is known"
    if found.known_uses:
        title = f"Lag: mean {found.mean_lag:.2f}, 95 % at most {found.p95_lag:.0f}"
    last = max((bar.lag or 0 for bar in known), default=0)
    if found.known_uses < of:
        last += 2
        share = (of - found.known_uses) / of
        ax.bar([last], [share], color=colours()["lost"], label="unknown", hatch="//")
        ax.annotate("unknown", (last, share), (0, 2), textcoords="offset points", ha="center")
    ax.set(xlabel=f"lag, {found.unit}", ylabel="share of trained trajectories")
    whole_numbers(ax)
    ax.set_xlim(min((bar.lag or 0 for bar in known), default=last) - 0.7, last + 0.7)
    ax.yaxis.set_major_formatter(lambda y, _: units.share(y))
    ax.set_title(title)
    return ax
