"""Rollout: the step waits for decoding, not for a batch that drains."""

from __future__ import annotations

import math

from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stats.confidence_interval import Spread, spread_of
from rltrace.analysis.walls.attribute import beside_tools
from rltrace.analysis.walls.long_tail import drain
from rltrace.analysis.walls.stage_wall import exposed_figures, stage_wall
from rltrace.analysis.walls.wall import ROLLOUT, Figure, Wall, figure, register
from rltrace.trace.vocabulary import Stage

_FULL = 0.9  # of the slots in use
_WORTH_A_WORD = 0.01  # of generation
_OF_TAIL = "draining batches (the long tail)"
_NO_TAIL = "the trajectories' begin and end, without which the tail of a batch counts as decoding"
_STAGES = (Stage.ROLLOUT,)


@register(ROLLOUT, *_STAGES)
def rollout(analysis: RunAnalysis) -> Wall:
    (of_tail, _), missing = drain(analysis), []
    if math.isnan(of_tail):
        of_tail, missing = 0.0, [_NO_TAIL]
    token_s = _token_s(analysis)
    evidence = [*exposed_figures(analysis, _STAGES), *_of_engines(analysis, token_s)]
    slots = analysis.tail.slots
    full = slots is not None and slots.used_share.mean >= _FULL
    symptom = "engines are busy and full, the step waits for samples"
    if not full:
        symptom = "the step waits while engines generate"
    return stage_wall(
        analysis, ROLLOUT, symptom, _STAGES, evidence, missing,
        part=1 - of_tail, but=_OF_TAIL if of_tail >= _WORTH_A_WORD else "",
        part_within=(1 - of_tail, 1.0) if beside_tools(analysis) else None,
    )  # fmt: skip


def _token_s(analysis: RunAnalysis) -> Spread:
    """Seconds a token of a sequence, from its first token on and without its tools."""
    return spread_of(
        analysis.run,
        "(end_ns - first_token_ns - greatest(env_ns, 0)) / 1e9 / (response_tokens - 1)",
        "raw_trajectories where start_ns > 0 and end_ns > first_token_ns and first_token_ns > 0 "
        "and response_tokens > 1",
    )


def _of_engines(analysis: RunAnalysis, token_s: Spread) -> list[Figure]:
    found = []
    slots, tokens = analysis.tail.slots, analysis.tail.response_tokens
    rollout_s = float(analysis.breakdown.tau_s[analysis.steady, Stage.ROLLOUT].sum())
    if tokens.n and rollout_s:
        rate = tokens.mean * analysis.tail.latency_s.n / rollout_s  # uncounted ones are as long
        found.append(Figure("tokens while generating", rate, "tokens/s", tokens.n))
    if token_s.n:
        found.append(Figure("a token of a sequence, median", token_s.p50, "s", token_s.n))
    if slots is not None:
        found.append(figure("slots used", slots.used_share, "share"))
    return found
