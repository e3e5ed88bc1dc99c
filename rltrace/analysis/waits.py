"""Who waited for what: time blocked on a queue, lock or barrier, which is no work of any stage."""

from __future__ import annotations

from dataclasses import dataclass

from rltrace.analysis.steps import Steps
from rltrace.trace.run import Run
from rltrace.trace.vocabulary import Stage

_SHOWN = 5


@dataclass(frozen=True)
class Wait:
    """One thing that was waited for, by the processes of one role, in so many `threads` (or tasks)
    of them together. `process_s` adds up the waits of all of these during the steady steps; `share`
    is that over the time that they had. `in_step`: the steps themselves waited (in the lane that
    records them), so it is evidence of what holds them up; back-pressure on work beside them is
    none."""

    name: str
    role: str
    processes: int
    threads: int
    spans: int
    process_s: float
    share: float
    in_step: bool


def waits(run: Run, steps: Steps) -> tuple[Wait, ...]:
    """The largest waits of `run`, longest first."""
    steady = [steps.windows[i] for i in steps.steady]
    if not steady:
        return ()
    since, until = steady[0].start_ns, steady[-1].end_ns
    rows = run.ask(f"""
        select coalesce(text, '?'), coalesce(role, ''), count(distinct process),
               count(distinct (process, lane)), count(*),
               sum(least(end_ns, {until}) - greatest(s.start_ns, {since})) / 1e9 as process_s,
               bool_or((process, lane) in
                       (select (process, lane) from raw_spans where stage = {int(Stage.STEP)}))
        from raw_spans s left join names on names.id = name left join processes using (process)
        where stage = {int(Stage.WAIT)} and s.start_ns between 1 and {until} and end_ns > {since}
        group by 1, 2 order by process_s desc limit {_SHOWN}
    """)
    window_s = (until - since) / 1e9
    return tuple(
        Wait(name, role, n, threads, spans, seconds, seconds / (threads * window_s), in_step)
        for name, role, n, threads, spans, seconds, in_step in rows
    )
