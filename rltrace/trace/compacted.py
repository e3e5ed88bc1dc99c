"""A compacted run whose segments were deleted, read at once as if it had been followed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from rltrace.trace.errors import RltraceError
from rltrace.trace.manifest import Manifest
from rltrace.trace.real_times import of_real_times
from rltrace.trace.schema import TABLES, WIDTH_BYTES, Column
from rltrace.trace.sources import PROCESS, check_stated, names_in, unreadable

if TYPE_CHECKING:
    import pyarrow as pa


def table_columns(manifest: Manifest, table: str) -> dict[str, NDArray[Any]]:
    """The columns of a table, `process` among them, without rows of a process that the run does not
    have, or of no possible time. Errors: `RltraceError` where it is none."""
    paths = [part.path for part in manifest.tables[table]]
    rows = _read(*paths)
    try:
        columns = {c.name: _values(rows[c.name], c) for c in (*TABLES[table].columns, PROCESS)}
    except (KeyError, ValueError, TypeError) as error:
        raise RltraceError(f"{paths[0].parent} cannot be read: {error}") from None
    process = columns[PROCESS.name]
    known = (process >= 0) & (process < len(manifest.processes))
    if not known.all():
        columns = {name: of[known] for name, of in columns.items()}
    real, _ = of_real_times(TABLES[table], [*columns.values()])
    return dict(zip(columns, real, strict=True))


def name_texts(manifest: Manifest) -> list[str]:
    """The text of each name id. Errors: as `table_columns`."""
    import duckdb

    try:
        with duckdb.connect() as database:
            rows = database.execute(names_in(database, manifest.names)).fetchall()
    except duckdb.Error as error:
        raise unreadable(manifest.names, error) from None
    texts = dict(rows)
    try:
        return [str(texts[number]) for number in range(len(rows))]  # no gaps, none twice
    except KeyError:
        raise RltraceError(f"{manifest.names} holds no names") from None


def _values(stored: pa.ChunkedArray, column: Column) -> NDArray[Any]:
    """Errors: ValueError where the values are none of the column's."""
    import pyarrow as pa

    fits = pa.types.is_floating if column.kind in "fd" else pa.types.is_signed_integer
    if not fits(stored.type) or stored.type.bit_width > 8 * WIDTH_BYTES[column.kind]:
        raise ValueError(f"{column.name} has another type")
    if stored.null_count:
        raise ValueError(f"{column.name} has nulls")
    values: NDArray[Any] = stored.to_numpy().astype(column.kind)
    return values


def _read(*paths: Path) -> Any:
    from pyarrow import ArrowException, parquet  # 0.1 s, and runs that are followed have none

    try:
        check_stated(sum(map(_stated_rows, paths)), paths)
        return parquet.read_table(list(paths), partitioning=None)
    except (OSError, ArrowException) as error:
        raise RltraceError(f"{paths[0]} cannot be read: {error}") from None


def _stated_rows(path: Path) -> int:
    from pyarrow import parquet

    said = parquet.read_metadata(path)
    return sum(said.row_group(group).num_rows for group in range(said.num_row_groups))
