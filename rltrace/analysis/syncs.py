"""What it took to bring new weights to the rollout workers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rltrace.analysis.stats.spread import Spread, spread, spread_of
from rltrace.analysis.steps import Steps
from rltrace.trace.run import Run
from rltrace.trace.tables import Tables
from rltrace.trace.vocabulary import Phase, Stage, SyncRole, Transport, named

_GB = 1e9
_ROWS = """(
    select *, case when version >= 0 then version else -start_ns end as number,
           end_ns - greatest(start_ns, coalesce(
               max(end_ns) over (partition by case when version >= 0 then version else -start_ns end
                   order by start_ns rows between unbounded preceding and 1 preceding),
               start_ns)) as added_ns
    from raw_syncs where start_ns > 0 and end_ns >= start_ns)"""
# Rows of an unknown version are each an update of their own. `added_ns` is how much a row prolongs
# the union of those that began before it.
_BYTES = f"""coalesce(sum(bytes) filter (role = {int(SyncRole.SOURCE)} and bytes >= 0),
                     max(bytes) filter (bytes >= 0))"""


@dataclass(frozen=True)
class Participants:
    """All participants of one role; each figure is of one of them in one update. GB/s is mean bytes
    over mean seconds, of those that say how many bytes they moved."""

    role: str
    processes: int
    rows: int
    bytes: Spread
    seconds: Spread
    stall_s: Spread
    gb_per_s: float


@dataclass(frozen=True)
class Syncs:
    """The weight updates that began within the steady steps, `updates` of the `recorded` in the
    whole run. `update_s` is how long any participant was at work in one (the union of their
    intervals). Its bytes are those that the sources sent, where they are known, else the most that
    one sink took; they are never added up over sinks. `gb_per_s` is mean bytes over mean seconds.
    Each instant of an update is in at most one of its `phases`, so that they add up to the update
    at most."""

    updates: int
    recorded: int
    update_s: Spread
    bytes_per_update: Spread
    gb_per_s: float
    transports: tuple[str, ...]
    participants: tuple[Participants, ...]
    phases: tuple[tuple[str, Spread], ...]


@dataclass(frozen=True)
class Update:
    """One weight update: its version (-1: unknown), when it began (Unix ns), how long any process
    was at work on it, and its bytes (-1: unknown)."""

    version: int
    start_ns: int
    seconds: float
    bytes: int


def updates_of(run: Tables) -> tuple[Update, ...]:
    """All weight updates of `run` in the order of time, figures as in `Syncs`."""
    rows = run.ask(f"""
        select case when number >= 0 then number else -1 end, min(start_ns),
               sum(greatest(added_ns, 0)) / 1e9, coalesce({_BYTES}, -1)::bigint
        from {_ROWS} group by number order by 2
    """)
    return tuple(Update(*row) for row in rows)


def syncs(run: Run, steps: Steps) -> Syncs | None:
    """The weight updates of `run`; None where none was recorded (spans say nothing of bytes)."""
    recorded = run.ask(f"select count(distinct number) from {_ROWS}")[0][0]
    if not recorded:
        return None
    updates = f"""(
        select number, sum(greatest(added_ns, 0)) / 1e9 as seconds, {_BYTES} as bytes
        from {_ROWS} group by number having {_within(steps)})"""
    rows = f"(from {_ROWS} where number in (select number from {updates}))"
    # In one order, which tells the last digit of a mean.
    figures = f"select seconds, coalesce(bytes, 'nan'::double) from {updates} order by number"
    seconds, moved = (np.asarray(c, np.float64) for c in run.ask_columns(figures).values())
    known = ~np.isnan(moved)
    spent_s = float(seconds[known].sum())
    roles = run.ask(f"select distinct role from {rows} order by role")
    used = f"select transport from {rows} where transport >= 0 group by 1 order by count(*) desc"
    return Syncs(
        updates=len(seconds),
        recorded=recorded,
        update_s=spread(seconds),
        bytes_per_update=spread(moved[known]),
        gb_per_s=float(moved[known].sum()) / spent_s / _GB if spent_s else math.nan,
        transports=tuple(named(Transport, code) for (code,) in run.ask(used)),
        participants=tuple(_participants(run, f"{rows} where role = {r}") for (r,) in roles),
        phases=phases(run, f"select number, process, start_ns, end_ns from {rows}"),
    )


def _within(steps: Steps) -> str:
    steady = [steps.windows[i] for i in steps.steady]
    if steps.whole_run or not steady:
        return "true"
    return f"min(start_ns) between {steady[0].start_ns} and {steady[-1].end_ns}"


def _participants(run: Run, rows: str) -> Participants:
    role, processes, n, rate = run.ask(
        "select max(role), count(distinct process), count(*), sum(bytes) filter (bytes >= 0) / "
        "nullif(sum(end_ns - start_ns) filter (bytes >= 0) / 1e9, 0) "
        f"from {rows}"
    )[0]
    return Participants(
        role=named(SyncRole, role),
        processes=processes,
        rows=n,
        bytes=spread_of(run, "bytes", f"{rows} and bytes >= 0"),
        seconds=spread_of(run, "(end_ns - start_ns) / 1e9", rows),
        stall_s=spread_of(run, "stall_ns / 1e9", f"{rows} and stall_ns >= 0"),
        gb_per_s=math.nan if rate is None else rate / _GB,
    )


_PHASES = f"""
    with sharing as ({{participants}}),
    spans as (
        select process, phase, start_ns, end_ns, end_ns - (end_ns - start_ns) // 10 as late
        from raw_spans where start_ns > 0 and end_ns > start_ns and stage = {int(Stage.SYNC)}
        and phase between 0 and {max(Phase)}),
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
    pieces as (
        select number, phase, greatest(start_ns, since) as start_ns, least(end_ns, until) as end_ns
        from found),
    edges as (
        select number, phase, start_ns as time_ns, 1 as change from pieces
        union all select number, phase, end_ns, -1 from pieces),
    running as (
        select number, lead(time_ns) over by_time - time_ns as length_ns, {{running}}
        from edges window by_time as (partition by number order by time_ns, change))
    select number, {{earliest}} as phase, sum(length_ns) / 1e9 as seconds
    from running where phase is not null group by all
"""


def phases(run: Run, participants: str) -> tuple[tuple[str, Spread], ...]:
    """Seconds an update by phase, of the phases that were recorded. `participants` is SQL that
    gives `number` (of the update), `process`, `start_ns` and `end_ns`.

    A phase is of the update that its own process, else any, took part in as it was nearly over (of
    several the first to end), as far as it lies within that part. An instant at which several
    phases of an update run is the first phase's: the later one still has to wait for that.
    """
    counts = [f"sum(change) filter (phase = {int(p)}) over by_time" for p in Phase]
    running = ", ".join(f"{count} as of_{int(p)}" for p, count in zip(Phase, counts, strict=True))
    cases = " ".join(f"when of_{int(p)} > 0 then {int(p)}" for p in Phase)
    query = _PHASES.format(participants=participants, running=running, earliest=f"case {cases} end")
    number, phase, seconds = run.ask_columns(query).values()
    updates = run.ask(f"select count(distinct number) from ({participants})")[0][0]
    which = np.unique(number, return_inverse=True)[1]
    return tuple(
        (
            named(Phase, code),
            spread(np.bincount(which[phase == code], seconds[phase == code], updates)),
        )
        for code in np.unique(phase).tolist()
    )
