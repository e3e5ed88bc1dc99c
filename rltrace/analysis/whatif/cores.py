"""Stages without a GPU that come to share the cores with each other.

A stage takes longer while another one works beside it: where there are fewer cores than threads,
and also where there are enough (cores share caches, memory and clock rate; two may be the threads
of one). Where work of others takes the cores in turns with the job's, one more thread makes what
only computes wait longer (`one_more`): the learner's stages and the reference pass. How much of an
engine's pace is computing is not known. What a run measured has that already for the time that its
stages ran beside others, so a change slows a stage only by what more of its time it then spends in
company.
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
        made = _slowed(after, base.beside, replay(made).beside, slower, before.one_more)
    return made


def _as_before(before: Workload, after: Workload) -> bool:
    """Whether the same stages run at the same times."""

    def when(load: Workload) -> tuple[object, ...]:
        return load.placement, load.keeps_unfinished, load.chunks, *sorted(load.serial_s)

    return when(before) == when(after)


def _slowed(
    after: Workload,
    was: Mapping[Stage, float],
    now: Mapping[Stage, float],
    slower: float,
    one_more: float,
) -> Workload:
    def factor(stage: Stage) -> float:
        more = slower * (one_more if stage is not Stage.ROLLOUT else 1.0) - 1
        return (1 + more * now.get(stage, 0.0)) / (1 + more * was.get(stage, 0.0))

    decode = factor(Stage.ROLLOUT)
    engine = replace(
        after.engine,
        token_s=after.engine.token_s * decode,
        shared_token_s=after.engine.shared_token_s * decode,
    )
    serial_s = {
        stage: tuple(seconds * factor(stage) for seconds in series)
        for stage, series in after.serial_s.items()
    }
    reference_s = after.reference_s * factor(Stage.REFERENCE)
    return replace(after, engine=engine, serial_s=serial_s, reference_s=reference_s)
