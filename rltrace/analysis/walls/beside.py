"""What generation, or tools and verdicts, cost where these run beside each other for many samples.

The exposed rule gives the time in which two stages of a chain ran at once to one of them. Without
the stages steps lose at least the time in which they ran and nothing else did, and at most their
time on the critical path: what is off the path holds no step up. The figure between these is a
replay's. It knows nothing of a line in which samples wait for an engine or a tool within their own
time, so it is no interval by itself.
"""

from __future__ import annotations

from dataclasses import replace

from rltrace.analysis.chains import Seconds
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.walls.wall import Cost, share_of_steps
from rltrace.analysis.whatif.replay import replay
from rltrace.analysis.whatif.trust import is_off
from rltrace.trace.vocabulary import Stage

_OF_SAMPLES = {Stage.ROLLOUT, Stage.ENV, Stage.REWARD}
_WORTH_A_LOOK = 0.1  # of the steps; of less, exposed time is near enough


def beside(analysis: RunAnalysis, stages: tuple[Stage, ...]) -> Cost | None:
    """What these stages cost; None where they did not run beside others of their chain, where a
    probe, the path or the pace of roles tells, and where stages do not take turns."""
    if analysis.probe is not None or analysis.pace is not None or analysis.followed is not None:
        return None
    if not set(stages) <= _OF_SAMPLES or not analysis.overlap_known or not ran_beside(analysis):
        return None
    if analysis.placement != "colocated":
        return None
    breakdown, steady, steps_s = analysis.breakdown, analysis.steady, analysis.steps_s
    alone_s = breakdown.runs_s(stages, alone=True)[steady]
    if not _worth_a_look(analysis, breakdown.runs_s(stages)[steady] - alone_s):
        return None
    charged_s = breakdown.exposed_s[steady][:, list(stages)].sum(axis=1)
    if analysis.path is not None:
        charged_s = sum(analysis.path.seconds_of(stage, steady) for stage in stages)
    least, most = (share_of_steps(seconds, steps_s) for seconds in (alone_s, charged_s))
    share = replayed_share(analysis, stages)
    share = most.share if share is None else share
    share = max(least.share, min(share, most.share) if analysis.path is not None else share)
    return Cost(share, min(least.low, share), max(most.high, share), most.n)


def beside_tools(analysis: RunAnalysis) -> bool:
    """Whether generation ran beside tools, so that a sample that has begun may not be decoding: it
    waits for its tools, or in a line."""
    tools_s = analysis.breakdown.tau_s[analysis.steady, Stage.ENV]
    return _worth_a_look(analysis, tools_s) and beside(analysis, (Stage.ROLLOUT,)) is not None


def ran_beside(analysis: RunAnalysis) -> bool:
    """Whether stages of one chain ran beside each other for so long that the exposed rule, which
    gives such time to one of them, cannot tell what each costs."""
    return _worth_a_look(analysis, analysis.breakdown.beside_s[analysis.steady])


def _worth_a_look(analysis: RunAnalysis, seconds: Seconds) -> bool:
    return float(seconds.sum()) > _WORTH_A_LOOK * float(analysis.steps_s.sum())


def replayed_share(analysis: RunAnalysis, stages: tuple[Stage, ...]) -> float | None:
    """The part of the steps that would fall away if these stages, generation or tools and verdicts,
    took no time and all else were as it was. None where the run cannot be replayed."""
    load = analysis.workload
    if load is None or not load.steps or is_off(load):
        return None
    if Stage.ROLLOUT in stages:
        engine = replace(load.engine, token_s=0.0, shared_token_s=0.0)
        quick = replace(load, engine=engine)
    else:
        batches = (replace(b, env_s=0 * b.env_s, verdict_s=0 * b.verdict_s) for b in load.batches)
        quick = replace(load, batches=tuple(batches))
    return max(0.0, 1 - replay(quick).step_s / replay(load).step_s)
