"""Reading the segments of a table: stock Arrow streams, torn or foreign ones said by name.

A segment may be cut anywhere (its process was killed, the disk was full), may still be growing, and
may be anybody's. What is whole is read; a file is never a reason to fail.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rltrace.trace.arrow_layout import NotASegment
from rltrace.trace.own_files import NO_PLAIN_FILE, open_own, own_files
from rltrace.trace.schema import Table
from rltrace.trace.segment import NEW
from rltrace.trace.stream import Columns, CutError, Place, Stream, joined, unknown, values_at


@dataclass(frozen=True)
class Segment:
    """The stored rows of one file: a numpy array a column, in the order of the schema. `problem`
    says what was wrong with the file, or is None."""

    path: Path
    who: str
    columns: Columns
    problem: str | None

    @property
    def rows(self) -> int:
        """Number of stored rows."""
        return len(self.columns[0])


def read_segments(folder: Path, table: Table) -> Iterator[Segment]:
    """Every segment of a table in the order of the file names."""
    plain, others = own_files(folder)
    for path in others:
        yield Segment(path, "", joined(table, []), NO_PLAIN_FILE)
    for path in plain:
        if path.suffix == ".arrows":
            yield read_segment(path, table)
        elif path.suffix != NEW:  # else its process was killed before the first row
            yield Segment(path, "", joined(table, []), "no segment of rltrace: ignored")


def read_segment(path: Path, table: Table) -> Segment:
    """One segment of a table."""
    batches, problem = _read(path, table)
    return Segment(path, path.name.rsplit(".", 2)[0], joined(table, batches), problem)


def _read(path: Path, table: Table) -> tuple[list[Columns], str | None]:
    batches: list[Columns] = []
    try:
        file, status = open_own(path)
    except FileNotFoundError:  # dropped a moment ago (`wrap --max-bytes`)
        return [], None
    except OSError as error:
        return [], f"cannot be read: {error.strerror}"
    try:
        stream = Stream(table)
        for place in stream.batches(file, status.st_size):
            batches.append(_stored_rows(file, table, place))
        if not stream.end:
            raise CutError("no schema" if status.st_size else "the file is empty")
        if stream.is_cut:
            raise CutError("a message has no end")
    except (OSError, NotASegment, CutError) as error:
        return batches, f"cut or damaged after {sum(len(b[0]) for b in batches)} rows: {error}"
    finally:
        os.close(file)
    return batches, None


def _stored_rows(file: int, table: Table, place: Place) -> Columns:
    """The rows whose marker is set; a column that an older writer did not have is unknown."""
    marker = values_at(file, table, place, 0, 0, place.rows)
    stored = marker != 0
    kept = int(stored.sum())
    if kept == place.rows:
        rest = (values_at(file, table, place, i, 0, kept) for i in range(1, len(place.offsets)))
        return [marker, *rest]
    columns = [marker[stored]]
    for i, offset in enumerate(place.offsets[1:], 1):
        if kept and offset >= 0:
            columns.append(values_at(file, table, place, i, 0, place.rows)[stored])
        else:
            columns.append(unknown(table, i, kept))
    return columns
