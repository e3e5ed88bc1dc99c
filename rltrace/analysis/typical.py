"""What one usual step looked like: when each stage ran in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rltrace.analysis.activity import CODES, Activity
from rltrace.analysis.intervals import Intervals, union
from rltrace.analysis.steps import Steps
from rltrace.trace.vocabulary import Stage, word

PARTS = 240
"""Equal parts that the step is cut into; many numbers of columns divide it."""


@dataclass(frozen=True)
class TypicalStep:
    """The steady step nearest to the median length. `busy` has, for each stage seen in it, the part
    (0 to 1) of each of `PARTS` equal parts of the step during which any process was in it."""

    step: int
    seconds: float
    busy: dict[str, tuple[float, ...]]


def typical_step(activity: Activity, steps: Steps) -> TypicalStep | None:
    """The typical step, or the whole run where it has no steps; None where there is neither."""
    steady = [steps.windows[i] for i in steps.steady]
    if not steady:
        return None
    lengths = np.array([window.length_s for window in steady])
    window = steady[int(np.argmin(np.abs(lengths - np.median(lengths))))]
    pieces = activity.pieces
    within = pieces.take((pieces.start < window.end_ns) & (pieces.end > window.start_ns))
    stages = union(
        Intervals(within.group % CODES, within.start, within.end, within.lane, within.one_lane)
    )
    edges = np.linspace(window.start_ns, window.end_ns, PARTS + 1)
    busy = {}
    for code in np.unique(stages.group):
        mine = stages.take(stages.group == code)
        # Time in the stage before each edge, whose differences are the time within each part.
        length = np.concatenate([[0], np.cumsum(mine.end - mine.start)])
        begun = np.searchsorted(mine.start, edges, side="right")
        over = np.maximum(0, np.append(0, mine.end)[begun] - edges)
        spent = length[begun] - np.where(begun > 0, over, 0)
        share = np.diff(spent) / np.diff(edges)
        busy[word(Stage(code))] = tuple(float(x) for x in np.clip(share, 0, 1))
    return TypicalStep(window.step, window.length_s, busy)
