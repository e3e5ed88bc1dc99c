"""What walls of stages share: their cost, and what is missing."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.timeline.stages import StageRow
from rltrace.analysis.walls.attribute import PATH, REPLAY, attribute, idle_share, unseen_of
from rltrace.analysis.walls.wall import SAY_STEPS, WEAK, Figure, Wall, cannot_tell, figure
from rltrace.trace.vocabulary import Stage, word

_BY = {PATH: "the critical path", REPLAY: "a replay of the run"}
_IN_EVERY_STEP = (Stage.ROLLOUT, Stage.TRAIN)  # spans of these that lie in no step are wrong
_ROWS = "the rows of all samples: a process, or a part of the run, may be missing"
_WORTH_A_WORD = 0.05  # of the time of a wall's longest stage: what takes less is not named with it


def stage_wall(
    analysis: RunAnalysis, name: str, symptom: str, stages: tuple[Stage, ...],
    evidence: Sequence[Figure], missing: Sequence[str] = (), because: str = "",
    part: float = 1.0, but: str = "", part_within: tuple[float, float] | None = None,
) -> Wall:  # fmt: skip
    """The wall takes a `part` (or bounds of it, `part_within`) of these stages, all `but` that."""
    present = [row for row in analysis.stages if row.stage in stages]
    words = [word(stage) for stage in stages]
    evidence, n = tuple(evidence), len(analysis.steady)
    if not present:
        # A stage that leaves no gap may not exist; whoever ranks sees how much time is in no stage.
        why = f"no {' and '.join(words)} was recorded: the job may have no such stage"
        hook = f"spans of stage {', '.join(words)}: `rltrace doctor` says which hook would record"
        # What every job has may run beside all that was seen; else it is in the time that is idle.
        beside = analysis.placement != "colocated" and bool({*stages} & {*_IN_EVERY_STEP})
        most = 1.0 if beside else idle_share(analysis)
        return cannot_tell(name, symptom, why, *missing, f"{hook} them", at_most=most)
    if not n:
        why = "no complete step was recorded, so nothing is known of what a step waits for"
        steps = "spans of stage step"
        if not analysis.steps.none_complete:
            steps = f"{steps} ({SAY_STEPS})"
        return cannot_tell(name, symptom, why, steps, evidence=evidence)
    outside = " and ".join(row.name for row in present)
    needed = any(row.stage in _IN_EVERY_STEP for row in present)
    if needed and not any(row.tau_s.mean > 0 for row in present):
        why = f"{outside} was recorded, but never within a steady step"
        clocks = f"why {outside} lies outside of the steps: clocks out of order?"
        return cannot_tell(name, symptom, why, *missing, clocks, evidence=evidence)
    found = attribute(analysis, stages, part, part_within)
    how = "" if found.method not in (PATH, REPLAY) else f", by {_BY[found.method]}"
    names = " and ".join(row.name for row in that_count(present))
    apart = f", apart from {but}" if but else ""
    because = because or f"what a step saves without {names}{how}{apart}"
    if found.measured:
        them = "it" if len(found.measured) == 1 else "them"
        because += f"; {' and '.join(found.measured)} as measured by delaying {them}"
    because, missing = because + found.because, (*missing, *found.missing)
    confidence, at_most = found.confidence, math.nan
    if unseen := unseen_of(analysis, stages):
        confidence, at_most = WEAK, found.cost.high + idle_share(analysis)
        because, missing = f"{because}; {unseen}", (*missing, _ROWS)
    told = confidence, found.cost, symptom, because, evidence, missing, at_most
    return Wall(name, *told, found.method)


def exposed_figures(analysis: RunAnalysis, stages: tuple[Stage, ...]) -> list[Figure]:
    """Seconds a step of each stage that was seen: on the critical path where that was followed."""
    shown = [row for row in analysis.stages if row.stage in stages and row.exposed_s.n]
    of = {f"exposed {row.name}": row.exposed_s for row in shown}
    if analysis.followed is not None:
        on_path = {share.stage: share.on_path_s for share in analysis.followed.shares}
        names = [row.name for row in shown if row.name in on_path]
        of = {f"{name} on the critical path": on_path[name] for name in names}
    return [figure(name, seconds, "s a step") for name, seconds in of.items()]


def that_count(rows: Sequence[StageRow]) -> list[StageRow]:
    """The stages without those that run for next to nothing beside another: these do not bind."""
    most = max((row.tau_s.mean for row in rows), default=0.0)
    return [row for row in rows if not row.tau_s.mean < _WORTH_A_WORD * most]
