"""What all walls of stages have in common: cost from the steps, and when nothing can be said."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rltrace.analysis.binding import ALIKE, FEWEST_STEPS
from rltrace.analysis.chains import Seconds
from rltrace.analysis.stages import StageRow
from rltrace.analysis.walls.beside import beside
from rltrace.analysis.walls.held_up import corrections, is_measured
from rltrace.analysis.walls.paced import if_stopped, paced
from rltrace.analysis.walls.wall import (
    CANNOT_TELL,
    LIKELY,
    SAY_STEPS,
    UNKNOWN,
    WEAK,
    Cost,
    Figure,
    Seen,
    Wall,
    share_of_steps,
)
from rltrace.trace.vocabulary import Stage, word

_IN_EVERY_STEP = (Stage.ROLLOUT, Stage.TRAIN)
"""Work without which there is no step: spans of it that lie in none are wrong."""
_BY_REPLAY = (
    ", by a replay of the run: at least the time in which nothing else ran, at most that on the "
    "critical path"
)
_WORTH_A_WORD = 0.05
"""Part of the time of the longest of a wall's stages below which another is not named with it."""


def stage_wall(
    seen: Seen,
    name: str,
    symptom: str,
    stages: tuple[Stage, ...],
    relief_s: Seconds,
    evidence: tuple[Figure, ...],
    missing: tuple[str, ...] = (),
    because: str = "",
    part: float = 1.0,
    but: str = "",
    part_within: tuple[float, float] | None = None,
) -> Wall:
    """The wall `name`, which takes `relief_s` seconds of each steady step through `stages`, a
    `part` of what these take: all `but` that; `part_within`: where only its bounds are known."""
    present = [row for row in seen.stages if row.stage in stages]
    words = " and ".join(word(stage) for stage in stages)
    n = len(relief_s)
    if not present:
        # A stage that leaves no gap may not exist; whoever ranks sees how much time is in no stage.
        why = f"no {words} was recorded: the job may have no such stage"
        return Wall(name, CANNOT_TELL, UNKNOWN, symptom, why, (), (*missing, _hook_for(stages)))
    if not n:
        why = "no complete step was recorded, so nothing is known of what a step waits for"
        steps = "spans of stage step"
        if not seen.steps.none_complete:
            steps = f"{steps} ({SAY_STEPS})"
        return Wall(name, CANNOT_TELL, UNKNOWN, symptom, why, evidence, (steps,))
    if any(row.stage in _IN_EVERY_STEP for row in present) and not any(
        row.tau_s.mean > 0 for row in present
    ):
        outside = " and ".join(row.name for row in present)
        why = f"{outside} was recorded, but never within a steady step"
        missing = (*missing, f"why {outside} lies outside of the steps: clocks out of order?")
        return Wall(name, CANNOT_TELL, UNKNOWN, symptom, why, evidence, missing)
    put_right = [one for stage, one in corrections(seen).items() if stage in stages]
    noise = math.hypot(*(one.share.half_width * part for one in put_right))
    cost = _widened(share_of_steps(relief_s, seen.steps_s), noise)
    by_pace = paced(seen, stages)
    if by_pace is not None:
        low, high = min(cost.low, by_pace.low * part), max(cost.high, by_pace.high * part)
        cost = Cost(cost.share, low, high, cost.n)
    by_replay = beside(seen, stages)
    if by_replay is not None:
        least, most = part_within or (part, part)
        cost = _held(cost, by_replay.low * least, by_replay.high * most)
    because = because or (
        "the part of the step that would fall away if "
        f"{' and '.join(row.name for row in that_count(present))} took no time"
        f"{_how(seen, f', but {but}' if but else '', by_replay is not None)}"
    )
    if put_right:
        delayed = " and ".join(one.name for one in put_right)
        because += f"; {delayed} as measured by delaying {'it' if len(put_right) == 1 else 'them'}"
    confirmed = by_pace is None and not put_right and is_measured(seen, stages)
    confidence = _confidence(cost, n, confirmed)
    if by_replay is not None and cost.half_width > max(ALIKE, cost.share / 2):
        confidence = WEAK
    wall = Wall(name, confidence, cost, symptom, because, evidence, missing)
    return if_stopped(seen, wall, stages)


def _how(seen: Seen, but: str, by_replay: bool) -> str:
    if by_replay:
        return f"{but}{_BY_REPLAY}"
    if seen.pace is not None:
        return f", by the pace of the roles that are left{but}"
    return f"{', by the critical path' if seen.followed else ''}{but}"


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


def _confidence(cost: Cost, n: int, confirmed: bool) -> str:
    if n < FEWEST_STEPS:
        return WEAK
    if confirmed:
        return LIKELY
    return LIKELY if cost.half_width <= max(0.1, cost.share / 2) else WEAK


def _hook_for(stages: tuple[Stage, ...]) -> str:
    names = ", ".join(word(stage) for stage in stages)
    return f"spans of stage {names}: `rltrace doctor` says which hook would record them"


def exposed_figures(seen: Seen, stages: tuple[Stage, ...]) -> tuple[Figure, ...]:
    """Seconds a step of each of the stages that were seen: those on the critical path where costs
    rest on it, else those exposed."""
    shown = [row for row in seen.stages if row.stage in stages and row.exposed_s.n]
    of = {row.name: row.exposed_s for row in shown}
    kind = "exposed {}"
    if seen.followed is not None:
        on_path = {share.stage: share.seconds for share in seen.followed.shares}
        of = {name: on_path[name] for name in of if name in on_path}
        kind = "{} on the critical path"
    return tuple(
        Figure(kind.format(name), one.mean, "s a step", one.n, one.low, one.high)
        for name, one in of.items()
    )


def that_count(rows: Sequence[StageRow]) -> list[StageRow]:
    """The stages of a wall that are worth a word: a stage that runs for next to nothing beside
    another does not bind with it."""
    most = max((row.tau_s.mean for row in rows), default=0.0)
    return [row for row in rows if not row.tau_s.mean < _WORTH_A_WORD * most]
