"""The SQL of weight updates: who took part in each, and when its phases ran."""

from __future__ import annotations

from rltrace.trace.vocabulary import Phase, Stage

SYNC_ROWS = """
create or replace table sync_rows as
select process, role, transport, bytes, start_ns, end_ns, stall_ns,
       case when version >= 0 then version else -start_ns end as number,
       end_ns - greatest(start_ns, coalesce(
           max(end_ns) over (partition by case when version >= 0 then version else -start_ns end
               order by start_ns rows between unbounded preceding and 1 preceding),
           start_ns)) as added_ns
from raw_syncs where start_ns > 0 and end_ns >= start_ns"""
"""What took part in weight updates: each update has a `number` (rows of an unknown version are each
an update of their own), and `added_ns` is how much a row prolongs the union of those before it."""

PHASE_UNIONS = f"""
    with sharing as (
        select number, process, start_ns, end_ns {{participants}}
        and end_ns >= {{since}} and start_ns < {{until}}),
    spans as (
        select process, phase, start_ns, end_ns, end_ns - (end_ns - start_ns) // 10 as late
        from raw_spans where start_ns > 0 and end_ns > start_ns and stage = {int(Stage.SYNC)}
        and phase between 0 and {max(Phase)} and end_ns >= {{since}} and start_ns < {{until}}
        and late >= {{since}} and late < {{until}}),
    own as (
        select s.*, p.number, p.start_ns as since, p.end_ns as until
        from spans s asof left join sharing p on s.process = p.process and s.late <= p.end_ns),
    found as (
        select phase, start_ns, end_ns, number, since, until from own
        where number is not null and since <= late
        union all
        select s.phase, s.start_ns, s.end_ns, p.number, p.start_ns, p.end_ns
        from (select * from own where number is null or since > late) s
        asof join sharing p on s.late <= p.end_ns where p.start_ns <= s.late),
    pieces as materialized (
        select number, phase, greatest(start_ns, since) as start_ns, least(end_ns, until) as end_ns
        from found),
    -- Pieces that have a moment in common, as most do, are one; others are put in their order.
    whole as (
        select number, phase, min(start_ns) as start_ns, max(end_ns) as end_ns,
               max(start_ns) <= min(end_ns) as is_one
        from pieces group by all),
    begun as (
        select number, phase, start_ns, max(end_ns) over (partition by number, phase) as last_ns,
               max(end_ns) over (partition by number, phase order by start_ns
                   rows between unbounded preceding and 1 preceding) as before_ns
        from pieces semi join (from whole where not is_one) using (number, phase)
        qualify before_ns is null or start_ns > before_ns)
    select number, phase::bigint, start_ns, end_ns from whole where is_one union all
    select number, phase, start_ns, coalesce(
        lead(before_ns) over (partition by number, phase order by start_ns), last_ns) from begun
"""
"""The union of each phase of each update of the `participants`, of spans that were nearly over in a
part of the time: `number`, `phase`, start and end."""
