"""What generation, or tools and verdicts, cost where these run beside each other for many samples.

The exposed rule gives the time in which two stages of a chain ran at once to one of them. Without
the stages steps lose at least the time in which they ran and nothing else did, and at most their
time on the critical path: what is off the path holds no step up. The figure between these is a
replay's. It knows nothing of a line in which samples wait for an engine or a tool within their own
time, so it is no interval by itself.
"""

from __future__ import annotations

from dataclasses import replace

from rltrace.analysis.walls.wall import Cost, Seen, share_of_steps
from rltrace.analysis.whatif.replay import replay
from rltrace.analysis.whatif.trust import is_off
from rltrace.analysis.whatif.workload import Workload
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


# --- what steps would lose without generation, or without tools and verdicts, by a replay of the
# run In the replay (`rltrace.analysis.whatif.replay`) these take no time, and all else is as it
# was.

_BESIDE = 0.1  # of the steps; of less, exposed time is near enough


def ran_beside(seen: Seen) -> bool:
    """Whether stages of one chain ran beside each other for so long that the exposed rule, which
    gives such time to one of them, cannot tell what each costs."""
    beside_s = float(seen.breakdown.beside_s[seen.steady].sum())
    return beside_s > _BESIDE * float(seen.steps_s.sum())


def replayed_share(seen: Seen, stages: tuple[Stage, ...]) -> float | None:
    """The part of the steps that would fall away if these stages, generation or tools and verdicts,
    took no time. None where the run cannot be replayed."""
    load = seen.workload
    if load is None or not load.steps or is_off(load):
        return None
    return _share(load, Stage.ROLLOUT in stages)


def _share(load: Workload, generation: bool) -> float:
    if generation:
        engine = replace(load.engine, token_s=0.0, shared_token_s=0.0)
        quick = replace(load, engine=engine)
    else:
        batches = (replace(b, env_s=0 * b.env_s, verdict_s=0 * b.verdict_s) for b in load.batches)
        quick = replace(load, batches=tuple(batches))
    return max(0.0, 1 - replay(quick).step_s / replay(load).step_s)
