"""Times that no clock can have shown, and counts below zero: unknown, whoever stored them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rltrace.trace.schema import SPANS, Table
from rltrace.trace.stream import Columns
from rltrace.trace.vocabulary import Stage

EVER_NS = 1 << 62
"""Unix nanoseconds of a moment in 2116: two of them can be subtracted and added."""


def of_real_times(table: Table, columns: Columns) -> tuple[Columns, int]:
    """The rows, and how many there are less than there were: those that began at no time are left
    out. Of the others, what else is no time is unknown. `columns` begin with those of `table`, with
    times in Unix ns."""
    if not len(columns[0]):
        return columns, 0
    real = (columns[0] > 0) & (columns[0] < EVER_NS)
    left_out = len(real) - int(np.count_nonzero(real))
    kept = [column[real] for column in columns] if left_out else [*columns]
    for i, column in enumerate(table.columns):
        if not i or not column.is_time:
            continue
        odd = (kept[i] < -1) | (kept[i] >= EVER_NS)
        if odd.any():
            kept[i] = np.where(odd, np.int64(-1), kept[i])
    return kept, left_out


def end_what_was_left(columns: Columns) -> None:
    """Ends spans that a process left without storing so: an exception of the job's may strike just
    as a `with rltrace.span(...)` is left. Such a span is open while one around it, in its lane, has
    ended. How long it took is unknown: it gets no length. Steps are none: one that failed has no
    end. `columns` are those of spans, from wherever they are stored, and the process of each."""
    start, end, stage, lane = (
        columns[SPANS.index(name)] for name in ("start_ns", "end_ns", "stage", "lane")
    )
    process = columns[-1]
    is_open = (end < 0) & (stage != Stage.STEP)
    if not is_open.any():
        return
    among = np.flatnonzero(np.isin(lane, np.unique(lane[is_open])))
    order = among[np.lexsort((-end[among], start[among], lane[among], process[among]))]
    changes = (np.diff(lane[order]) != 0) | (np.diff(process[order]) != 0)
    for rows in np.split(order, np.flatnonzero(changes) + 1):
        around = np.maximum.accumulate(end[rows])  # the last end of those that began before
        left = rows[is_open[rows] & (around > start[rows])]
        end[left] = start[left]


COUNTS = (
    *("tokens", "bytes", "items", "prompt_tokens", "response_tokens", "turns", "env_ns"),
    *("preemptions", "stall_ns", "wire_bytes", "buckets"),
)
"""Columns of which no value is below zero, but -1 for an unknown one."""


def make_unknown(table: Table, columns: Columns) -> Iterator[tuple[str, int]]:
    """Replaces counts below zero by -1 in `columns`, those of `table` in order; gives the name of
    each column that had some, and how many."""
    for i, column in enumerate(table.columns):
        if column.name in COUNTS and columns[i].min(initial=0) < -1:
            below = columns[i] < -1
            columns[i] = np.where(below, columns[i].dtype.type(-1), columns[i])
            yield column.name, int(below.sum())
