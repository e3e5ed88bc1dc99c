"""Stages without a GPU that come to share the cores with each other.

A stage takes longer while another one works beside it: where there are fewer cores than threads,
and also where there are enough (cores share caches, memory and clock rate; two may be the threads
of one). What a run measured has that already for the time that its stages ran beside others, so a
change slows a stage only by what more of its time it then spends in company.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rltrace.analysis.whatif.constants import Constants
from rltrace.analysis.whatif.replay import Replay, replay
from rltrace.analysis.whatif.workload import Workload
from rltrace.trace.vocabulary import Stage

_ROUNDS = 2  # slower stages overlap in another way, by so little that more rounds tell nothing


def crowded(before: Workload, base: Replay, after: Workload, constants: Constants) -> Workload:
    """`after`, with its stages as slow as their company then makes them; `base` is the replay of
    `before`. Where nothing runs at another time than before, it stays as it is."""
    if not before.shares_cores or _as_before(before, after):
        return after
    slower = constants["shared_cores"]
    made = after
    for _ in range(_ROUNDS):
        made = _slowed(before, after, base.beside, replay(made).beside, slower)
    return made


def _as_before(before: Workload, after: Workload) -> bool:
    """Whether the same stages run at the same times."""

    def when(load: Workload) -> tuple[object, ...]:
        in_turn = Stage.REFERENCE in load.serial_s
        return load.placement, load.keeps_unfinished, load.chunks, in_turn

    return when(before) == when(after)


def _slowed(
    before: Workload,
    after: Workload,
    was: Mapping[Stage, float],
    now: Mapping[Stage, float],
    slower: float,
) -> Workload:
    def factor(earlier: Stage, later: Stage) -> float:
        alone = 1 + (slower - 1) * was.get(earlier, 0.0)
        return (1 + (slower - 1) * now.get(later, 0.0)) / alone

    decode = factor(Stage.ROLLOUT, Stage.ROLLOUT)
    engine = replace(
        after.engine,
        token_s=after.engine.token_s * decode,
        shared_token_s=after.engine.shared_token_s * decode,
    )
    learner = factor(Stage.TRAIN, Stage.TRAIN)
    serial_s = {s: tuple(x * learner for x in series) for s, series in after.serial_s.items()}
    in_turn = Stage.REFERENCE in before.serial_s
    reference = factor(Stage.TRAIN if in_turn else Stage.REFERENCE, Stage.REFERENCE)
    return replace(
        after, engine=engine, serial_s=serial_s, reference_s=after.reference_s * reference
    )
