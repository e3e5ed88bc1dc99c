"""Writes a table: record batches that are mapped and filled in place.

The file is the buffer. A batch's space is allocated, prefilled with "unknown" (all ones; the marker
column with zeros) and only then made visible by the length word of its header. So the file is a
valid Arrow stream at every instant, and what was stored survives `kill -9`. No thread, no flush, no
lock except when a batch is full. Standard library only.

No descriptor is kept open between batches: a program that closes "all files" and reuses their
numbers must never find us writing into one of its own, or closing it.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import struct
import sys
from _thread import RLock
from _weakref import ref
from time import monotonic_ns

from rltrace.trace.arrow_header import PREFIX_BYTES, batch_message, schema_message
from rltrace.trace.job_exceptions import contained, from_outside
from rltrace.trace.safe_open import opened
from rltrace.trace.schema import WIDTH_BYTES, Table

# `typing` costs every traced process 8 ms; type checkers take this name for true.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

FIRST_BATCH_ROWS = 64
LARGEST_BATCH_ROWS = 8192
FEW_ROWS = 4  # up to so many cost less one by one than by column
GROWTH = 4
GROW_WITHIN_NS = 4 * 10**9
"""A larger batch follows only one that was filled within this time. The kernel writes dirty pages
back after some 30 s and protects them; the next store there is a fault that may wait for the file
system's journal. A batch that fills in seconds is done with before that."""

SEGMENT_BYTES = 64 << 20  # a longer segment is left and a new one begun, so that it can be shipped
STREAM = ".arrows"  # ending of a segment's name
NEW = ".new"  # ending of a file that is still being made: it holds no row
_mapped: list[tuple[ref[Batch], mmap.mmap, _Segment]] = []
"""The maps of this process, closed here and nowhere else: with a map goes a descriptor, and a job
that has closed "all files" may have given its number to a file of its own."""

_kept: list[mmap.mmap] = []  # never closed: the descriptor that they would close is not ours
_CANNOT_ALLOCATE = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENODEV}
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE; MAP_POPULATE leaves shared pages to be write-faulted
UNKNOWN: float = struct.unpack("d", b"\xff" * 8)[0]
"""In a column of fractions with one a row: none of this row. Of whole numbers that is -1."""

_EACH = (list, tuple, range, memoryview)
_MAP: dict[str, Any] = {"flags": mmap.MAP_SHARED}
if sys.version_info >= (3, 13):
    _MAP["trackfd"] = False  # else the map keeps a duplicate descriptor until it is closed


class _Segment:
    """A file of a table: where it lies, how long it is, and how long it is becoming."""

    __slots__ = ("next_bytes", "path", "size_bytes")

    def __init__(self, path: str) -> None:
        self.path = path
        self.size_bytes = 0
        self.next_bytes = 0


class Batch:
    """Space for `rows` rows; `columns` are writable, in the order of the table's columns."""

    __slots__ = ("__weakref__", "columns", "next_slot", "places", "rows", "slots")

    def __init__(self, rows: int, columns: Sequence[Any], places: dict[str, int]) -> None:
        self.rows = rows
        self.columns = tuple(columns)
        self.places = places
        self.slots: Iterator[int] = itertools.count()
        self.next_slot: Callable[[], int] = self.slots.__next__


def release_maps() -> None:
    """Unmaps a parent's batches in a forked child: a later store raises ValueError."""
    for reference, _, _ in _mapped:
        batch = reference()
        for column in () if batch is None else batch.columns:
            if isinstance(column, memoryview):
                column.release()
    while _mapped:
        _, map_, segment = _mapped.pop()
        _close(map_, segment)


def _close_unused() -> None:
    """Closes the maps of batches that nobody refers to any more."""
    unused = [mapped for mapped in _mapped if mapped[0]() is None]
    for mapped in unused:
        if mapped in _mapped:
            _mapped.remove(mapped)
            _close(mapped[1], mapped[2])


def _close(map_: mmap.mmap, segment: _Segment) -> None:
    """Closes a map, if the descriptor that goes with it is still the segment's."""
    ours = "trackfd" in _MAP
    with contained(OSError, ValueError):
        ours = ours or map_.size() in (segment.size_bytes, segment.next_bytes)
    try:
        if ours:
            map_.close()
        else:
            _kept.append(map_)
    except BufferError:  # a thread that was in the middle of making it is not in a forked child
        _kept.append(map_)


class Row:
    """One row of a table, to be completed later. Cheap: it holds no values."""

    __slots__ = ("_batch", "_slot")

    # Without an `__init__`, making one is a call of the type and two stores: 20 ns less a span.
    _batch: Batch
    _slot: int

    def set(self, **values: float) -> None:
        """Stores columns; a value that does not fit leaves its column unknown (see `on_misfit`).
        Errors: KeyError for an unknown column, OSError where the file is written, not mapped."""
        _store(self._batch, self._slot, values)


def _ignore(column: str, value: object) -> None:
    """Nobody wants to know."""


on_misfit: Callable[[str, object], None] = _ignore
"""Told of a value that does not fit; the process's recorder sets its own."""


