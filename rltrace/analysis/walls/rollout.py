"""Rollout decode: tokens come as fast as engines decode them, and the step waits.

Judged by the pace of a token against what reading the weights takes (the roofline of memory
bandwidth: bytes of the weights over the bandwidth of an engine's devices), where parameters and
devices are known, and by how full the slots are: an engine at its roofline with full slots is the
wall itself, one whose slots are empty waits for something else (see the long tail).
"""

from __future__ import annotations

import math

from rltrace.analysis.spread import Spread, spread_of
from rltrace.analysis.walls.beside import beside_tools
from rltrace.analysis.walls.cost import relief_s
from rltrace.analysis.walls.long_tail import drain
from rltrace.analysis.walls.peaks import decode_roofline
from rltrace.analysis.walls.stage_wall import exposed_figures, stage_wall
from rltrace.analysis.walls.wall import ROLLOUT, Figure, Seen, Wall, figure
from rltrace.trace.vocabulary import Stage

_FULL = 0.9  # of the slots in use
_WORTH_A_WORD = 0.01  # of generation
_OF_TAIL = "the time in which a batch drains, which is the long tail's"


def rollout(seen: Seen) -> Wall:
    """The test; time in which a batch drains is the tail's."""
    stages = (Stage.ROLLOUT,)
    of_tail = drain(seen).share
    missing = []
    if math.isnan(of_tail):
        of_tail = 0.0
        missing.append(
            "the trajectories' begin and end, without which the tail of a batch counts as decoding"
        )
    token_s = _token_s(seen)
    ratio, why = decode_roofline(seen, token_s.p50)
    evidence = [*exposed_figures(seen, stages), *_evidence(seen, token_s)]
    if math.isnan(ratio):
        missing.append(f"the decode rate against its roofline needs {why}")
    else:
        evidence.append(Figure("decode rate of the roofline's", ratio, "share", token_s.n))
    seconds = relief_s(seen, stages) * (1 - of_tail)
    return stage_wall(
        seen, ROLLOUT, _symptom(seen), stages, seconds, tuple(evidence), tuple(missing),
        part=1 - of_tail, but=_OF_TAIL if of_tail >= _WORTH_A_WORD else "",
        part_within=(1 - of_tail, 1.0) if beside_tools(seen) else None,
    )  # fmt: skip


def _symptom(seen: Seen) -> str:
    """What is seen of the engines; how full they are only where that is known."""
    slots = seen.tail.slots
    if slots is None or not slots.used_share.mean >= _FULL:
        return "the learner waits while engines generate"
    return "engines are busy and full, the learner waits for samples"


def _token_s(seen: Seen) -> Spread:
    """Seconds a token of a sequence, from its first token on and without its tools."""
    return spread_of(
        seen.run,
        "(end_ns - first_token_ns - greatest(env_ns, 0)) / 1e9 / (response_tokens - 1)",
        "raw_trajectories where start_ns > 0 and end_ns > first_token_ns and first_token_ns > 0 "
        "and response_tokens > 1",
    )


def _evidence(seen: Seen, token_s: Spread) -> list[Figure]:
    found = []
    slots, tokens = seen.tail.slots, seen.tail.response_tokens
    rollout_s = seen.breakdown.tau_s[seen.steady, Stage.ROLLOUT].sum() if seen.steady else 0.0
    if tokens.n and rollout_s:
        rate = tokens.mean * tokens.n / float(rollout_s)
        found.append(Figure("tokens while generating", rate, "tokens/s", tokens.n))
    if token_s.n:
        found.append(Figure("a token of a sequence, median", token_s.p50, "s", token_s.n))
    if slots is not None:
        found.append(figure("slots used", slots.used_share, "share"))
    return found
