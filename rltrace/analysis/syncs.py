"""What it took to bring new weights to the rollout workers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rltrace.analysis.chains import Seconds, summed
from rltrace.analysis.codes import named
from rltrace.analysis.columns import columns
from rltrace.analysis.intervals import (
    Bools,
    Columns,
    Ints,
    OutOfOrder,
    by_number,
    innermost,
    mapped,
    of_spans,
    union,
)
from rltrace.analysis.stats.spread import Spread, spread, spread_of
from rltrace.analysis.steps import Steps
from rltrace.trace.run import Run
from rltrace.trace.vocabulary import Phase, Stage, SyncRole, Transport

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


def updates_of(run: Run) -> tuple[Update, ...]:
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


_LARGEST = 1 << 62
_PAIRS = 4_000_000  # that are looked at together
_TOGETHER = 500_000  # phases, at least, but for the last ones; several such parts are in memory


@dataclass(frozen=True)
class _Rows(Columns):
    """Spans in the order of their starts: the process of each, and its update or its phase."""

    process: Ints
    code: Ints
    start: Ints
    end: Ints
    lane: Ints


def phases(run: Run, participants: str) -> tuple[tuple[str, Spread], ...]:
    """Seconds an update by phase, of the phases that were recorded. `participants` is SQL that
    gives `number` (of the update), `process`, `start_ns` and `end_ns`.

    An update is the union of its participants, and has the phases that ran in their processes
    meanwhile (`_of_updates`), so that updates which overlap keep their own. An instant at which
    several phases of an update run, in different processes, is the first phase's: the later one
    still has to wait for that.
    """
    number, mine, start, end = columns(
        run, f"select number, process, start_ns, end_ns from ({participants})"
    )
    numbers, update = np.unique(number, return_inverse=True)
    sharing = _Rows(mine, update, start, end, np.zeros_like(start))
    sharing = sharing.take(np.argsort(start, kind="stable"))
    try:
        spent, recorded = _spent(run, _PHASES, sharing, len(numbers))
    except OutOfOrder:
        spent, recorded = _spent(run, f"{_PHASES} order by start_ns", sharing, len(numbers))
    seen = np.flatnonzero(recorded).tolist()
    return tuple((named(Phase, one), spread(spent[:, one])) for one in seen)


def _spent(run: Run, query: str, sharing: _Rows, updates: int) -> tuple[Seconds, Bools]:
    """Seconds by update and phase, and which phases any update had."""
    spent = np.zeros((updates, len(Phase)))
    recorded = np.zeros(len(Phase), np.bool_)
    for here, seconds, codes in mapped(lambda part: _of_part(*part), _apart(run, query, sharing)):
        spent[here] += seconds
        recorded[codes] = True
    return spent, recorded


def _of_part(phase: _Rows, sharing: _Rows) -> tuple[Ints, Seconds, Ints]:
    """Updates, their seconds by phase and which phases any had, of phases that may be of these."""
    place = _of_updates(phase, sharing)
    if not (place >= 0).any():
        none = np.zeros(0, np.int64)
        return none, np.zeros((0, len(Phase))), none
    of, phase = sharing.code[place[place >= 0]], phase.take(place >= 0)
    here, update = np.unique(sharing.code, return_inverse=True)
    at_work = union(of_spans(update, sharing.start, sharing.end, sharing.lane))
    # Of nested spans the innermost counts.
    group = np.searchsorted(here, of) * len(Phase) + phase.code
    spans = of_spans(group, phase.start, phase.end, phase.lane)
    running = union(innermost(spans, phase.process))
    which, code = np.divmod(running.group, len(Phase))

    # One sweep serves all updates, since each is moved to where the one before it ends.
    begins = np.flatnonzero(np.diff(at_work.group, prepend=-1))
    first = np.minimum.reduceat(at_work.start, begins)
    last = np.maximum.reduceat(at_work.end, begins)
    origin = np.cumsum(last - first) - (last - first)
    update = np.concatenate([which, which, at_work.group, at_work.group])
    times = np.concatenate([running.start, running.end, at_work.start, at_work.end])
    times = times.clip(first[update], last[update]) - first[update] + origin[update]
    bit, whole = np.left_shift(1, code), np.full(len(at_work), 1 << len(Phase))
    order = np.argsort(times, kind="stable")
    mask = np.cumsum(np.concatenate([bit, -bit, whole, -whole])[order])[:-1]
    left, seconds = times[order][:-1], np.diff(times[order]) / 1e9
    inside = (mask > 1 << len(Phase)) & (seconds > 0)
    earliest = np.argmax((mask[inside, None] >> np.arange(len(Phase))) & 1 == 1, axis=1)
    owner = np.searchsorted(origin, left[inside], side="right") - 1
    cell = owner * len(Phase) + earliest
    found = summed(cell, seconds[inside], len(here) * len(Phase))
    return here, found.reshape(-1, len(Phase)), np.unique(code)


def _apart(run: Run, query: str, sharing: _Rows) -> Iterator[tuple[_Rows, _Rows]]:
    """Phases, and the participants beside them, of some time after the other: each ends where no
    phase and no participant is under way, so that nothing of it is of another."""
    reach = np.maximum.accumulate(sharing.end) if len(sharing) else sharing.end
    done, waiting = 0, _Rows(*[np.zeros(0, np.int64)] * 5)
    batches, rows = [], 0
    for batch in pa.RecordBatchReader.from_stream(run.sql(query)):
        batches.append(batch)
        rows += len(batch)
        if rows < _TOGETHER:
            continue
        waiting = _after(waiting, batches)
        batches, rows = [], 0
        begun = np.searchsorted(sharing.start, waiting.start)
        rests = np.append(reach, -1)[begun - 1] <= waiting.start
        rests[1:] &= np.maximum.accumulate(waiting.end)[:-1] <= waiting.start[1:]
        cut = int(np.flatnonzero(rests)[-1]) if rests.any() else 0
        if cut:
            yield waiting.take(np.arange(cut)), sharing.take(np.arange(done, begun[cut]))
            done, waiting = int(begun[cut]), waiting.take(np.arange(cut, len(waiting)))
    yield _after(waiting, batches), sharing.take(np.arange(done, len(sharing)))


def _after(waiting: _Rows, batches: list[pa.RecordBatch]) -> _Rows:
    """Rows, and those of the batches after them. Errors: `OutOfOrder`."""
    more = ([column.to_numpy() for column in batch.columns] for batch in batches)
    whole = zip(vars(waiting).values(), *more, strict=True)
    columns = (np.concatenate(column, dtype=np.int64) for column in whole)
    rows = _Rows(*columns)
    if (rows.start[1:] < rows.start[:-1]).any():
        raise OutOfOrder
    return rows


_PHASES = f"""
    select process, phase, start_ns, end_ns, lane from raw_spans
    where start_ns > 0 and end_ns >= start_ns
      and stage = {int(Stage.SYNC)} and phase between 0 and {max(Phase)}"""


def _of_updates(phase: _Rows, sharing: _Rows) -> Ints:
    """The place of the participant that each phase is of; -1: none. A phase is of the update that
    its own process took part in meanwhile, if there is one, else of one that others did; of several
    the one that it overlaps longest, and of those the one begun last."""
    found = np.full(len(phase), -1, np.int64)
    if not len(phase) or not len(sharing):
        return found
    since = min(int(phase.start[0]), int(sharing.start[0]))
    width = max(int(phase.end.max()), int(sharing.end.max())) - since + 1
    together = max(1, _LARGEST // width)  # processes whose times fit behind each other
    parts, spans = by_number(sharing.process), by_number(phase.process)
    whose, process = sharing.process[parts], phase.process[spans]
    most = int(phase.process.max())
    for first in range(0, most + 1, together):
        mine = slice(*np.searchsorted(process, [first, first + together]))
        theirs = slice(*np.searchsorted(whose, [first, first + together]))
        span, part = spans[mine], parts[theirs]
        behind, before = (process[mine] - first) * width, (whose[theirs] - first) * width
        place = _longest(
            phase.start[span] - since + behind,
            phase.end[span] - since + behind,
            sharing.start[part] - since + before,
            sharing.end[part] - since + before,
        )
        found[span] = np.append(part, -1)[place]
    rest = np.flatnonzero(found == -1)
    found[rest] = _longest(phase.start[rest], phase.end[rest], sharing.start, sharing.end)
    return found


def _longest(begun: Ints, ended: Ints, start: Ints, end: Ints) -> Ints:
    """For each interval the place of the one from `start` to `end` that it overlaps longest."""
    found = np.full(len(begun), -1, np.int64)
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    of = np.argsort(begun, kind="stable")
    begun, ended = begun[of], ended[of]
    low = np.searchsorted(np.maximum.accumulate(end), begun, side="left")
    near = np.clip(np.searchsorted(start, ended, side="right") - low, 0, None)
    one = near == 1  # as nearly always
    one[one] = end[low[one]] >= begun[one]
    found[of[one]] = order[low[one]]
    near[near == 1] = 0
    cuts = np.searchsorted(np.cumsum(near), np.arange(_PAIRS, near.sum(), _PAIRS))
    for part in np.split(np.arange(len(begun)), cuts):
        which = np.repeat(part, near[part])
        before = np.repeat(np.cumsum(near[part]) - near[part], near[part])
        at = np.repeat(low[part], near[part]) + np.arange(len(which)) - before
        meet = end[at] >= begun[which]
        which, at = which[meet], at[meet]
        overlap = np.minimum(end[at], ended[which]) - np.maximum(start[at], begun[which])
        best = np.lexsort((start[at], overlap, which))
        found[of[which[best]]] = order[at[best]]  # of several the last stays
    return found
