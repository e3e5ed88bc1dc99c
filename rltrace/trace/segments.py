"""Reading the segments of a table: stock Arrow streams, torn or foreign ones said by name.

A segment may be cut anywhere (its process was killed, the disk was full) and may still be growing.
What is whole is read; a file is never a reason to fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import ipc

from rltrace.trace.schema import Table
from rltrace.trace.segment import NEW

NUMPY_KINDS = {"b": np.int8, "i": np.int32, "q": np.int64, "f": np.float32, "d": np.float64}


@dataclass(frozen=True)
class Segment:
    """The stored rows of one file: a numpy array a column, in the order of the schema. `problem`
    says what was wrong with the file, or is None."""

    path: Path
    who: str
    columns: list[npt.NDArray[Any]]
    problem: str | None

    @property
    def rows(self) -> int:
        """Number of stored rows."""
        return len(self.columns[0])


def read_segments(folder: Path, table: Table) -> Iterator[Segment]:
    """Every segment of a table in the order of the file names."""
    for path in sorted(folder.glob("*")):
        if path.suffix == ".arrows":
            who = path.name.rsplit(".", 2)[0]
            batches, problem = _read(path, table)
            yield Segment(path, who, _joined(table, batches), problem)
        elif path.suffix != NEW:  # else its process was killed before the first row
            yield Segment(path, "", _joined(table, []), "no segment of rltrace: ignored")


def _read(path: Path, table: Table) -> tuple[list[list[npt.NDArray[Any]]], str | None]:
    batches: list[list[npt.NDArray[Any]]] = []
    try:
        with pa.memory_map(str(path)) as source, ipc.open_stream(source) as stream:
            missing = [c.name for c in table.columns if c.name not in stream.schema.names]
            if table.columns[0].name in missing:
                return [], "not a segment of this table: ignored"
            while True:
                try:
                    batch = stream.read_next_batch()
                except StopIteration:
                    break
                batches.append(_stored_rows(batch, table))
    except (OSError, pa.ArrowException, ValueError, TypeError) as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        if not batches and path.exists() and path.stat().st_size == 0:
            said = "the file is empty"
        return batches, f"cut or damaged after {sum(len(b[0]) for b in batches)} rows: {said}"
    return batches, None


def _stored_rows(batch: pa.RecordBatch, table: Table) -> list[npt.NDArray[Any]]:
    """The rows whose marker is set, copied out of the map; a column that an older writer did not
    have is unknown throughout."""
    marker = batch.column(table.columns[0].name).to_numpy(zero_copy_only=False)
    stored = marker != 0
    whole = bool(stored.all())
    columns: list[npt.NDArray[Any]] = []
    for column in table.columns:
        kind = NUMPY_KINDS[column.kind]
        if column.name in batch.schema.names:
            values = batch.column(column.name).to_numpy(zero_copy_only=False)
            values = values if whole else values[stored]
            columns.append(np.array(values, dtype=kind, copy=True))
        else:
            unknown = np.nan if column.kind in "fd" else -1
            columns.append(np.full(int(stored.sum()), unknown, kind))
    return columns


def _joined(table: Table, batches: list[list[npt.NDArray[Any]]]) -> list[npt.NDArray[Any]]:
    if not batches:
        return [np.empty(0, NUMPY_KINDS[column.kind]) for column in table.columns]
    return [np.concatenate(parts) for parts in zip(*batches, strict=True)]
