"""When each process was in which stage: one pass over the spans of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from rltrace.analysis.intervals import Intervals, Ints, Union, innermost, joined, of_spans
from rltrace.trace.vocabulary import Stage

if TYPE_CHECKING:
    from rltrace.trace.run import Run

CODES = 16
"""A group of `Activity.pieces` is `process * CODES + stage`."""

_TABLE_OF = {Stage.ROLLOUT: "trajectories", Stage.REWARD: "rewards", Stage.SYNC: "syncs"}


@dataclass(frozen=True)
class OpenSpan:
    """A span that began and did not end: work in progress, a hang, or a process that was killed.
    `last_sign_ns` is the last moment at which its process is known to have lived (Unix ns)."""

    name: str
    stage: Stage
    process: int
    start_ns: int
    last_sign_ns: int


@dataclass(frozen=True)
class Activity:
    """`pieces` are the intervals of every process and stage, each instant of a lane given to the
    innermost span; an open span lasts until the last sign of life of its process. `first_ns` and
    `last_ns` bound everything in it (0 and 0: nothing). Stages `from_tables` have no spans and
    are taken from the table whose rows are their work (trajectories, rewards, syncs)."""

    pieces: Intervals
    spans_of_stage: dict[Stage, int]
    spans_of_process: dict[int, int]
    from_tables: tuple[Stage, ...]
    open_spans: tuple[OpenSpan, ...]
    first_ns: int
    last_ns: int


def read_activity(run: Run) -> Activity:
    """Reads the spans of `run` once, in chunks; memory does not grow with their number."""
    union = Union()
    counts = np.zeros(0, np.int64)
    unended = []
    query = "select start_ns, end_ns, stage, process, lane from raw_spans where start_ns > 0"
    for chunk in _chunks(run, query):
        counts = _added(counts, np.bincount(chunk.group))
        is_open = chunk.end < 0
        if is_open.any():
            unended.append(chunk.take(is_open))
        ended = chunk.take(~is_open) if is_open.any() else chunk
        union.add(of_spans(ended.group, ended.start, ended.end, ended.lane))
    open_rows = joined(unended)
    last_sign = _last_signs(joined([union.result(), open_rows]))
    if len(open_rows):
        end = last_sign[open_rows.group // CODES]
        union.add(of_spans(open_rows.group, open_rows.start, end, open_rows.lane))
    counted = np.resize(counts, -(-len(counts) // CODES) * CODES)
    counted[len(counts) :] = 0
    by_process = counted.reshape(-1, CODES)
    spans_of_stage = {Stage(code): int(n) for code, n in enumerate(by_process.sum(axis=0)) if n}
    unseen = [stage for stage in _TABLE_OF if stage not in spans_of_stage]
    from_tables = tuple(stage for stage in unseen if _add_table(run, union, stage))
    merged = union.result()
    working = merged.take(merged.group % CODES != Stage.STEP)
    return Activity(
        pieces=innermost(working, working.group // CODES),
        spans_of_stage=spans_of_stage,
        spans_of_process={p: int(n) for p, n in enumerate(by_process.sum(axis=1)) if n},
        from_tables=from_tables,
        open_spans=_open_spans(run, last_sign) if len(open_rows) else (),
        first_ns=int(merged.start.min()) if len(merged) else 0,
        last_ns=int(merged.end.max()) if len(merged) else 0,
    )


def _chunks(run: Run, query: str) -> Iterator[Intervals]:
    """The rows of `query` (start, end, stage, process, lane) as intervals that may end at -1."""
    for batch in pa.RecordBatchReader.from_stream(run.sql(query)):
        start, end, stage, process, lane = (column.to_numpy() for column in batch.columns)
        group = process.astype(np.int64) * CODES + np.where(stage < 0, Stage.OTHER, stage)
        yield Intervals(group, start, end, lane, np.ones(len(start), np.bool_))


def _added(one: Ints, other: Ints) -> Ints:
    """Sum of two counts by number, the shorter one filled with zeros."""
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    longer = longer.copy()
    longer[: len(shorter)] += shorter
    return longer


def _last_signs(intervals: Intervals) -> Ints:
    """By process, the last start or end of any of its spans."""
    if not len(intervals):
        return np.zeros(0, np.int64)
    process = intervals.group // CODES
    signs = np.zeros(int(process.max()) + 1, np.int64)
    np.maximum.at(signs, process, np.maximum(intervals.start, intervals.end))
    return signs


def _add_table(run: Run, union: Union, stage: Stage) -> bool:
    """Adds the finished rows of the stage's table; returns whether there are any."""
    query = (
        f"select start_ns, end_ns, {int(stage)}::tinyint, process, 0::bigint "
        f"from raw_{_TABLE_OF[stage]} where start_ns > 0 and end_ns >= start_ns"
    )
    found = False
    for chunk in _chunks(run, query):
        found |= len(chunk) > 0
        union.add(chunk)
    return found


def _open_spans(run: Run, last_sign: Ints) -> tuple[OpenSpan, ...]:
    rows = run.sql(
        "select coalesce(text, '?'), stage, process, start_ns from raw_spans "
        "left join names on names.id = name where start_ns > 0 and end_ns < 0 order by start_ns"
    ).fetchall()
    return tuple(
        OpenSpan(name, Stage(stage), process, start, int(last_sign[process]))
        for name, stage, process, start in rows
    )
