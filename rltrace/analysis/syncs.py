"""What it took to bring new weights to the rollout workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rltrace.analysis.codes import named
from rltrace.analysis.spread import Spread, spread_of
from rltrace.trace.vocabulary import Phase, Stage, SyncRole, Transport

if TYPE_CHECKING:
    from rltrace.trace.run import Run

_GB = 1e9
_ENDED = "raw_syncs where start_ns > 0 and end_ns >= start_ns"
_UPDATE = "case when version >= 0 then version else -start_ns end"  # unknown: each row its own


@dataclass(frozen=True)
class Participants:
    """All participants of one role ("unknown" where nobody said); each figure is of one of them in
    one update. GB/s is the bytes of all over the seconds of all, 10^9 bytes; NaN where unknown."""

    role: str
    processes: int
    rows: int
    bytes: Spread
    seconds: Spread
    stall_s: Spread
    gb_per_s: float


@dataclass(frozen=True)
class Syncs:
    """The weight updates of the whole run. An update lasts from its first participant's start to
    the last one's end. Its bytes are those that the sources sent, where they are known, else the
    most that one sink took; bytes are never added up over sinks. `phases` are seconds an update
    from the first beginning to the last end of that phase."""

    updates: int
    update_s: Spread
    bytes_per_update: Spread
    gb_per_s: float
    transports: tuple[str, ...]
    participants: tuple[Participants, ...]
    phases: tuple[tuple[str, Spread], ...]


def syncs(run: Run) -> Syncs | None:
    """The weight updates of `run`; None where none was recorded (spans say nothing of bytes)."""
    if not run.sql(f"select 1 from {_ENDED} limit 1").fetchall():
        return None
    source = int(SyncRole.SOURCE)
    updates = f"""(
        select {_UPDATE} as number, (max(end_ns) - min(start_ns)) / 1e9 as seconds,
               coalesce(sum(bytes) filter (role = {source} and bytes >= 0),
                        max(bytes) filter (bytes >= 0)) as bytes
        from {_ENDED} group by number)"""
    update_s = spread_of(run, "seconds", updates)
    rate = run.sql(f"select sum(bytes) / sum(seconds) from {updates} where bytes is not null")
    roles = run.sql(f"select distinct role from {_ENDED} order by role").fetchall()
    used = run.sql(
        f"select transport from {_ENDED} and transport >= 0 group by 1 order by count(*) desc"
    )
    return Syncs(
        updates=update_s.n,
        update_s=update_s,
        bytes_per_update=spread_of(run, "bytes", updates),
        gb_per_s=_gb(rate.fetchall()[0][0]),
        transports=tuple(named(Transport, code) for (code,) in used.fetchall()),
        participants=tuple(_participants(run, role) for (role,) in roles),
        phases=_phases(run),
    )


def _participants(run: Run, role: int) -> Participants:
    rows = f"{_ENDED} and role = {role}"
    processes, n, rate = run.sql(
        "select count(distinct process), count(*), "
        "sum(bytes) filter (bytes >= 0) / (sum(end_ns - start_ns) filter (bytes >= 0) / 1e9) "
        f"from {rows}"
    ).fetchall()[0]
    return Participants(
        role=named(SyncRole, role),
        processes=processes,
        rows=n,
        bytes=spread_of(run, "bytes", f"{rows} and bytes >= 0"),
        seconds=spread_of(run, "(end_ns - start_ns) / 1e9", rows),
        stall_s=spread_of(run, "stall_ns / 1e9", f"{rows} and stall_ns >= 0"),
        gb_per_s=_gb(rate),
    )


def _phases(run: Run) -> tuple[tuple[str, Spread], ...]:
    source = """(
        select (max(end_ns) - min(start_ns)) / 1e9 as seconds from raw_spans
        where stage = {stage} and phase = {phase} and start_ns > 0 and end_ns >= start_ns
        group by step, version)"""
    phases = run.sql(
        f"select distinct phase from raw_spans where stage = {int(Stage.SYNC)} and phase >= 0"
    ).fetchall()
    return tuple(
        (named(Phase, p), spread_of(run, "seconds", source.format(stage=int(Stage.SYNC), phase=p)))
        for (p,) in sorted(phases)
    )


def _gb(bytes_per_s: float | None) -> float:
    return float("nan") if bytes_per_s is None else bytes_per_s / _GB
