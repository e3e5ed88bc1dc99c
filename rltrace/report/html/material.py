"""Everything that the page shows, read once: the summary, and what pictures need beyond it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rltrace.analysis.activity import Activity, read_activity
from rltrace.analysis.cut_short import whole_steps
from rltrace.analysis.device_load import DeviceLoad, device_load, in_flight
from rltrace.analysis.lag_history import LagHistory, lag_history
from rltrace.analysis.step_shapes import StepShapes, step_shapes
from rltrace.analysis.steps import Steps, find_steps
from rltrace.analysis.summary import Summary
from rltrace.analysis.syncs import Update, updates_of
from rltrace.analysis.tail import Distribution, distributions

if TYPE_CHECKING:
    from rltrace.trace.run import Run

MOST_BARS = 240
"""More steps than this are drawn in groups."""
MOST_SHAPES = 240
MOST_LAGS = 12
TIME_PARTS = 200
"""Equal parts of the run's time in a strip or curve over it."""


@dataclass(frozen=True)
class Material:
    """`since_ns` to `until_ns` is the time that strips and the timeline show (Unix ns)."""

    run: Run
    summary: Summary
    activity: Activity
    steps: Steps
    since_ns: int
    until_ns: int
    shapes: StepShapes | None
    distributions: tuple[Distribution, ...]
    flying: NDArray[np.float64]
    lags: LagHistory | None
    updates: tuple[Update, ...]
    loads: tuple[DeviceLoad, ...]


def gather(run: Run, summary: Summary) -> Material:
    """Reads what is not in the summary; as that of `whole_steps`."""
    run = whole_steps(run)
    activity = read_activity(run)
    steps = find_steps(run, (activity.first_ns, activity.last_ns))
    since, until = _shown(run, activity)
    if since and summary.coverage.in_progress:  # what hangs does so until the end
        until = max(until, summary.run.shown_ns + int(summary.run.recorded_s * 1e9))
    return Material(
        run=run,
        summary=summary,
        activity=activity,
        steps=steps,
        since_ns=since,
        until_ns=until,
        shapes=step_shapes(activity, steps, MOST_SHAPES),
        distributions=distributions(run, steps),
        flying=in_flight(run, since, until, TIME_PARTS),
        lags=lag_history(run, steps, MOST_BARS // 2, MOST_LAGS),
        updates=updates_of(run),
        loads=device_load(run, since, until, TIME_PARTS),
    )


def _shown(run: Run, activity: Activity) -> tuple[int, int]:
    """From the first to the last thing that is a slice of the timeline."""
    first, last = [activity.first_ns], [activity.last_ns]
    for table in ("trajectories", "rewards", "syncs"):
        low, high = run.ask(
            f"select min(start_ns), max(greatest(start_ns, end_ns)) from raw_{table} "
            "where start_ns > 0"
        )[0]
        first += [low or 0]
        last += [high or 0]
    began = [moment for moment in first if moment > 0]
    return (min(began), max(last)) if began else (0, 0)
