"""What it took to bring new weights to the rollout workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rltrace.analysis.codes import named
from rltrace.analysis.spread import Spread, spread, spread_of
from rltrace.analysis.steps import Steps
from rltrace.analysis.sync_phases import phases
from rltrace.trace.vocabulary import SyncRole, Transport

if TYPE_CHECKING:
    from rltrace.trace.run import Run

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
    """All participants of one role ("unknown" where nobody said); each figure is of one of them in
    one update. GB/s is mean bytes over mean seconds, of those that say how many bytes they moved;
    10^9 bytes, NaN where unknown."""

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
    whole run; the figures are those of the stage `sync` in these steps.

    `update_s` is how long any participant was at work in an update (the union of their intervals:
    time in which nobody worked is not in it). Its bytes are those that the sources sent, where they
    are known, else the most that one sink took; bytes are never added up over sinks. `gb_per_s` is
    mean bytes over mean seconds. Each instant of an update is in at most one of its `phases`: the
    first of those that ran in any process, so that they add up to the update at most.
    """

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


def updates_of(run: Run) -> tuple[Update, ...]:
    """All weight updates of `run` in the order of time, figures as in `Syncs`."""
    rows = run.sql(f"""
        select case when number >= 0 then number else -1 end, min(start_ns),
               sum(greatest(added_ns, 0)) / 1e9, coalesce({_BYTES}, -1)::bigint
        from {_ROWS} group by number order by 2
    """)
    return tuple(Update(*row) for row in rows.fetchall())


def syncs(run: Run, steps: Steps) -> Syncs | None:
    """The weight updates of `run`; None where none was recorded (spans say nothing of bytes)."""
    recorded = run.ask(f"select count(distinct number) from {_ROWS}")[0][0]
    if not recorded:
        return None
    updates = f"""(
        select number, sum(greatest(added_ns, 0)) / 1e9 as seconds, {_BYTES} as bytes
        from {_ROWS} group by number having {_within(steps)})"""
    rows = f"(from {_ROWS} where number in (select number from {updates}))"
    figures = run.sql(f"""
        select seconds, coalesce(bytes, 'nan'::double) as bytes from {updates} order by number
    """)  # in one order, which tells the last digit of a mean
    seconds, moved = (np.asarray(c, np.float64) for c in figures.fetchnumpy().values())
    known = ~np.isnan(moved)
    spent_s = float(seconds[known].sum())
    roles = run.ask(f"select distinct role from {rows} order by role")
    used = run.sql(
        f"select transport from {rows} where transport >= 0 group by 1 order by count(*) desc"
    )
    return Syncs(
        updates=len(seconds),
        recorded=recorded,
        update_s=spread(seconds),
        bytes_per_update=spread(moved[known]),
        gb_per_s=_gb(float(moved[known].sum()) / spent_s if spent_s else None),
        transports=tuple(named(Transport, code) for (code,) in used.fetchall()),
        participants=tuple(_participants(run, f"{rows} where role = {r}") for (r,) in roles),
        phases=phases(run, f"select number, process, start_ns, end_ns from {rows}"),
    )


def _within(steps: Steps) -> str:
    """The SQL condition that an update began within the steady steps."""
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
        gb_per_s=_gb(rate),
    )


def _gb(bytes_per_s: float | None) -> float:
    return float("nan") if bytes_per_s is None else bytes_per_s / _GB
