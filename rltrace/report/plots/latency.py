"""How long trajectories and verdicts take, as cumulative shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rltrace.analysis.activity import read_activity
from rltrace.analysis.cut_short import whole_steps
from rltrace.analysis.distributions import SHARES, distributions
from rltrace.analysis.steps import find_steps
from rltrace.report import units
from rltrace.report.plots.paper import axes, colour, nothing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from rltrace.trace.run import Run

_STAGE = {"latency": "rollout", "verdict latency": "reward"}
_NAMED = {"latency": "trajectories", "verdict latency": "verdicts"}
_MARKED = (0.5, 0.99)


def latency(run: Run, ax: Axes | None = None) -> Axes:
    """The share of trajectories, and of verdicts, that took at most so many seconds, after warm-up;
    p50 and p99 are marked. Errors: see `axes`."""
    ax = axes(ax, 7, 4)
    run = whole_steps(run)
    activity = read_activity(run)
    steps = find_steps(run, (activity.first_ns, activity.last_ns))
    found = [one for one in distributions(run, steps) if one.unit == "s"]
    if not found:
        return nothing(ax, "no trajectory was seen to end")
    for one in found:
        shade = colour(_STAGE[one.name])
        ax.plot(one.values, SHARES, color=shade, label=f"{one.n:,} {_NAMED[one.name]}")
        for share in _MARKED:
            value = one.values[SHARES.index(share)]
            ax.plot([value], [share], "o", color=shade, ms=4)
            said = f"p{100 * share:.0f} {units.seconds(value)}"
            ax.annotate(said, (value, share), (5, -11), textcoords="offset points", fontsize=9)
    if min(one.values[0] for one in found) > 0:
        ax.set_xscale("log")
    ax.set(xlabel="seconds", ylabel="share that took at most this", ylim=(0, 1.02))
    ax.yaxis.set_major_formatter(lambda y, _: units.share(y))
    ax.set_title("Latency")
    ax.legend(frameon=False, loc="lower right")
    return ax
