"""What stages cost where they do not take turns: the step of a replay of the run without them.

Where queues lie between roles that go on by themselves, neither exposed time nor the critical path
tells what a step loses without a stage: whoever waits for room in a queue seems idle, and what
steps wait for now is not what they would wait for then. Where tools or verdicts run beside
generation for many samples, the exposed rule gives the time in which both ran to one of them. The
run's samples are replayed as discrete events (`rltrace.analysis.whatif.replay`), with and without.

A replay knows nothing of a line in which samples wait for an engine or a tool within their own
time. So of stages beside each other in one loop the interval reaches from the time in which they
ran and nothing else did, which is lost at least, to their time on the critical path, which is at
most: what is off the path holds no step up.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from rltrace.analysis.chains import MOVES, Seconds
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stats.interval import within
from rltrace.analysis.walls.wall import Cost, share_of_steps
from rltrace.analysis.whatif.replay import replay
from rltrace.analysis.whatif.trust import is_off
from rltrace.analysis.whatif.workload import Sync, Workload
from rltrace.trace.vocabulary import Stage

_OF_SAMPLES = {Stage.ROLLOUT, Stage.ENV, Stage.REWARD}
_WORTH_A_LOOK = 0.1  # of the steps; of less, exposed time is near enough
_ERROR = 0.11  # of what is left of a step, as a logarithm: that of replays


def in_queues(analysis: RunAnalysis) -> bool:
    """Whether queues lie between the roles of the run."""
    load = analysis.workload
    return analysis.placement == "async" and not (load is not None and load.in_batches)


def replayed(analysis: RunAnalysis, stages: tuple[Stage, ...]) -> Cost | None:
    """What these stages cost by a replay; None where they take turns, where a probe tells, and
    where the run cannot be replayed."""
    if analysis.probe is not None or not analysis.overlap_known or not len(analysis.steps_s):
        return None
    if in_queues(analysis):
        return _between_queues(analysis, stages)
    return _beside(analysis, stages)


def _between_queues(analysis: RunAnalysis, stages: tuple[Stage, ...]) -> Cost | None:
    share, load = _replayed_share(analysis, stages), analysis.workload
    if share is None or load is None:
        return None
    error = max(_ERROR, abs(load.model_error))
    low, high = (1 - (1 - share) * math.exp(way * error) for way in (1, -1))
    return Cost(share, within(low), within(high), len(analysis.steady))


def _beside(analysis: RunAnalysis, stages: tuple[Stage, ...]) -> Cost | None:
    if analysis.followed is not None or analysis.placement != "colocated":
        return None
    breakdown, steady, steps_s = analysis.breakdown, analysis.steady, analysis.steps_s
    if not set(stages) <= _OF_SAMPLES or not _much(analysis, breakdown.beside_s[steady]):
        return None
    others = breakdown.chain_of.keys() - set(stages)
    alone_s = breakdown.runs_s(stages, others)[steady]
    if not _much(analysis, breakdown.runs_s(stages)[steady] - alone_s):
        return None
    charged_s = breakdown.exposed_s[steady][:, list(stages)].sum(axis=1)
    if analysis.path is not None:
        charged_s = sum(analysis.path.seconds_of(stage, steady) for stage in stages)
    least, most = (share_of_steps(seconds, steps_s) for seconds in (alone_s, charged_s))
    share = _replayed_share(analysis, stages)
    share = most.share if share is None else share
    share = max(least.share, min(share, most.share) if analysis.path is not None else share)
    return Cost(share, min(least.low, share), max(most.high, share), most.n)


def beside_tools(analysis: RunAnalysis) -> bool:
    """Whether generation ran beside tools, so that a sample that has begun may not be decoding: it
    waits for its tools, or in a line."""
    tools_s = analysis.breakdown.tau_s[analysis.steady, Stage.ENV]
    known = analysis.probe is None and analysis.overlap_known
    return known and _much(analysis, tools_s) and _beside(analysis, (Stage.ROLLOUT,)) is not None


def _much(analysis: RunAnalysis, seconds: Seconds) -> bool:
    return float(seconds.sum()) > _WORTH_A_LOOK * float(analysis.steps_s.sum())


def _replayed_share(analysis: RunAnalysis, stages: tuple[Stage, ...]) -> float | None:
    """The part of the steps that would fall away if these stages took no time and all else were as
    it was. None where the run cannot be replayed."""
    load, slots = analysis.workload, analysis.tail.slots
    if load is None or not load.steps or is_off(load):
        return None
    engine = load.engine
    if load.streams and slots is not None and not math.isnan(engine.stands_for):
        # An engine holds no more at once than it ever did.
        most = math.ceil(slots.slots.mean / engine.workers / engine.stands_for)
        load = replace(load, engine=replace(engine, slots=min(engine.slots, most)))
    return max(0.0, 1 - replay(_without(load, stages)).step_s / replay(load).step_s)


def _without(load: Workload, stages: Collection[Stage]) -> Workload:
    if Stage.ROLLOUT in stages:
        engine = load.engine
        load = replace(load, engine=engine.paced(engine.evaluates / (1 + engine.evaluates)))
    if Stage.ENV in stages:
        load = load.with_batches(lambda batch: replace(batch, env_s=0 * batch.env_s))
    if Stage.REWARD in stages:
        load = load.with_batches(lambda batch: replace(batch, verdict_s=0 * batch.verdict_s))
    if Stage.REFERENCE in stages:
        load = replace(load, reference_s=0.0)
    if set(stages) & set(MOVES):
        load = replace(load, sync=Sync(), switch_s=0.0)
    for stage in stages:
        load = load.without(stage)
    return load
