"""Single steps that took far longer than the usual one: a hiccup of the machine, a retry, a lock.

They say nothing of what the others wait for. So a run is judged by the longest stretch of steps
without one, as long as that is what the run is: they are few, or lie together at one end; they took
the smaller part of its time; and what held them up is work that holds up every step. Where it is
not, long steps may be how the job is made (samples for ten updates come at once), and nobody can
tell which.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rltrace.analysis.alarms.alarm import LOST_SHARE, STALL_TIMES
from rltrace.analysis.chains import Seconds
from rltrace.analysis.stages import Breakdown
from rltrace.analysis.steps import FEWEST_ALIKE, Steps, held_against
from rltrace.trace.vocabulary import Stage

_LEAST_STALL_S = 0.1
"""What is less than this beyond the usual is the scheduler's doing on a busy machine, no stall."""

_LONG_BY_NATURE = (Stage.EVAL, Stage.CHECKPOINT)
_NO_WORK = (Stage.WAIT, Stage.OTHER, Stage.STEP)
_FEW = 10
"""Of so many steps one may stall; one may in any run."""

_MOST_SHARE = 0.5


@dataclass(frozen=True)
class Stalls:
    """`places` of the steps that stalled in `Steps.windows`. They took `took_s` seconds where
    `usual_s` are usual, which is `lost_share` of the time of the steps after warm-up. `stage` has
    most of what was more (None: no span). `left_out`: whether the run is judged without them."""

    places: tuple[int, ...]
    took_s: float
    usual_s: float
    lost_share: float
    stage: Stage | None
    left_out: bool

    @property
    def grave(self) -> bool:
        """Whether they cost a part of the run that matters."""
        return self.lost_share >= LOST_SHARE


def find_stalls(steps: Steps, breakdown: Breakdown) -> Stalls | None:
    """The stalls among the steps after warm-up; None where there is none."""
    settled = [] if steps.whole_run else list(steps.settled)
    own_s = _own_s(breakdown)
    generates = [window.generates for window in steps.windows]
    alike = held_against(settled, generates)
    usually = {one: np.median(own_s[alike[one]]) if alike[one] else np.nan for one in alike}
    alike_s = np.where(generates, usually[True], usually[False])
    least_s = np.maximum(STALL_TIMES * alike_s, alike_s + _LEAST_STALL_S)  # NaN: nothing is longer
    stalled = [i for i in settled if own_s[i] > least_s[i]]
    while stalled and stalled[0] == settled[0]:  # slow first steps are warm-up, in a short run too
        stalled, settled = stalled[1:], settled[1:]
    if not stalled:
        return None
    took_s, usually_s = float(own_s[stalled].sum()), float(alike_s[stalled].sum())
    found = Stalls(
        places=tuple(stalled),
        took_s=took_s,
        usual_s=usually_s,
        lost_share=(took_s - usually_s) / float(breakdown.steps_s[settled].sum()),
        stage=_where(stalled, generates, alike, breakdown),
        left_out=False,
    )
    return replace(found, left_out=found.grave and _can_do_without(steps, breakdown, found))


def without_stalls(steps: Steps, breakdown: Breakdown) -> Steps:
    """`steps`, whose steady ones are the longest stretch without a stall; `steps` itself where none
    stalled, where stalls cost little, and where the run cannot be judged without them."""
    found = find_stalls(steps, breakdown)
    return replace(steps, stalled=found.places) if found and found.left_out else steps


def usual_step_s(steps: Steps, breakdown: Breakdown) -> float:
    """Median length of a step after warm-up without evaluation and checkpoints, where only some
    generate of one that does: of a step in progress nobody knows yet. NaN for too few."""
    settled = list(steps.settled)
    if steps.whole_run or len(settled) < FEWEST_ALIKE:
        return float("nan")
    long = [i for i in settled if steps.windows[i].generates]
    return float(np.median(_own_s(breakdown)[long or settled]))


def _own_s(breakdown: Breakdown) -> Seconds:
    own: Seconds = breakdown.steps_s - breakdown.exposed_s[:, list(_LONG_BY_NATURE)].sum(axis=1)
    return own


def _where(
    stalled: list[int], generates: list[bool], alike: dict[bool, list[int]], breakdown: Breakdown
) -> Stage | None:
    """The stage that has most of what the stalled steps took more than usual ones."""
    spent_s = np.column_stack([breakdown.exposed_s, breakdown.untraced_s])
    more_s = np.zeros(spent_s.shape[1])
    for kind, peers in alike.items():
        mine = [i for i in stalled if generates[i] == kind]
        if mine:
            more_s += (spent_s[mine] - np.median(spent_s[peers], axis=0)).sum(axis=0)
    more_s[list(_LONG_BY_NATURE)] = 0.0
    worst = int(np.argmax(more_s[:-1]))
    return None if more_s[-1] > more_s[worst] else Stage(worst)


def _can_do_without(steps: Steps, breakdown: Breakdown, found: Stalls) -> bool:
    settled, stalled = list(steps.settled), list(found.places)
    left = list(replace(steps, stalled=found.places).unbroken)
    few = len(stalled) <= max(1, len(settled) // _FEW)
    # The half of the run, or more, from its begin or to its end has no stall: long steps that are
    # of the job come again and again.
    at_an_end = bool(left) and (left[0] == settled[0] or left[-1] == settled[-1])
    at_one_end = at_an_end and 2 * len(left) >= len(settled)
    if len(left) < FEWEST_ALIKE or not (few or at_one_end):
        return False
    took_s = float(breakdown.steps_s[stalled].sum())
    if took_s > _MOST_SHARE * float(breakdown.steps_s[settled].sum()):
        return False
    if found.stage is None or found.stage in _NO_WORK:
        return True
    usually_s = float(breakdown.tau_s[left, found.stage].sum())
    exposed_s = float(breakdown.exposed_s[left, found.stage].sum())
    return exposed_s > usually_s / 2  # else it is work for other steps, which shows in some
