"""Processes that are in a stage for their own sake: an audit of old verdicts beside the job, say.

Beside such a process all others seem hidden. Who works on samples is in the stage while one waits
for it. So a process without rows of its own that is in the stage nearly all the rest of the time,
too, contributes to no step. Where some sample waits at all times (asynchronous jobs) that cannot be
told, and nobody is left out.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from rltrace.analysis.intervals import Intervals, Ints, merged
from rltrace.trace.query_columns import columns
from rltrace.trace.run import Run
from rltrace.trace.vocabulary import Stage

_LEAST_REST = 0.1  # of the time from the first sample to the last: less tells nothing
_NEARLY_ALL = 0.9  # of the rest; a verifier at work on samples is in its stage for none of it
_TOLD = 0.9  # of the samples have to say until when they waited

_ROWS_OF = {Stage.ROLLOUT: "trajectories", Stage.REWARD: "rewards"}

_WAITED = {
    Stage.ROLLOUT: "begun_ns, ended_ns",
    Stage.REWARD: "ended_ns, coalesce(greatest(judged_ns, ended_ns), 0)",
}
"""Since and until when a sample is the stage's, of its begin and end, and of the moment of its
verdict."""


def find_background(run: Run, seen: Collection[tuple[Stage, int]]) -> tuple[tuple[Stage, int], ...]:
    """Who of the processes `seen` with spans in a stage is there in the background."""
    found = []
    for stage, table in _ROWS_OF.items():
        rows = run.ask(f"select distinct process from raw_{table} where start_ns > 0")
        at_work = {process for (process,) in rows}
        asked = sorted(one for of, one in seen if of is stage and one not in at_work)
        rest = _rest(run, stage) if asked and at_work else None
        if rest is not None:
            starts, ends = rest
            for process in asked:
                spans = _spans(run, stage, process)
                inside = spans.until(ends) - spans.until(starts)
                if inside.sum() / (ends - starts).sum() >= _NEARLY_ALL:
                    found.append((stage, process))
    return tuple(found)


def _rest(run: Run, stage: Stage) -> tuple[Ints, Ints] | None:
    """`(starts, ends)` of when no sample was the stage's, from the first sample to the last; None
    where the samples do not tell, or there is too little of it."""
    query = f"""
        with samples as (
            select trajectory, min(start_ns) as begun_ns, max(end_ns) as ended_ns
            from raw_trajectories where start_ns > 0 and trajectory <> -1
            group by trajectory having max(end_ns) > 0),
        verdicts as (
            select trajectory, max(greatest(start_ns, end_ns)) as judged_ns
            from raw_rewards where start_ns > 0 and trajectory <> -1 group by trajectory)
        select min(begun_ns) over (), {_WAITED[stage]}
        from samples left join verdicts using (trajectory)
    """
    first, since, until = columns(run, query)
    known = until > since  # else clocks out of order, or a verdict that was put where it ends
    if not len(since) or known.mean() < _TOLD:
        return None
    waited = merged(since[known], until[known])
    starts = np.append(first[0], waited.end[:-1])
    ends = waited.start
    some = ends > starts
    whole = int(waited.end[-1]) - int(starts[0])
    if (ends - starts)[some].sum() < _LEAST_REST * whole or not some.any():
        return None
    return starts[some], ends[some]


def _spans(run: Run, stage: Stage, process: int) -> Intervals:
    """The union of a process's spans in a stage; an open one lasts to its last sign of life."""
    query = f"""
        select start_ns, case when end_ns < 0 then last_ns else end_ns end
        from (select start_ns, end_ns, stage, max(greatest(start_ns, end_ns)) over () as last_ns
              from raw_spans where process = {process} and start_ns > 0)
        where stage = {int(stage)}
    """
    return merged(*columns(run, query))
