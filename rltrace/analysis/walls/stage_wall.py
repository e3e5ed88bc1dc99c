"""What all walls of stages have in common: cost from the steps, and when nothing can be said."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stages import StageRow
from rltrace.analysis.walls.cost import (
    corrections,
    idle_share,
    is_measured,
    may_have_stopped,
    relief_s,
)
from rltrace.analysis.walls.replayed import in_queues
from rltrace.analysis.walls.wall import (
    ALIKE,
    FEWEST_STEPS,
    LIKELY,
    SAY_STEPS,
    WEAK,
    Cost,
    Figure,
    Wall,
    cannot_tell,
    figure,
    share_of_steps,
)
from rltrace.trace.vocabulary import Stage, word

_IN_EVERY_STEP = (Stage.ROLLOUT, Stage.TRAIN)
"""Work without which there is no step: spans of it that lie in none are wrong."""
_WORTH_A_WORD = 0.05
"""Part of the time of the longest of a wall's stages below which another is not named with it."""


def stage_wall(
    analysis: RunAnalysis,
    name: str,
    symptom: str,
    stages: tuple[Stage, ...],
    evidence: Sequence[Figure],
    missing: Sequence[str] = (),
    because: str = "",
    part: float = 1.0,
    but: str = "",
    part_within: tuple[float, float] | None = None,
) -> Wall:
    """The wall `name`, which takes a `part` of what `stages` do, all `but` that; `part_within`:
    where only its bounds are known."""
    present = [row for row in analysis.stages if row.stage in stages]
    words = [word(stage) for stage in stages]
    evidence, n = tuple(evidence), len(analysis.steady)
    if not present:
        # A stage that leaves no gap may not exist; whoever ranks sees how much time is in no stage.
        why = f"no {' and '.join(words)} was recorded: the job may have no such stage"
        hook = f"spans of stage {', '.join(words)}: `rltrace doctor` says which hook would record"
        idle = idle_share(analysis)
        return cannot_tell(name, symptom, why, *missing, f"{hook} them", at_most=idle)
    if not n:
        why = "no complete step was recorded, so nothing is known of what a step waits for"
        steps = "spans of stage step"
        if not analysis.steps.none_complete:
            steps = f"{steps} ({SAY_STEPS})"
        return cannot_tell(name, symptom, why, steps, evidence=evidence)
    needed = any(row.stage in _IN_EVERY_STEP for row in present)
    if needed and not any(row.tau_s.mean > 0 for row in present):
        outside = " and ".join(row.name for row in present)
        why = f"{outside} was recorded, but never within a steady step"
        clocks = f"why {outside} lies outside of the steps: clocks out of order?"
        return cannot_tell(name, symptom, why, *missing, clocks, evidence=evidence)
    put_right = [one for stage, one in corrections(analysis).items() if stage in stages]
    noise = math.hypot(*(one.share.half_width * part for one in put_right))
    relief, by_replay = relief_s(analysis, stages)
    cost = _widened(share_of_steps(relief * part, analysis.steps_s), noise)
    # What steps wait for now says little of what they would wait for then.
    unsure = in_queues(analysis) and by_replay is None and not put_right
    if unsure:
        cost = _held(cost, 0.0, cost.high)
    if by_replay is not None:
        least, most = part_within or (part, part)
        cost = _held(cost, by_replay.low * least, by_replay.high * most)
    because = because or (
        "the part of the step that would fall away if "
        f"{' and '.join(row.name for row in that_count(present))} took no time"
        f"{_how(analysis, f', but {but}' if but else '', by_replay is not None)}"
    )
    if put_right:
        delayed = " and ".join(one.name for one in put_right)
        because += f"; {delayed} as measured by delaying {'it' if len(put_right) == 1 else 'them'}"
    confirmed = not put_right and is_measured(analysis, stages)
    sharp = confirmed or cost.half_width <= max(0.1, cost.share / 2)
    if by_replay is not None and cost.half_width > max(ALIKE, cost.share / 2):
        sharp = False
    confidence = LIKELY if sharp and not unsure and n >= FEWEST_STEPS else WEAK
    wall = Wall(name, confidence, cost, symptom, because, evidence, tuple(missing))
    return may_have_stopped(analysis, wall, stages)


def _how(analysis: RunAnalysis, but: str, by_replay: bool) -> str:
    by_path = ", by the critical path" if analysis.followed else ""
    return f"{', by a replay of the run' if by_replay else by_path}{but}"


def _held(cost: Cost, low: float, high: float) -> Cost:
    """The same with an interval that holds these bounds, too."""
    if math.isnan(cost.low):
        return cost
    return Cost(cost.share, min(cost.low, low), max(cost.high, high), cost.n)


def _widened(cost: Cost, noise: float) -> Cost:
    """The same with an interval that holds an independent error of that half-width, too."""
    if not noise:
        return cost
    half = math.hypot(cost.half_width, noise)
    return Cost(cost.share, max(0.0, cost.share - half), min(1.0, cost.share + half), cost.n)


def exposed_figures(analysis: RunAnalysis, stages: tuple[Stage, ...]) -> list[Figure]:
    """Seconds a step of each of the stages that were seen: those on the critical path where costs
    rest on it, else those exposed."""
    shown = [row for row in analysis.stages if row.stage in stages and row.exposed_s.n]
    of = {f"exposed {row.name}": row.exposed_s for row in shown}
    if analysis.followed is not None:
        on_path = {share.stage: share.seconds for share in analysis.followed.shares}
        names = [row.name for row in shown if row.name in on_path]
        of = {f"{name} on the critical path": on_path[name] for name in names}
    return [figure(name, seconds, "s a step") for name, seconds in of.items()]


def that_count(rows: Sequence[StageRow]) -> list[StageRow]:
    """The stages of a wall that are worth a word: a stage that runs for next to nothing beside
    another does not bind with it."""
    most = max((row.tau_s.mean for row in rows), default=0.0)
    return [row for row in rows if not row.tau_s.mean < _WORTH_A_WORD * most]
