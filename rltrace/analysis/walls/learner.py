"""Learner FLOPs + memory: everyone waits for forward, backward, update and the passes beside them.

A log-prob pass that only stands in for log-probs which generation lost is not the learner's fault:
it is counted by `observability`.
"""

from __future__ import annotations

import math

from rltrace.analysis.walls.cost import relief_s, stages_of
from rltrace.analysis.walls.observability import stands_in
from rltrace.analysis.walls.peaks import learner_mfu
from rltrace.analysis.walls.stage_wall import exposed_figures, stage_wall
from rltrace.analysis.walls.wall import LEARNER, Figure, Seen, Wall
from rltrace.trace.vocabulary import Stage

SYMPTOM = "everyone waits for the learner and the passes beside it"


def learner(seen: Seen) -> Wall:
    """The test."""
    stages = stages_of(LEARNER)
    if stands_in(seen):
        stages = tuple(stage for stage in stages if stage is not Stage.LOGPROB)
    evidence = list(exposed_figures(seen, stages))
    missing = []
    mfu, why = learner_mfu(seen)
    if math.isnan(mfu):
        missing.append(f"the learner's MFU needs {why}")
    else:
        evidence.append(Figure("MFU of training", mfu, "share", len(seen.steady)))
    evidence += _memory(seen)
    if not _memory(seen):
        missing.append("memory pressure needs GPU samples (NVML on the learner's node)")
    seconds = relief_s(seen, stages)
    return stage_wall(seen, LEARNER, SYMPTOM, stages, seconds, tuple(evidence), tuple(missing))


def _memory(seen: Seen) -> list[Figure]:
    """The fullest that any GPU got."""
    n, fullest = seen.run.ask("""
        with read as (
            select process, device, time_ns, text, value from raw_samples
            join names on names.id = counter where time_ns > 0
                 and text in ('gpu/memory_used_bytes', 'gpu/memory_total_bytes')),
        used as (select process, device, max(value) as most, count(*) as n from read
                 where text = 'gpu/memory_used_bytes' group by all),
        total as (select process, device, max(value) as whole from read
                  where text = 'gpu/memory_total_bytes' group by all)
        select coalesce(sum(n), 0)::bigint, max(most / whole)
        from used join total using (process, device) where whole > 0
    """)[0]
    return [] if fullest is None else [Figure("GPU memory used, the fullest", fullest, "share", n)]
