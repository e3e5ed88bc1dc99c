"""Walls of stages: what steps lose by them, told by one of four methods.

`attribute` believes them in this order:

1. a probe, which delays stages and needs no rule (`rltrace.analysis.timeline.probe`). Where its
   interval leaves the computed share out, and by more than a little, the measured share takes its
   place; else the computed one, which is known more sharply, stands confirmed;
2. a replay of the run without the stages, where roles go on by themselves between queues, or tools
   run beside generation: what steps wait for now is not what they would wait for then;
3. the critical path, where it was followed through chains that overlap;
4. exposed time.

The last two tell no more than the time in which a chain ran alone: in a pipeline of lengths A and L
without idle time, stages that take w of A cost exactly max(A, L) - max(A - w, L).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stats.confidence_interval import within
from rltrace.analysis.timeline.probe import ProbedStage
from rltrace.analysis.timeline.stage_chains import MOVES, Chain, Seconds
from rltrace.analysis.timeline.stages import StageRow
from rltrace.analysis.timeline.waits import sends_in, stopping
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
from rltrace.analysis.whatif.levers import slowed
from rltrace.analysis.whatif.predict import is_off
from rltrace.analysis.whatif.replay import replay
from rltrace.analysis.whatif.workload import StepWorkload, SyncModel
from rltrace.trace.vocabulary import Stage, word

PROBE, REPLAY, PATH, EXPOSED = "probe", "replay", "critical path", "exposed time"

_BY = {PATH: "the critical path", REPLAY: "a replay of the run"}
_AHEAD = 2  # batches that may be there before a step, or after the last one
_FOLLOW = {Chain.LEARNER, Chain.WEIGHTS}  # these take turns
_IN_EVERY_STEP = (Stage.ROLLOUT, Stage.TRAIN)  # spans of these that lie in no step are wrong
_ROWS = "the rows of all samples: a process, or a part of the run, may be missing"
_WORTH_A_WORD = 0.05  # of the time of a wall's longest stage: what takes less is not named with it
_MOST = 0.8  # of what a wall's stages take: then they count as measured
_SHARP = 0.1
_NEARLY_ALL = 0.95
_SINK = '`rltrace.weight_update(version, role="sink")`'
_TAKEN = f"updates where weights are taken, too: {_SINK} there, or a hook of stage sync"
_UNKNOWN = (
    "; whether generation stood still while weights were sent is unknown, which "
    f"{_SINK} where they are taken would tell"
)


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


@dataclass(frozen=True)
class Attribution:
    """What the steady steps lose by some stages: a share of them, by a `method`; `measured` are the
    stages that the probe put right. `because` and `missing`: what is unknown, what would tell."""

    cost: Cost
    method: str
    confidence: str
    measured: tuple[str, ...]
    because: str
    missing: tuple[str, ...]


def attribute(
    analysis: RunAnalysis, stages: tuple[Stage, ...], part: float = 1.0,
    part_within: tuple[float, float] | None = None,
) -> Attribution:  # fmt: skip
    """What a `part` of these stages costs; `part_within`: its bounds, which matter to a replay."""
    put_right = [one for one in _probed(analysis, stages) if one.contradicts]
    by_replay = replayed(analysis, stages)
    if by_replay is not None:
        least, most = part_within or (part, part)
        cost = by_replay.scaled(part, least, most)
        method, sure = REPLAY, cost.half_width <= max(ALIKE, cost.share / 2)
        sure &= not unseen_of(analysis, tuple(Stage))  # what was replayed is not what ran
    else:
        cost = share_of_steps(lost_s(analysis, stages) * part, analysis.steps_s)
        cost = cost.wider(math.hypot(*(one.share.half_width * part for one in put_right)))
        method = PROBE if put_right else EXPOSED if analysis.followed is None else PATH
        sure = cost.half_width <= max(_SHARP, cost.share / 2)
        if method == EXPOSED and analysis.overlap_known:
            most_s = np.maximum(_at_most_s(analysis, stages), lost_s(analysis, stages))
            beside = analysis.composition is not None and analysis.composition.beside
            if beside and not _one_each(analysis):
                # Of several that go on by themselves nobody knows how many each step needs.
                most_s = np.maximum(most_s, held_up_s(analysis, stages))
            # Nobody knows which of two stages beside each other a step waited for.
            breakdown, of = analysis.breakdown, analysis.breakdown.chain_of
            chains = {of[s] for s in stages if breakdown.tau_s[analysis.steady, s].any()}
            across = {stage for stage, chain in of.items() if chain not in chains}
            most_s = np.maximum(most_s, breakdown.runs_s(stages, across)[analysis.steady])
            if Chain.STEPS not in chains:  # no step is shorter than what its lane does
                own_s = breakdown.runs_s(s for s in of if of[s] is Chain.STEPS)
                most_s = np.minimum(most_s, analysis.steps_s - own_s[analysis.steady])
            alone_s = breakdown.runs_s(stages, of.keys() - set(stages))[analysis.steady]
            lower, upper = (share_of_steps(s * part, analysis.steps_s) for s in (alone_s, most_s))
            sure &= upper.share <= cost.share + ALIKE
            if Chain.STEPS in of.values():  # others may stand still while it sends weights
                sure &= cost.share <= lower.share + ALIKE
            cost = replace(cost, low=min(cost.low, lower.low), high=max(cost.high, upper.high))
        sure |= not put_right and _is_confirmed(analysis, stages)
        if in_queues(analysis) and not put_right:
            cost, sure = Cost(cost.share, 0.0, cost.high, cost.n), False
    stood_still = _may_have_stopped(analysis, stages)
    sure &= not stood_still and len(analysis.steady) >= FEWEST_STEPS
    confidence, measured = LIKELY if sure else WEAK, tuple(one.name for one in put_right)
    because, missing = (_UNKNOWN, (_TAKEN,)) if stood_still else ("", ())
    return Attribution(cost, method, confidence, measured, because, missing)


def lost_s(analysis: RunAnalysis, stages: Iterable[Stage]) -> Seconds:
    """By how many seconds each steady step would be shorter if these stages took no time: their
    time on the path or exposed, and of a chain no more than that in which it ran alone."""
    breakdown, stages = analysis.breakdown, set(stages)
    right = {one.stage for one in _probed(analysis, stages) if one.contradicts}
    lost = held_up_s(analysis, stages & right)
    of = breakdown.chain_of
    chains = {chain: {stage for stage, its in of.items() if its is chain} for chain in Chain}
    for chain, whole in chains.items():
        if members := (stages - right) & whole:
            across = {stage for stage in of.keys() - whole if {chain, of[stage]} != _FOLLOW}
            alone_s = breakdown.runs_s(whole, across)[analysis.steady]
            lost = lost + np.minimum(held_up_s(analysis, members), alone_s)
    return lost


def _at_most_s(analysis: RunAnalysis, stages: tuple[Stage, ...]) -> Seconds:
    """The same if weights that follow the learner could travel beside the actors: then these are
    one chain, of which no stage has to run alone to hold a step up."""
    breakdown, of = analysis.breakdown, analysis.breakdown.chain_of
    line = {stage for stage, chain in of.items() if chain in {*_FOLLOW, of[Stage.TRAIN]}}
    if of[Stage.SYNC] is Chain.STEPS or not line.issuperset(stages):
        return lost_s(analysis, stages)
    in_turn_s = breakdown.runs_s(stages, line - set(stages))
    return np.minimum(in_turn_s, breakdown.runs_s(line, of.keys() - line))[analysis.steady]


def _one_each(analysis: RunAnalysis) -> bool:
    """Whether the process of the steps generates once for each, in the background."""
    query = f"select process, spans from span_stages where stage = {int(Stage.ROLLOUT)}"
    rows, windows = analysis.run.ask(query), analysis.steps.windows
    known = Chain.STEPS in analysis.breakdown.chain_of.values()
    own = known and len(rows) == 1 and rows[0][0] == windows[-1].process
    return own and abs(rows[0][1] - len(windows)) <= _AHEAD


def held_up_s(analysis: RunAnalysis, stages: Iterable[Stage]) -> Seconds:
    """Seconds by steady step in which it waited for these stages: measured, on the critical path,
    or exposed."""
    right = {one.stage: one for one in _probed(analysis, stages) if one.contradicts}
    total = np.zeros(len(analysis.steady))
    for stage in stages:
        if stage in right:
            total += max(0.0, right[stage].share.value) * analysis.steps_s
        elif analysis.followed is not None:
            total += analysis.followed.seconds_of(stage, analysis.steady)
        else:
            total += analysis.breakdown.exposed_s[analysis.steady, stage]
    return total


def unseen_of(analysis: RunAnalysis, stages: tuple[Stage, ...]) -> str:
    """What the trained samples say was not seen of the work of these stages; empty: nothing."""
    tracks = analysis.tracks
    if {*stages} & {Stage.ROLLOUT, Stage.ENV} and 0 < tracks.linked_share < _NEARLY_ALL:
        return f"{1 - tracks.linked_share:.0%} of the samples that were trained on have no row"
    judged = tracks.verdict[tracks.used_sample] >= 0
    if Stage.REWARD in stages and judged.any() and judged.mean() < _NEARLY_ALL:
        return f"{1 - judged.mean():.0%} of the samples that were trained on have no reward"
    return ""


def idle_share(analysis: RunAnalysis) -> float:
    """The part of the steady steps in no stage but waiting; NaN where they have no length."""
    breakdown, steady = analysis.breakdown, analysis.steady
    total_s = float(breakdown.steps_s[steady].sum())
    idle_s = breakdown.untraced_s[steady] + breakdown.exposed_s[steady, Stage.WAIT]
    return float(idle_s.sum()) / total_s if total_s else math.nan


def _probed(analysis: RunAnalysis, stages: Iterable[Stage]) -> list[ProbedStage]:
    probed, stages = analysis.probe.stages if analysis.probe else (), set(stages)
    return [one for one in probed if one.tells and one.stage in stages]


def _is_confirmed(analysis: RunAnalysis, stages: Iterable[Stage]) -> bool:
    """Whether the probe agrees on most of what these stages take."""
    whole = {stage: float(held_up_s(analysis, [stage]).sum()) for stage in stages}
    told = sum(whole[one.stage] for one in _probed(analysis, stages) if one.agrees)
    return 0 < _MOST * sum(whole.values()) <= told


def _may_have_stopped(analysis: RunAnalysis, stages: tuple[Stage, ...]) -> bool:
    """Whether these are of generation, or of weights that take a part of the step to send, and
    nobody knows whether generation stood still for them."""
    if not (set(stages) & {Stage.ROLLOUT, *MOVES} and in_queues(analysis)):
        return False
    sent_s = analysis.breakdown.tau_s[analysis.steady, Stage.SYNC].sum()
    sends = sends_in(analysis.run) if sent_s > ALIKE * analysis.steps_s.sum() else None
    return sends is not None and len(stopping(analysis.run, sends)) > 1


# --- by a replay of the run's samples with the stages and without
#
# Whoever waits for room in a queue seems idle. Where tools or verdicts run beside generation, the
# exposed rule gives the time in which both ran to one of them. But a replay knows nothing of a line
# in which samples wait for an engine or a tool within their own time. So of stages beside each
# other in one loop the interval reaches from the time in which they alone ran, which is lost at
# least, to their time on the critical path: what is off the path holds no step up.

_OF_SAMPLES = {Stage.ROLLOUT, Stage.ENV, Stage.REWARD}
_WORTH_A_LOOK = 0.1  # of the steps; of less, exposed time is near enough
_ERROR = 0.11  # of what is left of a step, as a logarithm: that of replays


def in_queues(analysis: RunAnalysis) -> bool:
    """Whether queues lie between the roles of the run."""
    load = analysis.workload
    return analysis.placement == "async" and not (load is not None and load.in_batches)


def replayed(analysis: RunAnalysis, stages: tuple[Stage, ...]) -> Cost | None:
    """None where the stages take turns, a probe tells, or the run cannot be replayed."""
    if analysis.probe is not None or not analysis.overlap_known or not len(analysis.steps_s):
        return None
    if not in_queues(analysis):
        return _beside(analysis, stages)
    share, load = _replayed_share(analysis, stages), analysis.workload
    if share is None or load is None:
        return None
    error = max(_ERROR, abs(load.model_error))
    low, high = (within(1 - (1 - share) * math.exp(way * error)) for way in (1, -1))
    return Cost(share, low, high, len(analysis.steady))


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
    share = max(least.share, share if analysis.path is None else min(share, most.share))
    return Cost(share, min(least.low, share), max(most.high, share), most.n)


def beside_tools(analysis: RunAnalysis) -> bool:
    """Whether generation ran beside tools: a sample that has begun may wait for its tools."""
    tools_s = analysis.breakdown.tau_s[analysis.steady, Stage.ENV]
    known = analysis.probe is None and analysis.overlap_known
    return known and _much(analysis, tools_s) and _beside(analysis, (Stage.ROLLOUT,)) is not None


def _much(analysis: RunAnalysis, seconds: Seconds) -> bool:
    return float(seconds.sum()) > _WORTH_A_LOOK * float(analysis.steps_s.sum())


def _replayed_share(analysis: RunAnalysis, stages: tuple[Stage, ...]) -> float | None:
    """The part of the steps that would fall away without these stages; None: no replay."""
    load, slots = analysis.workload, analysis.tail.slots
    if load is None or not load.steps or is_off(load):
        return None
    engine = load.engine
    if load.streams and slots is not None and not math.isnan(engine.stands_for):
        # An engine holds no more at once than it ever did.
        most = math.ceil(slots.slots.mean / engine.workers / engine.stands_for)
        load = replace(load, engine=replace(engine, slots=min(engine.slots, most)))
    return max(0.0, 1 - replay(without(load, stages)).step_s / replay(load).step_s)


def without(load: StepWorkload, stages: Collection[Stage]) -> StepWorkload:
    """The workload in which these stages take no time."""
    if Stage.ROLLOUT in stages:
        engine = load.engine
        load = replace(load, engine=engine.paced(engine.evaluates / (1 + engine.evaluates)))
    if set(stages) & set(MOVES):
        load = replace(load, sync=SyncModel(), switch_s=0.0)
    for stage in stages:
        load = slowed(load, stage, 0.0)
    return load
