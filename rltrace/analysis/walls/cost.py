"""By how much each step would be shorter if some stages took no time.

Where stages take turns, that is the stages' exposed time. Where two chains run beside each other,
the step cannot become shorter than the other chain: only the time in which theirs ran alone falls
away. In a pipeline of lengths A and L without idle time this is exactly max(A, L) - max(A - w, L)
for stages that take w of A.

Exposed time is charged by which chain runs alone for longer in a step, so it may name stages that
nothing waited for. Where the critical path was followed through chains that overlap, a stage's time
on it takes the place of its exposed time: what is not on the path can make no step shorter, and
what is on it still no more than the other chain allows, of which only the work on samples counts:
a process that audits in the background holds nobody up. A share that a probe put right
(`rltrace.analysis.walls.held_up`) stands as it was measured: what ran alone, by which it was found
to be wrong, is no bound for it.

Where many samples are generated, in their tools and judged at once, generation and what it runs
beside are bounded, and the figure is a replay's (`rltrace.analysis.walls.beside`).

Where queues lie between roles that go on by themselves, none of this tells what a step would wait
for without a stage: there the pace of the others does (`rltrace.analysis.walls.paced`).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rltrace.analysis.binding import RESOURCE_OF
from rltrace.analysis.chains import Chain, Seconds
from rltrace.analysis.walls.beside import beside
from rltrace.analysis.walls.held_up import corrections, held_up_s
from rltrace.analysis.walls.paced import paced
from rltrace.analysis.walls.wall import TAIL, Seen
from rltrace.trace.vocabulary import Stage


def stages_of(wall: str) -> tuple[Stage, ...]:
    """The stages that a wall stands for; the tail is one of generation."""
    if wall == TAIL:
        return (Stage.ROLLOUT,)
    return tuple(stage for stage, name in RESOURCE_OF.items() if name == wall)


def relief_s(seen: Seen, stages: Iterable[Stage]) -> Seconds:
    """Seconds by steady step."""
    breakdown, steady = seen.breakdown, seen.steady
    relief = np.zeros(len(steady))
    by_chain: dict[Chain, list[Stage]] = {}
    put_right = corrections(seen)
    stages = tuple(stages)
    by_pace = paced(seen, stages)
    if by_pace is not None:
        part: Seconds = seen.steps_s * by_pace.value
        return part
    by_replay = beside(seen, stages)
    if by_replay is not None:
        return np.asarray(seen.steps_s * by_replay.share)
    for stage in stages:
        if stage in put_right:
            relief += held_up_s(seen, [stage])
        else:
            by_chain.setdefault(breakdown.chain_of[stage], []).append(stage)
    for chain, members in by_chain.items():
        relief += np.minimum(held_up_s(seen, members), _alone_s(seen, chain)[steady])
    return relief


def _alone_s(seen: Seen, chain: Chain) -> Seconds:
    """How long a chain ran while the other one did not."""
    breakdown = seen.breakdown
    if chain is Chain.WEIGHTS:
        return np.full(len(breakdown.steps_s), np.inf)
    alone: Seconds = np.maximum(0.0, breakdown.chain_s[:, chain] - seen.overlap_s)
    return alone
