"""When each stage ran within a step: each one, their mean, and a usual one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rltrace.analysis.activity import Activity
from rltrace.analysis.intervals import Floats, Ints, of_spans, union
from rltrace.analysis.steps import Steps, Window
from rltrace.trace.vocabulary import Stage, word

PARTS = 120
"""Equal parts that each step is cut into."""
TYPICAL_PARTS = 240
"""Those of the typical step; many numbers of columns divide it."""


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


@dataclass(frozen=True)
class TypicalStep:
    """The steady step nearest to the median length. `busy` has, for each stage seen in it, the part
    (0 to 1) of each of `TYPICAL_PARTS` equal parts of the step during which any process was in it.
    """

    step: int
    seconds: float
    busy: dict[str, tuple[float, ...]]


def step_shapes(activity: Activity, steps: Steps, most: int) -> StepShapes | None:
    """The shapes of at most `most` steps, evenly spread; None where there is no step."""
    windows = steps.windows
    if not windows:
        return None
    places = sorted({round(x) for x in np.linspace(0, len(windows) - 1, min(most, len(windows)))})
    lengths = [window.end_ns - window.start_ns for window in windows]
    edges = np.array([np.linspace(0, lengths[i], PARTS + 1, dtype=int) for i in places])
    busy = _busy(activity, [windows[i] for i in places], edges)
    seen = [stage for stage in Stage if busy[stage].any()]
    shaped = busy[seen].transpose(1, 0, 2).astype(np.float32)
    steady = np.flatnonzero(np.isin(places, steps.steady)).tolist()
    return StepShapes(tuple(places), tuple(seen), shaped, shaped[steady or slice(None)].mean(0))


def typical_step(activity: Activity, steps: Steps) -> TypicalStep | None:
    """The typical step, or the whole run where it has no steps; None where there is neither."""
    steady = [steps.windows[i] for i in steps.steady]
    if not steady:
        return None
    lengths = np.array([window.length_s for window in steady])
    window = steady[int(np.argmin(np.abs(lengths - np.median(lengths))))]
    edges = np.linspace(0, window.end_ns - window.start_ns, TYPICAL_PARTS + 1)
    (busy,) = _busy(activity, [window], edges[None]).transpose(1, 0, 2)
    shares = {word(stage): tuple(busy[stage].tolist()) for stage in Stage if busy[stage].any()}
    return TypicalStep(window.step, window.length_s, shares)


def _busy(activity: Activity, windows: Sequence[Window], edges: Ints | Floats) -> Floats:
    """The share of each part of these steps in which a stage ran. Shape (stages, steps, parts);
    `edges` of parts, by step, are ns since its start."""
    first_ns, last_ns = windows[0].start_ns, windows[-1].end_ns
    begins = np.array([window.start_ns - first_ns for window in windows])
    lengths = np.array([window.end_ns - window.start_ns for window in windows], np.float64)
    moments = begins[:, None] + edges
    ran = np.zeros((len(Stage), *edges.shape))
    for since, until, pieces in activity.slices(first_ns, last_ns):
        start, end = (times.clip(since, until) - first_ns for times in (pieces.start, pieces.end))
        stages = union(of_spans(pieces.group, start, end, pieces.lane))
        for code in np.unique(stages.group):
            ran[code] += stages.take(stages.group == code).until(moments)
    with np.errstate(all="ignore"):
        share = np.diff(ran, axis=2) / (lengths[:, None] / (edges.shape[1] - 1))
    return np.asarray(np.nan_to_num(share).clip(0, 1))
