"""Walls of generation: decoding, and slots that idle while the longest of a batch end.

Once the last sample of a batch has begun, nothing fills the slots that fall free: that time the
tail takes from exposed generation, the rest is decoding's. An idle slot costs nothing where the
others then decode faster: idle time counts by the part of a token's time that does not depend on
how many sequences run beside it (reading the weights).
"""

from __future__ import annotations

import math
from dataclasses import replace

from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stats.confidence_interval import Estimate, Spread, spread_of, within
from rltrace.analysis.walls import wall as w
from rltrace.analysis.walls.attribute import beside_tools, exposed_figures, stage_wall
from rltrace.analysis.whatif.workload import table
from rltrace.trace.vocabulary import Stage

_FULL = 0.9  # of the slots in use
_WORTH_A_WORD = 0.01  # of generation
_MOSTLY = 0.5  # of generation
_OF_TAIL = "draining batches (the long tail)"
_NO_TAIL = "the trajectories' begin and end, without which the tail of a batch counts as decoding"
_BY_LOG = "generation of samples beyond the mean one, by their lengths or times in the log"
_LOGGED = (("response_tokens", "longest_tokens"), ("mean_generation_s", "longest_generation_s"))
_STAGES = (Stage.ROLLOUT,)

SYMPTOM = "few samples run for most of a batch, and everyone waits for its longest"
_TRAJECTORIES = "each trajectory's begin and end: a hook on the engine's requests"


def drain(analysis: RunAnalysis) -> tuple[float, str]:
    """`(the part of a batch's generation that draining costs, what is missing)`: NaN where it is
    unknown, and 0 where there is no barrier."""
    slots = analysis.tail.slots
    if slots is None:
        return math.nan, "no trajectory with a length was recorded"
    if not slots.batches:
        return 0.0, "generation never stops for a batch to end"
    if not slots.span_s.mean > 0:
        return math.nan, "no batch took any time"
    alone_s, beside_s = _token_parts_s(analysis)
    lost_s = 0.0
    for seconds, used in zip(slots.draining_at_s, slots.draining_used_shares, strict=True):
        rate = used * (alone_s + beside_s) / (alone_s + beside_s * used)  # of that with full slots
        lost_s += seconds * (1 - rate)
    return within(lost_s / slots.span_s.mean), ""


def _token_parts_s(analysis: RunAnalysis) -> tuple[float, float]:
    """`(alone, beside)`: a token of a sequence takes the first and, where all slots are used, the
    second on top. Where nobody knows, the others cost nothing."""
    slots, load = analysis.tail.slots, analysis.workload
    engine = None if load is None else load.engine
    # Where it stands for no number of samples, its own are not those of the run.
    if engine is None or slots is None or not engine.token_s > 0 or math.isnan(engine.stands_for):
        return 1.0, 0.0
    sequences = slots.slots.mean / engine.workers / engine.stands_for
    return engine.token_s, engine.shared_token_s * sequences


def tail_by_log(analysis: RunAnalysis) -> tuple[Estimate, float] | None:
    """By a log's mean and longest sample: the part of generation that draining costs, and seconds
    of a step in which the longest generates. None where it tells neither length nor time, or no
    batch waits. A sequence alone has the replay's pace; what slows it down is the others' work."""
    logged, steady = analysis.logged, analysis.steady
    told = [(logged[a].mean, logged[b].mean) for a, b in _LOGGED if a in logged and b in logged]
    parts = [mean / longest for mean, longest in told if 0 < mean <= longest]
    rollout_s = float(analysis.breakdown.tau_s[steady, Stage.ROLLOUT].sum())
    if not parts or not rollout_s > 0 or analysis.placement == "async":
        return None
    part, rollout_s = max(parts), rollout_s / len(steady)  # of two tails the smaller
    tokens = logged["longest_tokens"].mean if "longest_tokens" in logged else math.inf
    alone, work = table()["alone_tokens_per_s"], table()["full_slowdown"]
    ends = (alone.high, work.high), (alone.middle, work.middle), (alone.low, work.low)
    tails_s = [min(tokens / pace, rollout_s / (1 + times * part)) for pace, times in ends]
    return Estimate(*(tail_s * (1 - part) / rollout_s for tail_s in tails_s)), tails_s[1]


