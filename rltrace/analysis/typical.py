"""What one usual step looked like: when each stage ran in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rltrace.analysis.activity import Activity
from rltrace.analysis.intervals import Intervals, joined, of_spans, union
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
    stages = _stages_within(activity, window.start_ns, window.end_ns)
    edges = np.linspace(0, window.end_ns - window.start_ns, PARTS + 1)
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


def _stages_within(activity: Activity, start_ns: int, end_ns: int) -> Intervals:
    """The union of each stage in a window, ns since its start."""
    parts = []
    for since, until, stages in activity.slices(start_ns, end_ns):
        left, right = max(start_ns, since), min(end_ns, until)
        if left < right:
            start, end = stages.start.clip(left, right), stages.end.clip(left, right)
            whole = of_spans(stages.group, start - start_ns, end - start_ns, stages.lane)
            parts.append(whole.take(end > start))
    return union(joined(parts))
