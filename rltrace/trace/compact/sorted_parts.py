"""Writes a table as sorted parts, with memory for a few of them.

Rows are gathered from the segments a few parts at a time: a process stores its rows nearly in the
order in which they begin, so most of its batches are looked at once or twice.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rltrace.trace.compact.manifest import TablePart, Taken
from rltrace.trace.compact.stored_rows import PROCESS, new_database, quoted
from rltrace.trace.errors import RltraceError, first_line
from rltrace.trace.read.bounds import EVER_NS
from rltrace.trace.read.row_filters import end_what_was_left
from rltrace.trace.read.run_files import Batches, SegmentBatch, segments_in
from rltrace.trace.read.run_follower import SETTLED_NS
from rltrace.trace.read.segment_batches import Columns, joined_numbered
from rltrace.trace.schema import SPANS, Table
from rltrace.trace.vocabulary import Stage

if TYPE_CHECKING:
    import duckdb

    from rltrace.trace.read.run_files import RunFiles


_AT_ONCE = 4  # parts
CARRIED = "carried"


class SortedParts:
    """The parts of a table in `folder`, and rows `carried` over their ends."""

    def __init__(
        self,
        files: RunFiles,
        table: Table,
        found: Survey,
        starts: Ints,
        folder: Path,
        part_bytes: int,
        writer: Writer,
    ) -> None:
        self._files, self._table, self._found, self._folder = files, table, found, folder
        self._starts = starts  # (step, start_ns) of steps, in order
        self._part_bytes, self._writer = part_bytes, writer
        self.carried: list[Path] = []
        self._names = [column.name for column in (*table.columns, PROCESS)]
        self._end = table.find("end_ns")
        self._kept: list[Columns] = []
        self._reaching: Columns = []  # the ended rows of earlier parts that reach into later ones

    def write(self) -> list[TablePart]:
        """Writes them all. Errors: `RltraceError` where the disk is full, OSError."""
        part_rows = max(1, self._part_bytes // self._table.row_bytes)
        found = self._found
        inner = cuts(found.sampled_ns, found.rows, self._starts[:, 1], part_rows)
        edges = [-EVER_NS, *inner, EVER_NS]
        (self._folder / self._table.name).mkdir(parents=True)
        written = []
        for at in range(0, len(edges) - 1, _AT_ONCE):
            for number, columns in enumerate(self._gathered(edges[at : at + _AT_ONCE + 1]), at):
                written.append(self._part(columns, number, edges[number], edges[number + 1]))
        self._carry(len(written), last=True)
        return written

    def _gathered(self, edges: list[int]) -> Iterator[Columns]:
        parts: list[list[Columns]] = [[] for _ in edges[1:]]
        for segment in self._found.segments:
            lower = segment.last_ns >= edges[0]
            near = np.flatnonzero(lower & (segment.first_ns < edges[-1]) & (segment.last_ns > 0))
            if len(near):
                for place, columns in self._of_segment(segment, edges, set(near.tolist())):
                    parts[place].append(columns)
        for place in range(len(parts)):
            whole, parts[place] = parts[place], []
            yield self._files.possible(self._table, joined_numbered(self._table, whole))

    def _of_segment(
        self, segment: Surveyed, edges: list[int], near: set[int]
    ) -> Iterator[tuple[int, Columns]]:
        """`(which part, rows)`; only batches that are `near` are looked at."""
        number = iter(range(len(segment.first_ns)))

        def rows(batch: SegmentBatch) -> Columns | None:
            if next(number, -1) not in near:
                return None
            return batch.rows_at(taken_slots(batch, segment.taken))

        for stored in segment.batches.each(rows):
            if stored is None or not len(stored[0]):
                continue
            columns = self._files.numbered(self._table, segment.batches.who, stored)
            place = np.searchsorted(np.array(edges[1:-1], np.int64), columns[0], side="right")
            within = (columns[0] >= edges[0]) & (columns[0] < edges[-1])
            for one in np.unique(place[within]):
                mine = within & (place == one)
                whole = bool(mine.all())
                yield int(one), columns if whole else [column[mine] for column in columns]

    def _part(self, columns: Columns, number: int, from_ns: int, until_ns: int) -> TablePart:
        steps = self._steps(from_ns, until_ns)
        said = f"-steps-{steps[0]}-{steps[1]}" if steps is not None else ""
        path = self._folder / self._table.name / f"{number:04}{said}.parquet"
        if self._table is SPANS:
            self._end_what_was_left(columns, until_ns)
        self._writer.write(self._arrow(columns), path, self._names[0])
        if until_ns < EVER_NS and self._end >= 0:
            end = columns[self._end]
            goes_on = (end == -1) | (end >= until_ns)
            self._kept.append([column[goes_on] for column in columns])
            self._carry(number)
        return TablePart(path, len(columns[0]), from_ns, until_ns, steps)

    def _end_what_was_left(self, columns: Columns, until_ns: int) -> None:
        """As `end_what_was_left`, in a part: the span around may have begun in an earlier one."""
        both = [self._reaching, columns] if self._reaching else [columns]
        whole = joined_numbered(self._table, both)
        end_what_was_left(whole)
        end = whole[self._end]
        columns[self._end] = end[len(end) - len(columns[self._end]) :]
        reaches = end >= until_ns
        self._reaching = [column[reaches] for column in whole]

    def _steps(self, from_ns: int, until_ns: int) -> tuple[int, int] | None:
        began_ns = self._starts[:, 1]
        steps = self._starts[(began_ns >= from_ns) & (began_ns < until_ns), 0]
        return (int(steps.min()), int(steps.max())) if len(steps) else None

    def _carry(self, number: int, last: bool = False) -> None:
        """Writes down what was carried once it is as much as a part, and at last."""
        rows = sum(len(columns[0]) for columns in self._kept)
        if not rows or (not last and rows * self._table.row_bytes < self._part_bytes):
            return
        folder = self._folder / CARRIED
        folder.mkdir(exist_ok=True)
        path = folder / f"{self._table.name}-{number:04}.parquet"
        whole = self._arrow(joined_numbered(self._table, self._kept))
        self._writer.write(whole, path, self._names[0])
        self.carried.append(path)
        self._kept = []

    def _arrow(self, columns: Columns) -> pa.Table:
        named = zip(self._names, columns, strict=True)
        return pa.table({name: pa.array(values) for name, values in named})


_ROW_GROUP_ROWS = 200_000
_FEW_BYTES = 16 << 20
_NUMBER = re.compile(r'"errno":\s*"(\d{1,4})"')


class Writer:
    """Writes files, while it is entered. Small ones share a database, since opening one takes
    longer than writing; a large one has its own, whose memory goes with it."""

    def __enter__(self) -> Writer:
        self._few = new_database()
        return self

    def __exit__(self, *error: object) -> None:
        self._few.close()

    def write(self, rows: pa.Table, path: Path, order: str = "") -> None:
        """Writes rows as they are, or in the `order` of a column. Errors: OSError where the disk
        does not take them, `RltraceError` where DuckDB fails otherwise."""
        import duckdb

        temporary = path.with_suffix(".tmp")
        with new_database() if rows.nbytes > _FEW_BYTES else nullcontext(self._few) as database:
            database.execute("SET enable_progress_bar = false")
            database.register("rows", rows)
            ordered = f'FROM rows ORDER BY "{order}"' if order else "FROM rows"
            # A dictionary has one NaN for all, and what is unknown is one that is like no other.
            has_floats = any(pa.types.is_floating(kind) for kind in rows.schema.types)
            encoding = "DICTIONARY_SIZE_LIMIT 1, " if has_floats else ""
            try:
                database.execute(
                    f"COPY ({ordered}) TO {quoted(temporary)} (FORMAT parquet, COMPRESSION zstd, "
                    f"{encoding}PARQUET_VERSION v2, ROW_GROUP_SIZE {_ROW_GROUP_ROWS})"
                )
            except duckdb.Error as error:
                temporary.unlink(missing_ok=True)
                raise _not_written(path, temporary, error) from None
            database.unregister("rows")
        os.replace(temporary, path)


def _not_written(path: Path, temporary: Path, error: duckdb.Error) -> Exception:
    said = str(error)
    if temporary.name in said and (number := _NUMBER.search(said)):
        return OSError(int(number[1]), os.strerror(int(number[1])), str(path))
    if temporary.name in said and "No space left" in said:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    if "offload" in said or "temp_directory" in said:
        return RltraceError(
            f"cannot write {path}: its rows are ordered first, for which neither memory nor the "
            "working directory has room: compact from a directory with room"
        )
    return RltraceError(f"cannot write {path}: {first_line(error)}")


Ints = NDArray[np.int64]
_Seen = tuple[int, NDArray[np.bool_], Ints, Ints]
"""Of a batch: the place of its first row, which are stored, when each began and ended."""

_ONE_OF = 256  # rows, the start of one is kept, to say where a part of so many rows ends
_MOST_LEFT = 1_000
_NO_TIMES, _NO_STEPS = np.empty(0, np.int64), np.empty((0, 4), np.int64)


@dataclass
class Survey:
    """What is to be taken of a table: its segments, how many rows, and the places of each file, of
    those without a row too (torn in their first batch, say); the starts of one row in `_ONE_OF`, in
    order; of spans the rows of steps, `(step, start_ns, end_ns, process)`."""

    segments: list[Surveyed] = field(default_factory=list)
    taken: dict[str, Taken] = field(default_factory=dict)
    rows: int = 0
    sampled_ns: Ints = field(default_factory=lambda: _NO_TIMES)
    steps: Ints = field(default_factory=lambda: _NO_STEPS)


def survey(files: RunFiles, table: Table, ended: bool) -> Survey:
    """Looks through a table. Where the run has not `ended` only rows that have are taken."""
    found = Survey()
    for batches in segments_in(files.path / table.name, table):
        if files.is_stray(table.name, batches.path):
            continue
        one = Surveyed(files, table, batches, ended, found)
        if batches.problem is not None:
            files.problem("torn-file", f"{table.name}/{batches.path.name}", batches.problem)
        found.taken[batches.path.name] = one.taken
        if one.taken.slots:
            found.segments.append(one)
            found.rows += one.rows
    if found.segments:
        found.sampled_ns = np.sort(np.concatenate([one.sampled_ns for one in found.segments]))
        steps = np.concatenate([one.steps for one in found.segments])
        found.steps = steps[np.argsort(steps[:, 1], kind="stable")]
    return found


class Surveyed:
    """A segment: the rows to be `taken`, their number, when those of each batch began (Unix ns,
    first and last), the starts of one row in `_ONE_OF`, and of spans the rows of steps. `before`:
    what was found in the segments before it."""

    def __init__(
        self, files: RunFiles, table: Table, batches: Batches, ended: bool, before: Survey
    ) -> None:
        self.batches, self._table, self._files = batches, table, files
        self._end = -1 if ended else table.find("end_ns")
        self._stage = table.find("stage")
        size_bytes = 0  # before its rows are looked at: what comes meanwhile is a rest
        with suppress(OSError):
            size_bytes = batches.path.lstat().st_size
        seen = list(batches.each(self._look))
        self.taken = self._taken(seen, size_bytes, ended)
        self.rows, sampled = 0, [_NO_TIMES]
        bounds: list[tuple[int, int]] = []
        for first, stored, start, _ in seen:
            slots = np.flatnonzero(stored)
            unix = self._unix(start[slots[self.taken.has(slots + first)]])
            bounds.append((int(unix.min()), int(unix.max())) if len(unix) else (0, -1))
            sampled.append(unix[-(before.rows + self.rows) % _ONE_OF :: _ONE_OF])
            self.rows += len(unix)
        self.first_ns, self.last_ns = np.array(bounds, np.int64).reshape(-1, 2).T
        self.sampled_ns = np.concatenate(sampled)
        self.steps = self._step_rows() if self._stage >= 0 and self.rows else _NO_STEPS

    def _taken(self, seen: list[_Seen], size_bytes: int, ended: bool) -> Taken:
        """All stored rows where nobody writes any more, else the ended ones, with few left."""
        places, left = 0, list[int]()
        newest_ns = max((int(max(a.max(), b.max())) for _, _, a, b in seen if len(a)), default=0)
        for first, stored, _, _ in seen:
            if stored.any():
                last = len(stored) if ended else int(np.flatnonzero(stored)[-1]) + 1
                places = first + last
        if ended:
            return Taken(places, (), size_bytes)
        for first, stored, start, end in seen:
            there = stored & (end != -1)
            if end is not start:
                there &= end < newest_ns - SETTLED_NS
            open_ = first + np.flatnonzero(~there)
            left += open_[open_ < places].tolist()
        if len(left) > _MOST_LEFT:
            places = left[_MOST_LEFT]
        return Taken(places, tuple(left[:_MOST_LEFT]), size_bytes)

    def _look(self, batch: SegmentBatch) -> _Seen:
        start = batch.markers
        end = start if self._end < 0 else batch.column(self._end)
        return batch.first, batch.stored, start, end

    def _unix(self, times_ns: Ints) -> Ints:
        node = self._files.processes[self._files.number_of(self.batches.who)].node
        clock = self._files.clocks.get(node)
        return times_ns if clock is None else clock.to_unix(times_ns)

    def _step_rows(self) -> Ints:
        def of_steps(batch: SegmentBatch) -> Columns:
            slots = taken_slots(batch, self.taken)
            return batch.rows_at(slots[batch.column(self._stage)[slots] == int(Stage.STEP)])

        rows = [_NO_STEPS]
        number = self._files.number_of(self.batches.who)
        for columns in self.batches.each(of_steps):
            named = dict(zip([c.name for c in self._table.columns], columns, strict=True))
            times = [self._unix(named[name]) for name in ("start_ns", "end_ns")]
            of_whom = np.full(len(times[0]), number, np.int64)
            rows.append(np.stack([named["step"].astype(np.int64), *times, of_whom], axis=1))
        return np.concatenate(rows)


def taken_slots(batch: SegmentBatch, taken: Taken) -> Ints:
    slots = np.flatnonzero(batch.stored)
    return slots[taken.has(slots + batch.first)]


def cuts(sampled_ns: Ints, rows: int, starts_ns: Ints, part_rows: int) -> list[int]:
    """The moments between parts. `sampled_ns` are starts of rows, evenly drawn, `starts_ns` of
    steps, both in order. A part ends where a step begins, unless that has more rows than a part."""
    found: list[int] = []
    if rows <= part_rows or not len(sampled_ns):
        return found
    each = max(1, round(part_rows * len(sampled_ns) / rows))
    at = 0
    while at + each < len(sampled_ns):
        since, latest = int(sampled_ns[at]), int(sampled_ns[at + each])
        place = int(np.searchsorted(starts_ns, latest, side="right")) - 1
        cut = int(starts_ns[place]) if place >= 0 else latest
        if cut <= since or (found and cut <= found[-1]):
            cut = latest
        reached = int(np.searchsorted(sampled_ns, cut, side="left"))
        if reached <= at:  # all at one moment, which nothing cuts
            reached = int(np.searchsorted(sampled_ns, latest, side="right"))
            if reached >= len(sampled_ns):
                break
            cut = int(sampled_ns[reached])
        found.append(cut)
        at = reached
    return found
