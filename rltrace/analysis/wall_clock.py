"""Where the wall-clock of a whole run went: every second has one reason.

Around the steps that is start-up, a gap, or a step that failed or never ended; in them a restart,
what warm-up and stalls took beyond a usual step, and else each stage's exposed time, or "in steps",
where that is not known. Evaluation and checkpoints are apart in both.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rltrace.analysis.activity import Activity
from rltrace.analysis.chains import Seconds
from rltrace.analysis.stages import Breakdown, break_down
from rltrace.analysis.steps import Steps, Window
from rltrace.trace.vocabulary import Stage, word

APART = (Stage.EVAL, Stage.CHECKPOINT)
NO_WORK = (Stage.WAIT, Stage.SYNC, Stage.SWITCH, Stage.OTHER)


@dataclass(frozen=True)
class SecondsOf:
    """Wall-clock seconds with one reason, and their share of the run. `lost`: no work of a stage
    held the run up then. `in_steps`: within the time that counts as available."""

    reason: str
    seconds: float
    share: float
    lost: bool
    in_steps: bool


@dataclass(frozen=True)
class WallClock:
    """A whole run of `wall_s` seconds. `parts` add up to it, longest first. `available_s` is the
    time in steps that counts: without those done again, evaluation, checkpoints and what warm-up
    and stalls took longer. `kept` is the part of each step's work (place in `Steps.windows`) that
    is in it."""

    wall_s: float
    available_s: float
    parts: tuple[SecondsOf, ...]
    kept: Seconds
    done_again: tuple[Window, ...]

    @property
    def availability(self) -> float:
        """Available over wall-clock time."""
        return self.available_s / self.wall_s


def wall_clock(
    activity: Activity, steps: Steps, breakdown: Breakdown, since_ns: int, until_ns: int
) -> WallClock | None:
    """The time from `since_ns` to `until_ns` (Unix ns); None where the run records no steps."""
    if steps.whole_run and not steps.in_progress:
        return None
    windows = () if steps.whole_run else steps.windows
    since_ns = min([since_ns, *(w.start_ns for w in windows[:1])])
    until_ns = max([until_ns, *(w.end_ns for w in windows[-1:])])
    if until_ns <= since_ns:
        return None
    seconds = _around(activity, steps, windows, since_ns, until_ns)
    again = _done_again(windows)
    kept = np.zeros(len(windows))
    in_steps: dict[str, float] = defaultdict(float)
    if windows:
        apart_s = breakdown.exposed_s[:, list(APART)]
        rest_s = breakdown.steps_s - apart_s.sum(axis=1)
        seconds["steps done again"] += breakdown.steps_s[again].sum()
        once = ~again
        for column, stage in enumerate(APART):
            seconds[word(stage)] += apart_s[once, column].sum()
        usual = _usual_share(steps, breakdown)
        beyond_s = rest_s * (1 - usual)
        warm = np.array([w.warmup for w in windows])
        seconds["warm-up, beyond a usual step"] += beyond_s[once & warm].sum()
        seconds["stalls, beyond a usual step"] += beyond_s[once & ~warm].sum()
        part = kept = np.where(once, usual, 0.0)
        for stage in Stage:
            if stage not in APART and stage is not Stage.STEP:
                in_steps[word(stage)] += (breakdown.exposed_s[:, stage] * part).sum()
        in_steps["no span"] += (breakdown.unattributed_s * part).sum()
    wall_s = (until_ns - since_ns) / 1e9
    idle = {word(stage) for stage in NO_WORK} | {"no span"}
    parts = [
        SecondsOf(name, float(s), float(s) / wall_s, not inside or name in idle, inside)
        for inside, known in ((False, seconds), (True, in_steps))
        for name, s in known.items()
        if s > 0
    ]
    return WallClock(
        wall_s=wall_s,
        available_s=float(sum(in_steps.values())),
        parts=tuple(sorted(parts, key=lambda one: -one.seconds)),
        kept=kept,
        done_again=tuple(w for w, twice in zip(windows, again, strict=True) if twice),
    )


def _around(
    activity: Activity, steps: Steps, windows: tuple[Window, ...], since_ns: int, until_ns: int
) -> dict[str, float]:
    """Seconds outside of the steps, by reason."""
    edges = [since_ns, *(t for w in windows for t in (w.start_ns, w.end_ns)), until_ns]
    gaps = [Window(-1, a, b, -1, False) for a, b in zip(edges[::2], edges[1::2], strict=True)]
    apart_s = np.zeros((len(gaps), len(APART)))
    if any(stage in activity.spans_of_stage for stage in APART):
        around = break_down(activity, Steps(tuple(gaps), True, (), 0))
        apart_s = around.exposed_s[:, list(APART)]
    rest_s = np.array([gap.length_s for gap in gaps]) - apart_s.sum(axis=1)
    seconds: dict[str, float] = defaultdict(float)
    for column, stage in enumerate(APART):
        seconds[word(stage)] += apart_s[:, column].sum()
    failed_s = np.zeros(len(gaps))
    for _, start, next_ns in steps.failed:
        place = max(i for i, gap in enumerate(gaps) if gap.start_ns <= max(start, since_ns))
        failed_s[place] += (min(next_ns, gaps[place].end_ns) - start) / 1e9
    failed_s = np.clip(failed_s, 0.0, rest_s)
    seconds["steps that failed"] += failed_s.sum()
    rest_s -= failed_s
    begun = [start for _, start in steps.in_progress if start >= gaps[-1].start_ns]
    unfinished_s = min((until_ns - min(begun)) / 1e9, rest_s[-1]) if begun else 0.0
    seconds["a step that never ended"] += unfinished_s
    rest_s[-1] -= unfinished_s
    seconds["start-up"] += rest_s[0]
    seconds["between steps"] += rest_s[1:-1].sum()
    seconds["after the last step"] += rest_s[-1] if windows else 0.0
    return seconds


def _done_again(windows: tuple[Window, ...]) -> NDArray[np.bool_]:
    """Which steps came again later, or a smaller number did: their work was thrown away."""
    numbers = np.array([w.step for w in windows], np.int64)
    if not len(numbers):
        return np.zeros(0, np.bool_)
    later = np.append(np.minimum.accumulate(numbers[::-1])[::-1][1:], np.iinfo(np.int64).max)
    return (numbers >= 0) & (later <= numbers)


def _usual_share(steps: Steps, breakdown: Breakdown) -> Seconds:
    """The part of each step of warm-up, or that stalled, that a usual step of its kind would have
    taken; 1 for the others."""
    odd = np.array([w.warmup for w in steps.windows])
    odd[list(steps.stalled)] = True
    if not odd.any() or odd.all():
        return np.ones(len(odd))
    generates = np.array([w.generates for w in steps.windows])
    usual_s = np.zeros(len(odd))
    for kind in (True, False):
        alike = ~odd & (generates == kind)
        known = alike if alike.any() else ~odd
        usual_s[generates == kind] = np.median(breakdown.steps_s[known])
    with np.errstate(all="ignore"):
        share = np.nan_to_num(usual_s / breakdown.steps_s, nan=1.0)
    return np.where(odd, np.minimum(1.0, share), 1.0)
