"""The phases of weight updates: which part of the time of an update each of them took."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from rltrace.analysis.chains import Seconds, summed
from rltrace.analysis.codes import named
from rltrace.analysis.columns import columns
from rltrace.analysis.intervals import (
    Bools,
    Ints,
    OutOfOrder,
    by_number,
    innermost,
    mapped,
    of_spans,
    places,
    union,
)
from rltrace.analysis.spread import Spread, spread
from rltrace.trace.vocabulary import Phase, Stage

if TYPE_CHECKING:
    from rltrace.trace.run import Run

_LARGEST = 1 << 62
_PAIRS = 4_000_000  # that are looked at together
_TOGETHER = 500_000  # phases, at least, but for the last ones; several such parts are in memory


@dataclass(frozen=True)
class _Rows:
    """Spans in the order of their starts: the process of each, and its update or its phase."""

    process: Ints
    code: Ints
    start: Ints
    end: Ints
    lane: Ints

    def __len__(self) -> int:
        return len(self.start)

    def take(self, chosen: slice | Bools | Ints) -> _Rows:
        if isinstance(chosen, slice):
            return _Rows(*(column[chosen] for column in self.columns()))
        at = places(chosen)
        return _Rows(*(column.take(at) for column in self.columns()))

    def columns(self) -> tuple[Ints, ...]:
        return self.process, self.code, self.start, self.end, self.lane


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
    """The updates that these phases may be of, their seconds by phase, and which phases any had."""
    place = _of_updates(phase, sharing)
    if not (place >= 0).any():
        none = np.zeros(0, np.int64)
        return none, np.zeros((0, len(Phase))), none
    return _added(sharing.code[place[place >= 0]], phase.take(place >= 0), sharing)


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
            yield waiting.take(slice(cut)), sharing.take(slice(done, int(begun[cut])))
            done, waiting = int(begun[cut]), waiting.take(slice(cut, None))
    yield _after(waiting, batches), sharing.take(slice(done, None))


def _after(waiting: _Rows, batches: list[pa.RecordBatch]) -> _Rows:
    """Rows, and those of the batches after them. Errors: `OutOfOrder`."""
    parts = [waiting.columns(), *([c.to_numpy() for c in batch.columns] for batch in batches)]
    columns = (np.concatenate(column, dtype=np.int64) for column in zip(*parts, strict=True))
    rows = _Rows(*columns)
    if (rows.start[1:] < rows.start[:-1]).any():
        raise OutOfOrder
    return rows


def _added(of: Ints, phase: _Rows, sharing: _Rows) -> tuple[Ints, Seconds, Ints]:
    """The same of phases that are `of` these updates."""
    here, update = np.unique(sharing.code, return_inverse=True)
    at_work = union(of_spans(update, sharing.start, sharing.end, sharing.lane))
    # Of nested spans the innermost counts.
    group = np.searchsorted(here, of) * len(Phase) + phase.code
    spans = of_spans(group, phase.start, phase.end, phase.lane)
    running = union(innermost(spans, phase.process))
    which, code = np.divmod(running.group, len(Phase))

    # One sweep serves all updates, since each is moved to where the one before it ends.
    first, last = _bounds(at_work.group, at_work.start, at_work.end)
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


def _bounds(group: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """The first start and the last end of each group; groups are 0, 1, ... and in order."""
    begins = np.flatnonzero(np.diff(group, prepend=-1))
    return np.minimum.reduceat(start, begins), np.maximum.reduceat(end, begins)
