"""When each stage ran within each step: what a step looks like, one by one and in the mean."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rltrace.analysis.activity import Activity
from rltrace.analysis.intervals import Intervals, Ints, of_spans, union
from rltrace.analysis.steps import Steps
from rltrace.trace.vocabulary import Stage

PARTS = 120
"""Equal parts that each step is cut into."""


@dataclass(frozen=True)
class StepShapes:
    """`busy` has the part (0 to 1) of each of `PARTS` equal parts of a step during which any
    process was in a stage. Shape (steps, stages, parts); `places` are the steps' places in
    `Steps.windows`, `stages` those that ran in any step. `mean_busy` is the mean of the steady ones
    among them."""

    places: tuple[int, ...]
    stages: tuple[Stage, ...]
    busy: NDArray[np.float32]
    mean_busy: NDArray[np.float32]


def step_shapes(activity: Activity, steps: Steps, most: int) -> StepShapes | None:
    """The shapes of at most `most` steps, evenly spread; None where there is no step."""
    windows = steps.windows
    if not windows:
        return None
    places = sorted({round(x) for x in np.linspace(0, len(windows) - 1, min(most, len(windows)))})
    chosen = [windows[i] for i in places]
    edges = np.concatenate(
        [
            window.start_ns + np.linspace(0, window.end_ns - window.start_ns, PARTS + 1, dtype=int)
            for window in chosen
        ]
    )
    spent = np.zeros((len(Stage), len(edges)))
    for since, until, intervals in activity.slices(chosen[0].start_ns, chosen[-1].end_ns):
        start, end = intervals.start.clip(since, until), intervals.end.clip(since, until)
        stages = union(of_spans(intervals.group, start, end, intervals.lane))
        for code in np.unique(stages.group):
            mine = stages.take(stages.group == code)
            spent[code] += _time_before(mine, edges)
    lengths = np.array([window.end_ns - window.start_ns for window in chosen], np.float64)
    each = np.diff(spent.reshape(len(Stage), len(chosen), PARTS + 1), axis=2)
    with np.errstate(all="ignore"):
        busy = np.nan_to_num(each / (lengths[None, :, None] / PARTS)).clip(0, 1)
    seen = [stage for stage in Stage if stage is not Stage.STEP and busy[stage].any()]
    shaped = busy[seen].transpose(1, 0, 2).astype(np.float32)
    steady = np.flatnonzero(np.isin(places, steps.steady)).tolist()
    return StepShapes(tuple(places), tuple(seen), shaped, shaped[steady or slice(None)].mean(0))


def _time_before(stage: Intervals, edges: Ints) -> NDArray[np.float64]:
    """How long a stage (a union, in order) had run before each edge, ns."""
    length = np.concatenate([[0], np.cumsum(stage.end - stage.start)])
    begun = np.searchsorted(stage.start, edges, side="right")
    over = np.maximum(0, np.append(0, stage.end)[begun] - edges)
    before: NDArray[np.float64] = length[begun] - np.where(begun > 0, over, 0)
    return before
