"""What it took to bring new weights to the rollout workers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rltrace.analysis.stats.confidence_interval import Spread, spread
from rltrace.analysis.timeline.intervals import Floats
from rltrace.analysis.timeline.steps import Steps
from rltrace.trace.read.bounds import EVER_NS
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.read.sql_views import Tables
from rltrace.trace.read.trajectory_lifecycle import PHASE_UNIONS
from rltrace.trace.untrusted_files import packaged_toml
from rltrace.trace.vocabulary import Phase, SyncRole, Transport, named

_AT_ONCE = 500_000  # participants in a part of the time: all at once take a gigabyte or more
_UPDATES: str = packaged_toml("analysis/data/queries.toml")["updates"].format(SyncRole=SyncRole)


@dataclass(frozen=True)
class Participants:
    """All of one role; figures are of one in one update, `bytes_per_s` where bytes are known."""

    role: str
    processes: int
    rows: int
    bytes: Spread
    update_s: Spread
    stall_s: Spread
    bytes_per_s: float


@dataclass(frozen=True)
class Syncs:
    """The weight updates that began within the steady steps, `updates` of the `recorded_updates` in
    the whole run. `update_s` is how long any participant was at work in one. Its bytes are those
    that the sources sent, where they are known, else the most that one sink took. `bytes_per_s` is
    mean bytes over mean seconds. Each instant of an update is in at most one of its `phases_s`."""

    updates: int
    recorded_updates: int
    update_s: Spread
    bytes_per_update: Spread
    bytes_per_s: float
    transports: tuple[str, ...]
    participants: tuple[Participants, ...]
    phases_s: tuple[tuple[str, Spread], ...]


@dataclass(frozen=True)
class Update:
    """One weight update, figures as in `Syncs`; -1: unknown."""

    version: int
    start_ns: int
    seconds: float
    bytes: int


def updates_of(run: Tables) -> tuple[Update, ...]:
    """All weight updates of `run` in the order of time."""
    return tuple(Update(*row) for row in run.ask(_UPDATES))


def syncs(run: OpenedRun, steps: Steps) -> Syncs | None:
    """None where no update was recorded (spans say nothing of bytes)."""
    recorded, (since, until) = updates_of(run), _within(steps)
    if not recorded:
        return None
    mine = [one for one in recorded if since <= one.start_ns <= until]
    seconds, moved = np.array([(one.seconds, one.bytes) for one in mine]).reshape(-1, 2).T
    known = moved >= 0
    spent_s = float(seconds[known].sum())
    chosen = f"""from sync_rows where number in (select number from sync_rows group by number
        having min(start_ns) between {since} and {until})"""
    spent = phases(run, chosen, len(seconds))
    figures = "role, process, transport, bytes, end_ns - start_ns, stall_ns"
    taken = run.ask_columns(f"select {figures} {chosen}")
    rows = np.stack([np.ma.filled(of.astype(np.float64), math.nan) for of in taken.values()])
    codes, times = np.unique(rows[2][rows[2] >= 0], return_counts=True)
    codes = codes[np.argsort(-times, kind="stable")]
    return Syncs(
        updates=len(seconds),
        recorded_updates=len(recorded),
        update_s=spread(seconds),
        bytes_per_update=spread(moved[known]),
        bytes_per_s=float(moved[known].sum()) / spent_s if spent_s else math.nan,
        transports=tuple(named(Transport, int(code)) for code in codes),
        participants=tuple(_participants(rows[:, rows[0] == r]) for r in np.unique(rows[0])),
        phases_s=spent,
    )


def _within(steps: Steps) -> tuple[int, int]:
    steady = [steps.windows[i] for i in steps.steady]
    if steps.whole_run or not steady:
        return 0, EVER_NS
    return steady[0].start_ns, steady[-1].end_ns


def _participants(rows: Floats) -> Participants:
    """Of one role; rows are its code, process, transport, bytes, nanoseconds and stall."""
    (role, *_), process, _, moved, lasts_ns, stall_ns = rows
    known = moved >= 0
    spent_s = float(lasts_ns[known].sum()) / 1e9
    return Participants(
        role=named(SyncRole, int(role)),
        processes=len(np.unique(process)),
        rows=len(process),
        bytes=spread(moved[known]),
        update_s=spread(lasts_ns / 1e9),
        stall_s=spread(stall_ns[stall_ns >= 0] / 1e9),
        bytes_per_s=float(moved[known].sum()) / spent_s if spent_s else math.nan,
    )


def phases(run: OpenedRun, participants: str, updates: int) -> tuple[tuple[str, Spread], ...]:
    """Seconds an update by phase, of so many `updates`; `participants` is the SQL of their
    `sync_rows`. A phase is of the update that its own process, else any, took part in as it was
    nearly over (of several the first to end), as far as it lies within that part. Where several
    phases of an update run it is the first one's: the later one still has to wait for that."""
    bounds = "coalesce(min(start_ns), 0), coalesce(max(end_ns), 0), count(*)"
    low, high, count = run.ask(f"select {bounds} {participants}")[0]
    edges = np.linspace(low, high + 1, 2 + count // _AT_ONCE).astype(np.int64).tolist()
    parts = [
        run.ask_columns(PHASE_UNIONS.format(participants=participants, since=a, until=b)).values()
        for a, b in pairwise(edges)
    ]
    number, phase, start, end = map(np.concatenate, zip(*parts, strict=True))
    which = np.unique(number, return_inverse=True)[1]
    # The edges of all pieces in the order of time, and how many of each phase run from each on.
    update, of, change = np.tile(which, 2), np.tile(phase, 2), np.repeat((1, -1), len(phase))
    time_ns = np.concatenate((start, end))
    order = np.lexsort((change, time_ns, update))
    steps = (of[order, None] == np.arange(len(Phase))) * change[order, None]
    running = np.cumsum(steps, axis=0) > 0
    first = np.where(running.any(axis=1), np.argmax(running, axis=1), -1)
    lasts_s = np.diff(time_ns[order], append=0) / 1e9
    update = update[order]
    return tuple(
        (named(Phase, code), spread(np.bincount(update[here], lasts_s[here], updates)))
        for code in np.unique(first[first >= 0]).tolist()
        for here in [first == code]
    )
