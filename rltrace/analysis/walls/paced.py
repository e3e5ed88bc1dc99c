"""What stages cost where the roles of a job go on beside each other, with queues between them.

Without a stage a step takes as long as the slowest role then needs for its samples
(`rltrace.analysis.pace`). The critical path tells how long steps waited for it as they are, which
may be much more: it says nothing of who would set the pace then. So it is an upper limit at most,
and what it could not follow may have been any stage's. Of stages of a role that is at work all the
time not even that: who waited for room in a queue is on the path, and not what made the room.

Where nobody recorded whether generation stood still while weights were sent
(`rltrace.analysis.stopped`), the bounds have both: weights may cost up to all the time in which
they were sent, and generation what would be left of it then.
"""

from __future__ import annotations

from dataclasses import replace

from rltrace.analysis.binding import ALIKE
from rltrace.analysis.bootstrap import Interval
from rltrace.analysis.pace import Pace
from rltrace.analysis.roles import MOVES
from rltrace.analysis.walls.held_up import corrections, held_up_s
from rltrace.analysis.walls.wall import WEAK, Seen, Wall, share_of_steps
from rltrace.trace.vocabulary import Stage

_SINK = '`rltrace.weight_update(version, role="sink")`'
_TAKEN = f"updates where weights are taken, too: {_SINK} there, or a hook of stage sync"
_UNKNOWN = (
    "; whether generation stood still while weights were sent is unknown, which "
    f"{_SINK} where they are taken would tell"
)
_SETS = 0.85  # of the step; a role that is at work for more of it sets the pace


def paced(seen: Seen, stages: tuple[Stage, ...]) -> Interval | None:
    """The share of the step that these stages cost, and between which bounds it is; None where no
    queues lie between the roles."""
    pace = seen.pace
    if pace is None or not pace.step_s > 0 or not len(seen.steps_s):
        return None
    left = pace.without(stages)
    share, high = (1 - seconds / pace.step_s for seconds in (left.middle, left.low))
    most = 1.0
    if not any(role.does(stages) for role in pace.actors):
        most = pace.of_learner_s(stages) / pace.step_s
    if seen.followed is not None and not (pace.slowest.does(stages) and pace.explained > _SETS):
        on_path = share_of_steps(held_up_s(seen, stages), seen.steps_s)
        right = [one.share.half_width for s, one in corrections(seen).items() if s in stages]
        unknown = sum(right) if right else seen.followed.unknown_share
        share = min(share, on_path.share + unknown)
        most = min(most, max(on_path.share, on_path.high) + unknown)
    share, high = min(share, most), min(high, most)
    low = 1 - left.high / pace.step_s
    if pace.if_stopped is not None:
        least, most = _if_stopped(pace.if_stopped, stages)
        low = min(low, least)
        high = max(high, most) if set(stages) & set(MOVES) else high
    return Interval(*(min(1.0, max(0.0, x)) for x in (share, min(low, share), max(high, share))))


def if_stopped(seen: Seen, wall: Wall, stages: tuple[Stage, ...]) -> Wall:
    """The wall of these stages, weak where it is unknown whether generation stood still for weights
    and that makes a difference to it; to generation where it does to weights."""
    pace = seen.pace
    if pace is None or pace.if_stopped is None or not wall.cost.high > 0:
        return wall
    differs = _differs(pace, pace.if_stopped, stages)
    if Stage.ROLLOUT in stages or set(stages) & set(MOVES):
        by_pace = paced(replace(seen, pace=replace(pace, if_stopped=None)), MOVES)
        sends = _if_stopped(pace.if_stopped, MOVES)[1]
        differs |= by_pace is not None and sends > by_pace.value + ALIKE
    if not differs:
        return wall
    because, missing = wall.because + _UNKNOWN, (*wall.missing, _TAKEN)
    return replace(wall, confidence=WEAK, because=because, missing=missing)


def _differs(pace: Pace, stopped: Pace, stages: tuple[Stage, ...]) -> bool:
    left_s = stopped.without(stages).middle - pace.without(stages).middle
    return left_s > ALIKE * pace.step_s


def _if_stopped(pace: Pace, stages: tuple[Stage, ...]) -> tuple[float, float]:
    """The least and the most that these stages cost if it did. Weights cost no more than the time
    in which they are sent."""
    left = pace.without(stages)
    most = min(1 - left.low / pace.step_s, pace.of_learner_s(MOVES) / pace.step_s)
    return 1 - left.high / pace.step_s, most
