"""What stages cost where the roles of a job go on beside each other, with queues between them.

Without a stage a step takes as long as the slowest role then needs for its samples
(`rltrace.analysis.pace`). The critical path tells how long steps waited for it as they are, which
may be much more: it says nothing of who would set the pace then. So it is an upper limit at most,
and what it could not follow may have been any stage's. Of stages of a role that is at work all the
time not even that: who waited for room in a queue is on the path, and not what made the room.
"""

from __future__ import annotations

from rltrace.analysis.bootstrap import Interval
from rltrace.analysis.walls.held_up import corrections, held_up_s
from rltrace.analysis.walls.wall import Seen, share_of_steps
from rltrace.trace.vocabulary import Stage

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
    return Interval(*(min(1.0, max(0.0, x)) for x in (share, min(low, share), max(high, share))))
