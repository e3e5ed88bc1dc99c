"""When each stage ran within a usual step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rltrace.analysis.activity import Activity
from rltrace.analysis.intervals import Floats, of_spans, union
from rltrace.analysis.steps import Steps, Window
from rltrace.trace.vocabulary import Stage, word

TYPICAL_PARTS = 240
"""Equal parts of it; many numbers of columns divide it."""


@dataclass(frozen=True)
class TypicalStep:
    """The steady step nearest to the median length. `busy` has, for each stage seen in it, the part
    (0 to 1) of each of `TYPICAL_PARTS` equal parts of the step during which any process was in it.
    """

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
    busy = _busy(activity, window)
    shares = {word(stage): tuple(busy[stage].tolist()) for stage in Stage if busy[stage].any()}
    return TypicalStep(window.step, window.length_s, shares)


def _busy(activity: Activity, window: Window) -> Floats:
    """The share of each part of a step in which a stage ran. Shape (stages, parts)."""
    length = window.end_ns - window.start_ns
    edges = np.linspace(0, length, TYPICAL_PARTS + 1)
    ran = np.zeros((len(Stage), len(edges)))
    for since, until, pieces in activity.slices(window.start_ns, window.end_ns):
        start, end = (
            times.clip(since, until) - window.start_ns for times in (pieces.start, pieces.end)
        )
        stages = union(of_spans(pieces.group, start, end, pieces.lane))
        for code in np.unique(stages.group):
            ran[code] += stages.take(stages.group == code).until(edges)
    with np.errstate(all="ignore"):
        share = np.diff(ran, axis=1) / (length / TYPICAL_PARTS)
    return np.asarray(np.nan_to_num(share).clip(0, 1))
