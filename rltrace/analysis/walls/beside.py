"""What generation, or tools and verdicts, cost where these run beside each other for many samples.

The exposed rule gives the time in which two stages of a chain ran at once to one of them. Without
the stages steps lose at least the time in which they ran and nothing else did, and at most their
time on the critical path: what is off the path holds no step up. The figure between these is a
replay's. It knows nothing of a line in which samples wait for an engine or a tool within their own
time, so it is no interval by itself.
"""

from __future__ import annotations

from rltrace.analysis.walls.replayed import ran_beside, replayed_share
from rltrace.analysis.walls.wall import Cost, Seen, share_of_steps
from rltrace.trace.vocabulary import Stage

_OF_SAMPLES = (Stage.ROLLOUT, Stage.ENV, Stage.REWARD)
_WORTH_A_LOOK = 0.1  # of the steps


def beside(seen: Seen, stages: tuple[Stage, ...]) -> Cost | None:
    """What these stages cost; None where they did not run beside others of their chain, where a
    probe, the path or the pace of roles tells, and where stages do not take turns."""
    if seen.probe is not None or seen.pace is not None or seen.followed is not None:
        return None
    if not set(stages) <= set(_OF_SAMPLES) or not seen.overlap_known or not ran_beside(seen):
        return None
    breakdown, steady, steps_s = seen.breakdown, seen.steady, seen.steps_s
    if seen.composition is None or seen.composition.placement != "colocated":
        return None
    alone_s = breakdown.runs_s(stages, alone=True)[steady]
    shared_s = float((breakdown.runs_s(stages)[steady] - alone_s).sum())
    if not shared_s > _WORTH_A_LOOK * float(steps_s.sum()):
        return None
    charged_s = breakdown.exposed_s[steady][:, list(stages)].sum(axis=1)
    if seen.path is not None:
        charged_s = sum(seen.path.seconds_of(stage, steady) for stage in stages)
    least, most = (share_of_steps(seconds, steps_s) for seconds in (alone_s, charged_s))
    share = replayed_share(seen, stages)
    share = most.share if share is None else share
    share = max(least.share, min(share, most.share) if seen.path is not None else share)
    return Cost(share, min(least.low, share), max(most.high, share), most.n)


def beside_tools(seen: Seen) -> bool:
    """Whether generation ran beside tools, so that a sample that has begun may not be decoding: it
    waits for its tools, or in a line."""
    tools_s = float(seen.breakdown.tau_s[seen.steady, Stage.ENV].sum())
    if not tools_s > _WORTH_A_LOOK * float(seen.steps_s.sum()):
        return False
    return beside(seen, (Stage.ROLLOUT,)) is not None