@w.register(w.TAIL, Stage.ROLLOUT, part=True)
def long_tail(analysis: RunAnalysis) -> w.Wall:
    share, why = drain(analysis)
    if math.isnan(share) and (told := tail_by_log(analysis)):
        lost, missing = told[0], (_TRAJECTORIES,)
        found = stage_wall(analysis, w.TAIL, SYMPTOM, _STAGES, (), missing, because=_BY_LOG)
        cost = found.cost.scaled(lost.value, lost.low, lost.high)
        return replace(found, cost=cost, confidence=w.WEAK)
    if math.isnan(share):
        return w.cannot_tell(w.TAIL, SYMPTOM, why, _TRAJECTORIES)
    evidence = _evidence(analysis)
    if not share:
        return w.Wall(w.TAIL, w.LIKELY, w.NONE, SYMPTOM, why or "no slot stood idle", evidence, ())
    because = "the time of a step in which slots stand idle as a batch drains"
    unsure = beside_tools(analysis)  # a slot that is not idle, as its sample has gone to its tools
    wall = stage_wall(
        analysis, w.TAIL, SYMPTOM, (Stage.ROLLOUT,), evidence, because=because, part=share,
        part_within=(0.0, share) if unsure else None,
    )  # fmt: skip
    return replace(wall, confidence=w.WEAK) if unsure and wall.confidence == w.LIKELY else wall


def _evidence(analysis: RunAnalysis) -> tuple[w.Figure, ...]:
    latency_s, slots = analysis.tail.latency_s, analysis.tail.slots
    found = []
    if slots is not None and slots.batches:
        found += [
            w.figure("a batch drains for", slots.draining_s, "s"),
            w.figure("the whole batch takes", slots.span_s, "s"),
            w.figure("slots used while it drains", slots.draining_used_share, "share"),
            w.figure("the last 10 % of a batch take", slots.last_tenth_share, "share"),
            w.Figure("generation if no slot were idle", slots.no_idle_span_s, "s", slots.batches),
        ]
    if latency_s.n:
        found.append(w.Figure("p95 / p50 of latency", latency_s.tail_ratio, "×", latency_s.n))
    return tuple(one for one in found if not math.isnan(one.value))


@w.register(w.ROLLOUT, *_STAGES)
def rollout(analysis: RunAnalysis) -> w.Wall:
    (of_tail, _), missing, lost = drain(analysis), [], None
    if math.isnan(of_tail):
        of_tail, missing, told = 0.0, [_NO_TAIL], tail_by_log(analysis)
        # What a log tells roughly is apart from decoding only where it is most of generation.
        lost = told[0] if told and told[0].value > _MOSTLY else None
    token_s = _token_s(analysis)
    evidence = [*exposed_figures(analysis, _STAGES), *_of_engines(analysis, token_s)]
    slots = analysis.tail.slots
    full = slots is not None and slots.used_share.mean >= _FULL
    symptom = "engines are busy and full, the step waits for samples"
    if not full:
        symptom = "the step waits while engines generate"
    wall = stage_wall(
        analysis, w.ROLLOUT, symptom, _STAGES, evidence, missing,
        part=1 - of_tail, but=_OF_TAIL if lost or of_tail >= _WORTH_A_WORD else "",
        part_within=(1 - of_tail, 1.0) if beside_tools(analysis) else None,
    )  # fmt: skip
    if lost is None:
        return wall
    cost = wall.cost.scaled(1 - lost.value, 1 - lost.high, 1 - lost.low)
    return replace(wall, cost=cost, confidence=w.WEAK)


def _token_s(analysis: RunAnalysis) -> Spread:
    """Seconds a token of a sequence, from its first token on and without its tools."""
    return spread_of(
        analysis.run,
        "(end_ns - first_token_ns - greatest(env_ns, 0)) / 1e9 / (response_tokens - 1)",
        "raw_trajectories where start_ns > 0 and end_ns > first_token_ns and first_token_ns > 0 "
        "and response_tokens > 1",
    )


def _of_engines(analysis: RunAnalysis, token_s: Spread) -> list[w.Figure]:
    found = []
    slots, tokens = analysis.tail.slots, analysis.tail.response_tokens
    rollout_s = float(analysis.breakdown.tau_s[analysis.steady, Stage.ROLLOUT].sum())
    if tokens.n and rollout_s:
        rate = tokens.mean * analysis.tail.latency_s.n / rollout_s  # uncounted ones are as long
        found.append(w.Figure("tokens while generating", rate, "tokens/s", tokens.n))
    if token_s.n:
        found.append(w.Figure("a token of a sequence, median", token_s.p50, "s", token_s.n))
    if slots is not None:
        found.append(w.figure("slots used", slots.used_share, "share"))
    return found
