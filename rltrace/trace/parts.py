"""Writing a table as parts, each in the order of time, with memory for a few parts and not for all.

Rows are gathered from the segments a few parts at a time: a process stores its rows in the order in
which they begin, nearly, so most of its batches are looked at once or twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from rltrace.trace.manifest import Part
from rltrace.trace.real_times import EVER_NS, end_what_was_left, make_unknown
from rltrace.trace.schema import SPANS, Table
from rltrace.trace.segments import Batch
from rltrace.trace.sources import PROCESS
from rltrace.trace.stream import Columns, joined
from rltrace.trace.survey import Ints, Survey, Surveyed, cuts, taken_slots

if TYPE_CHECKING:
    from rltrace.trace.files import RunFiles


import errno
import os
import re
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from rltrace.trace.errors import RltraceError
from rltrace.trace.refused import first_line

if TYPE_CHECKING:
    import duckdb


_AT_ONCE = 4  # parts
CARRIED = "carried"


class Parts:
    """The parts of a table in `folder`, and what is `carried` over their ends. `below` counts by
    column the values below zero of what is counted."""

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
        self.below: dict[str, int] = {}
        self._names = [column.name for column in (*table.columns, PROCESS)]
        self._end = table.find("end_ns")
        self._kept: list[Columns] = []
        self._reaching: Columns = []  # the ended rows of earlier parts that reach into later ones

    def write(self) -> list[Part]:
        """Writes them all. Errors: `RltraceError` where the disk is full, OSError."""
        part_rows = max(1, self._part_bytes // self._table.row_bytes)
        found = self._found
        inner = cuts(found.sampled_ns, found.rows, self._starts[:, 1], part_rows)
        edges = [-EVER_NS, *inner, EVER_NS]
        (self._folder / self._table.name).mkdir(parents=True)
        written = []
        for at in range(0, len(edges) - 1, _AT_ONCE):
            some = edges[at : at + _AT_ONCE + 1]
            for number, columns in enumerate(self._gathered(some), at):
                written.append(self._part(columns, number, edges[number], edges[number + 1]))
        self._carry(len(written), last=True)
        return written

    def _gathered(self, edges: list[int]) -> Iterator[Columns]:
        """The rows between each two of the edges."""
        parts: list[list[Columns]] = [[] for _ in edges[1:]]
        for segment in self._found.segments:
            lower = segment.last_ns >= edges[0]
            near = np.flatnonzero(lower & (segment.first_ns < edges[-1]) & (segment.last_ns > 0))
            if len(near):
                for place, columns in self._of_segment(segment, edges, set(near.tolist())):
                    parts[place].append(columns)
        for place in range(len(parts)):
            whole, parts[place] = parts[place], []
            columns = [*joined(self._table, []), np.empty(0, np.int32)]
            if whole:
                columns = [np.concatenate(column) for column in zip(*whole, strict=True)]
            for column, below in make_unknown(self._table, columns):
                self.below[column] = self.below.get(column, 0) + below
            yield columns

    def _of_segment(
        self, segment: Surveyed, edges: list[int], near: set[int]
    ) -> Iterator[tuple[int, Columns]]:
        """`(which part, rows)`; only batches that are `near` are looked at."""
        number = iter(range(len(segment.first_ns)))

        def rows(batch: Batch) -> Columns | None:
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

    def _part(self, columns: Columns, number: int, from_ns: int, until_ns: int) -> Part:
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
        return Part(path, len(columns[0]), from_ns, until_ns, steps)

    def _end_what_was_left(self, columns: Columns, until_ns: int) -> None:
        """As `end_what_was_left`, in a part: the span around may have begun in an earlier one."""
        whole = columns
        if self._reaching:
            whole = [np.concatenate(two) for two in zip(self._reaching, columns, strict=True)]
        end_what_was_left(whole)
        end = whole[self._end]
        columns[self._end] = end[len(end) - len(columns[self._end]) :]
        reaches = end >= until_ns
        self._reaching = [column[reaches] for column in whole]

    def _steps(self, from_ns: int, until_ns: int) -> tuple[int, int] | None:
        began = (self._starts[:, 1] >= from_ns) & (self._starts[:, 1] < until_ns)
        steps = self._starts[began, 0]
        return (int(steps.min()), int(steps.max())) if len(steps) else None

    def _carry(self, number: int, last: bool = False) -> None:
        """Writes down what was carried once it is as much as a part, and at last."""
        rows = sum(len(columns[0]) for columns in self._kept)
        if not rows or (not last and rows * self._table.row_bytes < self._part_bytes):
            return
        folder = self._folder / CARRIED
        folder.mkdir(exist_ok=True)
        path = folder / f"{self._table.name}-{number:04}.parquet"
        whole = [np.concatenate(column) for column in zip(*self._kept, strict=True)]
        self._writer.write(self._arrow(whole), path, self._names[0])
        self.carried.append(path)
        self._kept = []

    def _arrow(self, columns: Columns) -> pa.Table:
        named = zip(self._names, columns, strict=True)
        return pa.table({name: pa.array(values) for name, values in named})


# --- Parquet files of rows, as DuckDB writes them.

_ROW_GROUP_ROWS = 200_000
_FEW_BYTES = 16 << 20
_NUMBER = re.compile(r'"errno":\s*"(\d{1,4})"')
_FULL = "No space left"


class Writer:
    """Writes files, while it is entered. What is small goes through one database, since to open one
    takes longer than to write it; what is not has one of its own, whose memory goes with it."""

    def __enter__(self) -> Writer:
        import duckdb

        self._few = duckdb.connect()
        return self

    def __exit__(self, *error: object) -> None:
        self._few.close()

    def write(self, rows: pa.Table, path: Path, order: str = "") -> None:
        """Writes rows as they are, or in the `order` of a column. Errors: OSError where the disk
        does not take them, `RltraceError` where DuckDB fails otherwise."""
        import duckdb

        temporary = path.with_suffix(".tmp")
        target = str(temporary).replace("'", "''")
        with self._database(rows) as database:
            database.execute("SET enable_progress_bar = false")
            database.register("rows", rows)
            ordered = f'FROM rows ORDER BY "{order}"' if order else "FROM rows"
            # A dictionary has one NaN for all, and what is unknown is one that is like no other.
            has_floats = any(pa.types.is_floating(kind) for kind in rows.schema.types)
            encoding = "DICTIONARY_SIZE_LIMIT 1, " if has_floats else ""
            try:
                database.execute(
                    f"COPY ({ordered}) TO '{target}' (FORMAT parquet, COMPRESSION zstd, "
                    f"{encoding}PARQUET_VERSION v2, ROW_GROUP_SIZE {_ROW_GROUP_ROWS})"
                )
            except duckdb.Error as error:
                temporary.unlink(missing_ok=True)
                raise _not_written(path, temporary, error) from None
            database.unregister("rows")
        os.replace(temporary, path)

    def _database(self, rows: pa.Table) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        import duckdb

        return duckdb.connect() if rows.nbytes > _FEW_BYTES else nullcontext(self._few)


def _not_written(path: Path, temporary: Path, error: duckdb.Error) -> Exception:
    """What went wrong where DuckDB did not write a file, of which it tells the system's number."""
    said = str(error)
    if temporary.name in said and (number := _NUMBER.search(said)):
        return OSError(int(number[1]), os.strerror(int(number[1])), str(path))
    if temporary.name in said and _FULL in said:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    if "offload" in said or "temp_directory" in said:
        return RltraceError(
            f"cannot write {path}: its rows are ordered first, for which neither memory nor the "
            "working directory has room: compact from a directory with room"
        )
    return RltraceError(f"cannot write {path}: {first_line(error)}")
