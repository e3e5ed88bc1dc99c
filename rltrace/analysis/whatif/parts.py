"""What the other parts of the analysis say of a run, read once for all that is asked of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rltrace.analysis.activity import Activity, read_activity
from rltrace.analysis.composition import Composition, compose
from rltrace.analysis.goodput import Goodput, goodput
from rltrace.analysis.order_statistics import Floats
from rltrace.analysis.stages import Breakdown, break_down
from rltrace.analysis.staleness import Staleness, staleness
from rltrace.analysis.stalls import without_stalls
from rltrace.analysis.steps import Steps, find_steps
from rltrace.analysis.syncs import Syncs, syncs

if TYPE_CHECKING:
    from rltrace.trace.run import Run


@dataclass(frozen=True)
class Parts:
    """What other parts of the analysis say of a run."""

    activity: Activity
    steps: Steps
    breakdown: Breakdown
    composition: Composition | None
    staleness: Staleness
    syncs: Syncs | None
    goodput: Goodput | None


def parts_of(
    run: Run, price_usd_per_hour: float | None = None, lag_budget: float = math.inf
) -> Parts:
    """Reads them from the run. The price (of a device) overrides the run's and the table's; the
    budget is the largest lag in policy versions at which a token still counts as useful."""
    activity = read_activity(run)
    steps = find_steps(run, (activity.first_ns, activity.last_ns))
    breakdown = break_down(activity, steps)
    steps = without_stalls(steps, breakdown)
    lags = staleness(run)
    return Parts(
        activity,
        steps,
        breakdown,
        compose(run, steps, breakdown, lags),
        lags,
        syncs(run, steps),
        goodput(run, steps, price_usd_per_hour, lag_budget),
    )


def starts_s(parts: Parts) -> Floats:
    """When each steady step starts, in the time of its samples."""
    windows = [parts.steps.windows[i] for i in parts.steps.steady]
    return np.array([(window.start_ns - windows[0].start_ns) / 1e9 for window in windows])


def mean_step_s(parts: Parts) -> float:
    """Of the steady steps."""
    return float(parts.breakdown.steps_s[list(parts.steps.steady)].mean())
