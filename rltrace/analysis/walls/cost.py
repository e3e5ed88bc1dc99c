"""What steps lose by some stages: exposed, on the path, measured by a probe, or by a replay.

Where stages take turns, that is their exposed time. Where the actors' chain runs beside the other
two, only the time in which theirs ran alone falls away: in a pipeline of lengths A and L without
idle time exactly max(A, L) - max(A - w, L) for stages that take w of A. Exposed time may name
stages that nothing waited for, so where the critical path was followed through chains that overlap,
a stage's time on it takes its place.

A probe delays stages and needs no such rule (`rltrace.analysis.probe`). Where its interval leaves
the computed share out, and by more than a little, the measured share takes its place, and what ran
alone is no bound for it; else the computed one, which is known more sharply, stands confirmed.

Where stages run beside each other otherwise, a replay of the run tells
(`rltrace.analysis.walls.replayed`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from rltrace.analysis.chains import MOVES, Chain, Seconds
from rltrace.analysis.probe import HALF_WIDTH, IN_FULL
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stats.interval import Interval
from rltrace.analysis.stopped import sends_in, stopping
from rltrace.analysis.walls.replayed import in_queues, replayed
from rltrace.analysis.walls.wall import (
    ALIKE,
    FEWEST_STEPS,
    RESOURCE_OF,
    TAIL,
    WEAK,
    Cost,
    Wall,
)
from rltrace.trace.vocabulary import Stage

_MOST = 0.8  # of what a wall's stages take: then they count as measured
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


def relief_s(analysis: RunAnalysis, stages: tuple[Stage, ...]) -> tuple[Seconds, Cost | None]:
    """By how many seconds each steady step would be shorter if these stages took no time; and the
    cost that this is, where it rests on a replay."""
    steps_s, breakdown = analysis.steps_s, analysis.breakdown
    by_replay = replayed(analysis, stages)
    if by_replay is not None:
        return np.asarray(steps_s * by_replay.share), by_replay
    right = corrections(analysis)
    relief = held_up_s(analysis, [stage for stage in stages if stage in right])
    actors = {stage for stage, chain in breakdown.chain_of.items() if chain is Chain.ACTORS}
    for chain in Chain:
        whole = [stage for stage, of in breakdown.chain_of.items() if of is chain]
        if members := [stage for stage in stages if stage not in right and stage in whole]:
            across = actors if chain is not Chain.ACTORS else breakdown.chain_of.keys() - actors
            alone_s = breakdown.runs_s(whole, across)[analysis.steady]
            relief += np.minimum(held_up_s(analysis, members), alone_s)
    return relief, None


def idle_share(analysis: RunAnalysis) -> float:
    """The part of the steady steps in no stage but waiting; NaN where they have no length."""
    breakdown, steady = analysis.breakdown, analysis.steady
    total_s = float(breakdown.steps_s[steady].sum())
    idle_s = breakdown.unattributed_s[steady] + breakdown.exposed_s[steady, Stage.WAIT]
    return float(idle_s.sum()) / total_s if total_s else math.nan


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
            seconds = max(0.0, right[stage].share.value) * analysis.steps_s
        total += seconds
    return total


def may_have_stopped(analysis: RunAnalysis, wall: Wall, stages: tuple[Stage, ...]) -> Wall:
    """The wall of these stages, weak where it is of generation or of weights that take a part of
    the step to send, and nobody knows whether generation stood still for them."""
    if not (set(stages) & {Stage.ROLLOUT, *MOVES} and in_queues(analysis)):
        return wall
    sent_s = analysis.breakdown.tau_s[analysis.steady, Stage.SYNC].sum()
    sends = sends_in(analysis.run) if sent_s > ALIKE * analysis.steps_s.sum() else None
    if sends is None or len(stopping(analysis.run, sends)) == 1:
        return wall
    because, missing = wall.because + _UNKNOWN, (*wall.missing, _TAKEN)
    return replace(wall, confidence=WEAK, because=because, missing=missing)