def _store(batch: Batch, slot: int, values: dict[str, float]) -> None:
    columns, places = batch.columns, batch.places
    for name, value in values.items():
        try:
            columns[places[name]][slot] = value
        except (TypeError, ValueError, OverflowError) as error:
            if from_outside(error):
                raise
            _store_converted(name, columns[places[name]], slot, value)


def _store_converted(name: str, column: Any, slot: int, value: Any) -> None:
    """A whole number of another type (5.0, a tensor) is stored as its integer."""
    try:
        column.nbytes  # noqa: B018
    except ValueError:  # released: a forked child completes its parent's row, which is not its own
        return
    except AttributeError:  # it is written, not mapped
        pass
    try:
        number = int(value)
        if number == value:
            column[slot] = number
            return
    except Exception as error:  # whatever it is, it is no number of ours
        if from_outside(error):
            raise
    on_misfit(name, value)


class RowBlock(list[tuple[Batch, int, int]]):
    """Rows that were stored in one call: runs of slots in a line, with the first and the end."""

    def set(self, **values: float) -> None:
        """As `Row.set`: stores columns, each with one value for all rows."""
        for run in self:
            _store_run(*run, values)


def _store_run(batch: Batch, first: int, end: int, columns: Mapping[str, Any]) -> None:
    """Stores columns of the rows from `first` to before `end`, each in one copy. Copies of aligned
    numbers tear none of them apart, whenever the process is killed."""
    for name, given in columns.items():
        column, each = batch.columns[batch.places[name]], isinstance(given, _EACH)
        try:
            kind = column.format
            values = given if each else (given,)
            packed = struct.Struct(f"{len(values)}{kind}").pack(*values)
            column[first:end] = memoryview(packed * (1 if each else end - first)).cast(kind)
        except Exception as error:
            if from_outside(error):
                raise
            # An odd value is left out of its own row only, and a file is written value by value.
            for place in range(end - first):
                _store(batch, first + place, {name: given[place] if each else given})


def row_at(kind: Any, batch: Batch, slot: int) -> Any:
    """The row at a slot, as an instance of `Row` or a subclass."""
    row = kind()
    row._batch = batch
    row._slot = slot
    return row


