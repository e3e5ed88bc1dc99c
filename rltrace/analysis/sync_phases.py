"""The phases of weight updates: which part of the time of an update each of them took."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from rltrace.analysis.chains import summed
from rltrace.analysis.codes import named
from rltrace.analysis.intervals import Intervals, Ints, innermost, of_spans, union
from rltrace.analysis.spread import Spread, spread
from rltrace.trace.vocabulary import Phase, Stage

if TYPE_CHECKING:
    from rltrace.trace.run import Run


def phases(run: Run, participants: str) -> tuple[tuple[str, Spread], ...]:
    """Seconds an update by phase, of the phases that were recorded. `participants` is SQL that
    gives `number` (of the update), `start_ns` and `end_ns`.

    An update is the union of its participants. An instant of it at which several phases run, in
    different processes, is the first phase's: the later one still has to wait for that. Where
    two updates overlap it is the later update's.
    """
    number, start, end = _columns(run, participants)
    numbers, place = np.unique(number, return_inverse=True)
    updates = union(of_spans(place, start, end, np.zeros_like(start)))
    updates = updates.take(np.argsort(updates.start, kind="stable"))
    running = _running(run)
    if not len(running) or not len(updates):
        return ()
    bit = np.left_shift(1, running.group)
    edge = np.zeros(len(updates), np.int64)
    times = np.concatenate([running.start, running.end, updates.start, updates.end])
    order = np.argsort(times, kind="stable")
    mask = np.cumsum(np.concatenate([bit, -bit, edge, edge])[order])[:-1]
    left, seconds = times[order][:-1], np.diff(times[order]) / 1e9
    begun = np.searchsorted(updates.start, left, side="right") - 1
    inside = (mask > 0) & (begun >= 0) & (left < updates.end[begun])
    first = np.argmax((mask[inside, None] >> np.arange(len(Phase))) & 1 == 1, axis=1)
    cell = updates.group[begun[inside]] * len(Phase) + first
    spent = summed(cell, seconds[inside], len(numbers) * len(Phase)).reshape(-1, len(Phase))
    seen = [int(phase) for phase in np.unique(running.group)]
    return tuple((named(Phase, phase), spread(spent[:, phase])) for phase in seen)


def _running(run: Run) -> Intervals:
    """When each phase (group) ran in any process; of nested spans the innermost counts."""
    phase, process, lane, start, end = _columns(
        run,
        f"select phase, process, lane, start_ns, end_ns from raw_spans where start_ns > 0 and "
        f"stage = {int(Stage.SYNC)} and phase between 0 and {max(Phase)} and end_ns >= start_ns",
    )
    pieces = innermost(of_spans(phase, start, end, lane), process)
    return union(pieces)


def _columns(run: Run, query: str) -> list[Ints]:
    table = pa.RecordBatchReader.from_stream(run.sql(query)).read_all()
    return [column.to_numpy().astype(np.int64) for column in table.columns]
