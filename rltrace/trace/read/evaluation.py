"""SQL that tells the samples of an evaluation, which are in no figure of training.

They are those that a process generates while it has a span of stage `eval` open. One that trains
beside it, or has samples under way as that begins or ends, does both at once: then nobody can tell
whose a sample is. Nor is one that was handed to the learner the evaluation's.
"""

from __future__ import annotations

from rltrace.trace.vocabulary import Stage

EVALUATIONS = f"""
create or replace table evaluations as
with begun as (
    select process, lane, start_ns, end_ns from raw_spans
    where stage = {int(Stage.EVAL)} and start_ns > 0 and end_ns > start_ns
          and process in (select process from recorded_trajectories)
    qualify start_ns > coalesce(max(end_ns) over (partition by process order by start_ns
            rows between unbounded preceding and 1 preceding), 0))
select process, start_ns, end_ns from begun e
where not exists (
        select 1 from raw_spans s where s.process = e.process and s.stage = {int(Stage.TRAIN)}
        and s.lane <> e.lane and s.start_ns < e.end_ns and s.end_ns > e.start_ns)
    and not exists (
        select 1 from recorded_trajectories t where t.process = e.process
        and t.start_ns < e.end_ns and t.end_ns > e.start_ns
        and (t.start_ns < e.start_ns or t.end_ns > e.end_ns))"""
EVALUATED = """
create or replace table evaluated as
select t.process, t.start_ns, nullif(trajectory, -1) as trajectory, e.end_ns as until_ns
from recorded_trajectories t asof join evaluations e
     on t.process = e.process and t.start_ns >= e.start_ns
where t.start_ns <= e.end_ns and (trajectory not in (select trajectory from recorded_uses)
    or trajectory in (select trajectory from recorded_trajectories
                      group by trajectory having count(*) > 1))"""
"""Tables: when processes only evaluated, and the samples that they generated then."""

OTHER_ROWS = {
    "trajectories": "from ({rows}) anti join evaluated using (process, start_ns)",
    "rewards": """from ({rows}) r
        where not exists (select 1 from evaluations e where e.process = r.process
                          and r.start_ns between e.start_ns and e.end_ns)
        and not exists (select 1 from evaluated v where v.trajectory = r.trajectory
                        and r.start_ns between v.start_ns and v.until_ns)""",
}
"""Of `rows` of these tables those that are of no evaluation."""