class TableWriter:
    """Writes `<directory>/<who>.<n>.arrows`; `on_first` is called before each file is made."""

    def __init__(
        self, table: Table, directory: str, who: str, on_first: Callable[[], None] | None = None
    ) -> None:
        self.table = table
        self._on_first = on_first
        self._stem = f"{directory}/{who}"
        self._places = {column.name: i for i, column in enumerate(table.columns)}
        self._marker = table.columns[0].name
        self._number = 0
        self._segment = _Segment(f"{self._stem}.0.arrows")
        self._next_rows = FIRST_BATCH_ROWS
        self._began_ns = -GROW_WITHIN_NS  # a machine may have been up for less
        self._lock = RLock()
        self._growing = False
        self._full_rows = 0  # of the batches before
        self.batch = Batch(0, (), self._places)

    @property
    def rows(self) -> int:
        """How many were stored so far."""
        taken = int(repr(self.batch.slots)[6:-1])  # of "count(7)": asking it would take one
        return self._full_rows + min(taken, self.batch.rows)

    def append(self, **values: float) -> Row:
        """Stores a row, its marker last. Errors: as `Row.set`, and OSError without space."""
        return self.store(values)

    def store(self, values: dict[str, float]) -> Row:
        """As `append`; the values are used up."""
        row = Row()
        batch = row._batch = self.batch
        slot = row._slot = batch.next_slot()
        if slot >= batch.rows:
            row._batch, row._slot = batch, slot = self.claim()
        moment = values.pop(self._marker)
        _store(batch, slot, values)
        batch.columns[0][slot] = moment
        return row

    def extend(self, count: int, columns: dict[str, Any]) -> RowBlock:
        """Stores `count` rows, their marker last: a kill leaves each whole or empty. A column is
        one value for all, or a list, tuple, range or memoryview of one a row; they are used up.
        Errors: as `append`; ValueError for a column of another length."""
        each = {name: given for name, given in columns.items() if isinstance(given, _EACH)}
        if any(len(given) != count for given in each.values()):
            raise ValueError(f"{count} rows need as many values of each of {', '.join(each)}")
        columns[self._marker] = columns.pop(self._marker)
        block, done = RowBlock(), 0
        while done < count:
            batch = self.batch
            # One call: under the GIL nobody gets a slot between these. Without it somebody may.
            slots = list(itertools.islice(batch.slots, min(count - done, batch.rows) or 1))
            in_line = slots[-1] - slots[0] < len(slots) and count > FEW_ROWS
            for run in [slots] if in_line else [[slot] for slot in slots]:
                first, end = run[0], min(run[-1] + 1, batch.rows)
                if first >= end:
                    break
                if end - first == 1:
                    _store(batch, first, columns | {name: each[name][done] for name in each})
                else:
                    part = {name: given[done : done + end - first] for name, given in each.items()}
                    _store_run(batch, first, end, columns | part)
                block.append((batch, first, end))
                done += end - first
            if slots[-1] >= batch.rows:
                self.grow(batch)
        return block

    def claim(self) -> tuple[Batch, int]:
        """An empty row: batch and slot. Errors: OSError when there is no space."""
        while (slot := (batch := self.batch).next_slot()) >= batch.rows:
            self.grow(batch)
        return batch, slot

    def grow(self, full: Batch) -> None:
        """Replaces a full batch. Errors: OSError when there is no space; RuntimeError when a signal
        handler or finalizer records while this thread is in here."""
        with self._lock:
            if self.batch is not full:
                return  # another thread was faster
            if self._growing:
                raise RuntimeError("recorded from within the recorder")
            self._growing = True
            try:
                self._begin_batch()
                self._full_rows += full.rows
            finally:
                self._growing = False

    def _begin_batch(self) -> None:
        """What strikes leaves all as it was: the batch counts from the stores at the end."""
        _close_unused()
        if self._segment.size_bytes > SEGMENT_BYTES:
            self._next_segment()
        while self._segment.size_bytes == 0 and os.path.exists(self._segment.path):
            self._next_segment()  # that one was cut short when it had its name: it holds no row
        segment = self._segment
        is_new = segment.size_bytes == 0
        # A new file gets its name once it is a stream: a kill before leaves one that ends in `NEW`.
        path = segment.path + NEW if is_new else segment.path
        if is_new and self._on_first is not None:
            self._on_first()
        with opened(path, os.O_RDWR | (os.O_CREAT if is_new else 0)) as file:
            start = segment.size_bytes
            os.ftruncate(file, start)  # what lies behind was begun once, and cut short
            if is_new:
                start = os.pwrite(file, schema_message(self.table), 0)
            now_ns = monotonic_ns()
            if now_ns - self._began_ns < GROW_WITHIN_NS:
                fit = SEGMENT_BYTES // self.table.row_bytes
                most = max(FIRST_BATCH_ROWS, min(LARGEST_BATCH_ROWS, fit))
                self._next_rows = min(self._next_rows * GROWTH, most)
            self._began_ns = now_ns
            batch, length, word = self._batch_at(segment, file, start, self._next_rows)
            if is_new:
                os.rename(path, segment.path)
        length[:] = word
        segment.size_bytes = segment.next_bytes
        self.batch = batch

    def _next_segment(self) -> None:
        self._number += 1
        self._segment = _Segment(f"{self._stem}.{self._number}.arrows")

    def _batch_at(
        self, segment: _Segment, file: int, start: int, rows: int
    ) -> tuple[Batch, memoryview, bytes]:
        """A new batch at a place of the segment; its header's length word, and where that goes."""
        message, offsets, body_bytes = batch_message(self.table, rows)
        word = message[:PREFIX_BYTES]
        body = start + len(message)
        end = segment.next_bytes = body + body_bytes
        marker_bytes = offsets[1]
        try:
            os.posix_fallocate(file, start, end - start)  # a hole in a map would be a SIGBUS
        except OSError as error:
            if from_outside(error) or error.errno not in _CANNOT_ALLOCATE:
                raise
            write_all(file, bytes(marker_bytes), body)
        write_all(file, b"\xff" * (body_bytes - marker_bytes), body + marker_bytes)
        write_all(file, message[PREFIX_BYTES:], start + PREFIX_BYTES)
        kinds = [column.kind for column in self.table.columns]
        places = [body + offset for offset in offsets]
        first = start // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        try:
            map_ = mmap.mmap(file, end - first, offset=first, **_MAP)
        except (OSError, ValueError) as error:  # a file system that cannot map
            if from_outside(error):
                raise
            write_all(file, word, start)
            at = zip(places, kinds, strict=True)
            columns = [_FileColumn(segment.path, *column) for column in at]
            return Batch(rows, columns, self._places), memoryview(bytearray(PREFIX_BYTES)), word
        with contained(OSError, ValueError):  # before Linux 5.14: each page is a fault
            map_.madvise(_POPULATE_WRITE)
        view: Any = memoryview(map_)
        batch = Batch(
            rows,
            [
                view[place - first : place - first + rows * WIDTH_BYTES[kind]].cast(kind)
                for place, kind in zip(places, kinds, strict=True)
            ],
            self._places,
        )
        _mapped.append((ref(batch), map_, segment))
        return batch, view[start - first : start - first + PREFIX_BYTES], word


class _FileColumn:
    """A column that is written value by value, where the file cannot be mapped."""

    def __init__(self, path: str, offset: int, kind: str) -> None:
        self._path = path
        self._offset = offset
        self._struct = struct.Struct(f"<{kind}")

    def __setitem__(self, slot: int, value: float) -> None:
        try:
            data = self._struct.pack(value)
        except struct.error as error:
            raise ValueError(str(error)) from None
        with opened(self._path, os.O_WRONLY) as file:
            write_all(file, data, self._offset + slot * self._struct.size)

    def __getitem__(self, slot: int) -> Any:
        with opened(self._path, os.O_RDONLY) as file:
            data = os.pread(file, self._struct.size, self._offset + slot * self._struct.size)
        return self._struct.unpack(data)[0]


def write_all(file: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written
