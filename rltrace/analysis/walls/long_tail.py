"""Long-tail skew: slots that stand idle while a batch drains and its longest samples end.

Generation of a batch takes as long as its last sample. From the moment at which the last one has
begun, slots fall free and nothing fills them. That is time the tail takes from exposed generation;
the rest of it is decoding's. A slot that falls idle costs nothing where the others then decode
faster: so idle time counts by the part of a token's time that does not depend on how many sequences
run beside it (reading the weights), which is found from the run's own sequences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rltrace.analysis.walls.beside import beside_tools
from rltrace.analysis.walls.cost import relief_s
from rltrace.analysis.walls.stage_wall import stage_wall
from rltrace.analysis.walls.wall import (
    CANNOT_TELL,
    LIKELY,
    NONE,
    TAIL,
    UNKNOWN,
    WEAK,
    Figure,
    Seen,
    Wall,
    figure,
)
from rltrace.trace.vocabulary import Stage

SYMPTOM = "few samples run for most of a batch, and everyone waits for its longest"
_TRAJECTORIES = "the trajectories' begin and end: a hook on the engine's requests records them"


@dataclass(frozen=True)
class Drain:
    """`share` is the part of a batch's generation that draining costs; NaN: unknown, `why` says
    what is missing (or that there is no barrier, where it is 0)."""

    share: float
    why: str


def drain(seen: Seen) -> Drain:
    """What draining costs of generation."""
    slots = seen.tail.slots
    placement = "" if seen.composition is None else seen.composition.placement
    if slots is None:
        return Drain(math.nan, "no trajectory with a length was recorded")
    if not slots.batches:
        if placement == "async":
            return Drain(0.0, "generation never stops for a batch to end")
        return Drain(math.nan, "trajectories and steps do not tell what was one batch")
    if not slots.span_s.mean > 0:
        return Drain(math.nan, "no batch took any time")
    alone_s, beside_s = _token_s(seen)
    parts = len(slots.draining_at_s)
    lost_s = 0.0
    for place, seconds in enumerate(slots.draining_at_s):
        used = (place + 0.5) / parts
        rate = used * (alone_s + beside_s) / (alone_s + beside_s * used)  # of that with full slots
        lost_s += seconds * (1 - rate)
    return Drain(min(1.0, lost_s / slots.span_s.mean), "")


def _token_s(seen: Seen) -> tuple[float, float]:
    """`(alone, beside)`: a token of a sequence takes the first and, where all slots are used, the
    second on top. Where nobody knows, the others cost nothing."""
    slots, load = seen.tail.slots, seen.workload
    if load is None or slots is None or not load.engine.token_s > 0:
        return 1.0, 0.0
    engine = load.engine
    sequences = slots.slots.mean / engine.workers / engine.stands_for
    return engine.token_s, engine.shared_token_s * sequences


def long_tail(seen: Seen) -> Wall:
    """The test."""
    found = drain(seen)
    if math.isnan(found.share):
        return Wall(TAIL, CANNOT_TELL, UNKNOWN, SYMPTOM, found.why, (), (_TRAJECTORIES,))
    evidence = _evidence(seen)
    if not found.share:
        return Wall(TAIL, LIKELY, NONE, SYMPTOM, found.why or "no slot stood idle", evidence, ())
    stages = (Stage.ROLLOUT,)
    seconds = relief_s(seen, stages) * found.share
    because = "the part of the step in which slots stand idle while a batch drains"
    unsure = beside_tools(seen)  # a slot that is not idle, as its sample has gone to its tools
    within = (0.0, found.share) if unsure else None
    wall = stage_wall(
        seen, TAIL, SYMPTOM, stages, seconds, evidence, (), because, found.share, part_within=within
    )
    return wall.but(WEAK) if unsure and wall.confidence == LIKELY else wall


def _evidence(seen: Seen) -> tuple[Figure, ...]:
    tail, slots = seen.tail, seen.tail.slots
    found = []
    if slots is not None and slots.batches:
        found += [
            figure("a batch drains for", slots.draining_s, "s"),
            figure("of generation", slots.span_s, "s"),
            figure("slots used while it drains", slots.used_while_draining, "share"),
            figure("the last 10 % of a batch take", slots.last_tenth_share, "share"),
            Figure("generation if no slot were idle", slots.perfect_s, "s", slots.batches),
        ]
    if tail.latency_s.n:
        found.append(Figure("p95 / p50 of latency", tail.latency_s.tail_ratio, "×",
                            tail.latency_s.n))  # fmt: skip
    if tail.lengths is not None:
        length = tail.lengths.longest_of_batch
        found.append(Figure("longest of a batch, expected", length, "× the mean",
                            tail.response_tokens.n))  # fmt: skip
    return tuple(one for one in found if not math.isnan(one.value))
