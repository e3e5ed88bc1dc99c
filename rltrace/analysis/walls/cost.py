"""What steps lose by some stages: exposed, on the path, measured by a probe, or by pace.

Where stages take turns, that is their exposed time. Where two chains run beside each other, only
the time in which theirs ran alone falls away: in a pipeline of lengths A and L without idle time
exactly max(A, L) - max(A - w, L) for stages that take w of A. Exposed time may name stages that
nothing waited for, so where the critical path was followed through chains that overlap, a stage's
time on it takes its place.

A probe delays stages and needs no such rule (`rltrace.analysis.probe`). Where its interval leaves
the computed share out, and by more than a little, the measured share takes its place, and what ran
alone is no bound for it; else the computed one, which is known more sharply, stands confirmed.

Where queues lie between roles that go on by themselves, a step without a stage takes as long as the
slowest role then needs (`rltrace.analysis.pace`). The critical path tells how long steps wait for
it now, which may be much more, so it is an upper limit at most; what it could not follow may have
been any stage's. Of a role that is at work all the time it is none: who waits for room in a queue
is on the path, and not what makes the room.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from rltrace.analysis.binding import ALIKE, FEWEST_STEPS, RESOURCE_OF
from rltrace.analysis.chains import Chain, Seconds
from rltrace.analysis.pace import Pace
from rltrace.analysis.probe import HALF_WIDTH, IN_FULL
from rltrace.analysis.roles import MOVES
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stats.interval import Interval, within
from rltrace.analysis.walls.beside import beside
from rltrace.analysis.walls.wall import TAIL, WEAK, Wall, share_of_steps
from rltrace.trace.vocabulary import Stage

_MOST = 0.8  # of what a wall's stages take: then they count as measured
_SETS = 0.85  # of the step; a role that is at work for more of it sets the pace
_SINK = '`rltrace.weight_update(version, role="sink")`'
_TAKEN = f"updates where weights are taken, too: {_SINK} there, or a hook of stage sync"
_UNKNOWN = (
    "; whether generation stood still while weights were sent is unknown, which "
    f"{_SINK} where they are taken would tell"
)


def stages_of(wall: str) -> tuple[Stage, ...]:
    """The stages that a wall stands for; the tail is one of generation."""
    if wall == TAIL:
        return (Stage.ROLLOUT,)
    return tuple(stage for stage, name in RESOURCE_OF.items() if name == wall)


def relief_s(analysis: RunAnalysis, stages: tuple[Stage, ...]) -> Seconds:
    """By how many seconds each steady step would be shorter if these stages took no time."""
    steps_s, breakdown = analysis.steps_s, analysis.breakdown
    by_pace = paced(analysis, stages)
    if by_pace is not None:
        return np.asarray(steps_s * by_pace.value)
    by_replay = beside(analysis, stages)
    if by_replay is not None:
        return np.asarray(steps_s * by_replay.share)
    right = corrections(analysis)
    relief = held_up_s(analysis, [stage for stage in stages if stage in right])
    for chain in Chain:
        members = [s for s in stages if s not in right and breakdown.chain_of[s] is chain]
        held_s = held_up_s(analysis, members)
        if members and chain is not Chain.WEIGHTS:
            alone_s = np.maximum(0.0, breakdown.chain_s[:, chain] - analysis.overlap_s)
            held_s = np.minimum(held_s, alone_s[analysis.steady])
        relief += held_s
    return relief


# --- how long steps waited for a stage: as computed, or as the probe measured it


@dataclass(frozen=True)
class Measured:
    """A stage that the probe delayed. `share` of the step was measured to wait for it, `computed`
    is what its exposed time or the critical path (`computed_by`) says. `contradicts` and `agrees`:
    neither where the interval is too wide to tell."""

    stage: Stage
    name: str
    share: Interval
    computed: float
    computed_by: str

    @property
    def contradicts(self) -> bool:
        """Whether the computed share is outside of the interval, and far from its middle."""
        far = abs(self.share.value - self.computed) >= ALIKE
        return far and not self.share.contains(self.computed)

    @property
    def agrees(self) -> bool:
        """Whether a sharp interval holds the computed share, or nearly."""
        return not self.contradicts and self.share.half_width <= HALF_WIDTH


def measured(analysis: RunAnalysis) -> tuple[Measured, ...]:
    """The stages whose share was measured. None of those whose doses were given in part only."""
    probe = analysis.probe
    if probe is None or len(analysis.steps_s) < FEWEST_STEPS:
        return ()
    return tuple(
        Measured(one.stage, one.name, one.share, one.computed_share, probe.computed_by)
        for one in probe.stages
        if one.share.known and one.given >= IN_FULL
    )


def corrections(analysis: RunAnalysis) -> dict[Stage, Measured]:
    """The stages of which the probe contradicts what was computed."""
    return {one.stage: one for one in measured(analysis) if one.contradicts}


def is_measured(analysis: RunAnalysis, stages: Iterable[Stage]) -> bool:
    """Whether most of what these stages take was measured: confirmed, or put right."""
    told = {one.stage for one in measured(analysis) if one.agrees or one.contradicts}
    whole = {stage: float(held_up_s(analysis, [stage]).sum()) for stage in stages}
    return 0 < _MOST * sum(whole.values()) <= sum(s for stage, s in whole.items() if stage in told)


def held_up_s(analysis: RunAnalysis, stages: Iterable[Stage]) -> Seconds:
    """Seconds by steady step in which it waited for these stages."""
    right = corrections(analysis)
    total = np.zeros(len(analysis.steady))
    for stage in stages:
        if analysis.followed is not None:
            seconds = analysis.followed.seconds_of(stage, analysis.steady)
        else:
            seconds = analysis.breakdown.exposed_s[analysis.steady, stage]
        if stage in right:
            seconds = _scaled(seconds, right[stage].share.value * analysis.steps_s)
        total += seconds
    return total


def _scaled(computed_s: Seconds, measured_s: Seconds) -> Seconds:
    """The measured seconds, spread over the steps as the computed ones are. A stage may have been
    computed to take nothing; then all steps have their part. Noise may measure less than none."""
    whole = max(0.0, float(measured_s.sum()))
    if not computed_s.sum() > 0:
        return np.clip(measured_s, 0.0, None)
    return np.asarray(computed_s * (whole / float(computed_s.sum())))


# --- where queues lie between the roles of a job
# Where nobody recorded whether generation stood still while weights were sent
# (`rltrace.analysis.stopped`), the bounds have both: weights may cost up to all the time in which
# they were sent, and generation what would be left of it then.


def paced(analysis: RunAnalysis, stages: tuple[Stage, ...]) -> Interval | None:
    """The share of the step that these stages cost, and between which bounds it is; None where no
    queues lie between the roles."""
    return None if analysis.pace is None else _share(analysis, analysis.pace, stages)


def _share(analysis: RunAnalysis, pace: Pace, stages: tuple[Stage, ...]) -> Interval | None:
    if not pace.step_s > 0 or not len(analysis.steps_s):
        return None
    left = pace.without(stages)
    share, high = (1 - seconds / pace.step_s for seconds in (left.middle, left.low))
    most = 1.0
    if not any(role.does(stages) for role in pace.actors):
        most = pace.of_learner_s(stages) / pace.step_s
    if analysis.followed is not None and not (pace.slowest.does(stages) and pace.explained > _SETS):
        on_path = share_of_steps(held_up_s(analysis, stages), analysis.steps_s)
        right = [one.share.half_width for s, one in corrections(analysis).items() if s in stages]
        unknown = sum(right) if right else analysis.followed.unknown_share
        share = min(share, on_path.share + unknown)
        most = min(most, max(on_path.share, on_path.high) + unknown)
    share, high = min(share, most), min(high, most)
    low = 1 - left.high / pace.step_s
    if pace.if_stopped is not None:
        least, most = _if_stopped(pace.if_stopped, stages)
        low = min(low, least)
        high = max(high, most) if set(stages) & set(MOVES) else high
    return Interval(*map(within, (share, min(low, share), max(high, share))))


def if_stopped(analysis: RunAnalysis, wall: Wall, stages: tuple[Stage, ...]) -> Wall:
    """The wall of these stages, weak where it is unknown whether generation stood still for weights
    and that makes a difference to it; to generation where it does to weights."""
    pace = analysis.pace
    if pace is None or pace.if_stopped is None or not wall.cost.high > 0:
        return wall
    left_s = pace.if_stopped.without(stages).middle - pace.without(stages).middle
    differs = left_s > ALIKE * pace.step_s
    if Stage.ROLLOUT in stages or set(stages) & set(MOVES):
        by_pace = _share(analysis, replace(pace, if_stopped=None), MOVES)
        sends = _if_stopped(pace.if_stopped, MOVES)[1]
        differs |= by_pace is not None and sends > by_pace.value + ALIKE
    if not differs:
        return wall
    because, missing = wall.because + _UNKNOWN, (*wall.missing, _TAKEN)
    return replace(wall, confidence=WEAK, because=because, missing=missing)


def _if_stopped(pace: Pace, stages: tuple[Stage, ...]) -> tuple[float, float]:
    """The least and the most that these stages cost if it did. Weights cost no more than the time
    in which they are sent."""
    left = pace.without(stages)
    most = min(1 - left.low / pace.step_s, pace.of_learner_s(MOVES) / pace.step_s)
    return 1 - left.high / pace.step_s, most
