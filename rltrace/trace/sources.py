"""The Parquet files of a run in the words of SQL, held against what `compact` writes.

Anybody may have made them: a file of a few kilobytes can state billions of rows, and one that
somebody else wrote has the types that they liked. Both are told by what the files say of themselves
before a row of them is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.errors import RltraceError
from rltrace.trace.manifest import Manifest
from rltrace.trace.own_files import MOST_TEXT_BYTES
from rltrace.trace.real_times import EVER_NS
from rltrace.trace.schema import TABLES, Column

if TYPE_CHECKING:
    import duckdb

MOST_SMALL_ROWS = 1 << 26
ROWS_OF_BYTE = 16
"""Of a table: rows beyond so many take a byte for each 16 at the least. Real ones take 30 times as
much, as no two of them begin at the same distance."""

PROCESS = Column("process", "i")

_GLOB = re.compile(r"([*?\[])")
_STORED = {"b": "INT32", "i": "INT32", "q": "INT64", "f": "FLOAT", "d": "DOUBLE"}
_TEXT = ("BYTE_ARRAY", "UTF8")
_SIGNED = ("INT_8", "INT_16", "INT_32", "INT_64")


def rows_of(
    database: duckdb.DuckDBPyConnection,
    paths: Sequence[Path],
    columns: Sequence[Column],
    processes: int,
) -> str:
    """The rows of Parquet files with these columns, one file after the other: those of the first so
    many `processes`, as the run has no others, and of times that a clock can have shown. Errors:
    `RltraceError` for what is none of rltrace's; duckdb.Error for what is no Parquet."""
    check_rows(database, paths)
    check_columns(database, paths, columns)
    ranges = {PROCESS.name: (0, processes - 1)}
    for i, column in enumerate(columns):
        if column.is_time:
            ranges[column.name] = (-EVER_NS if i else 1, EVER_NS - 1)
    odd = _beyond(database, paths, ranges)
    kept = " AND ".join(
        f'"{name}" BETWEEN {least} AND {most}'
        for name, (least, most) in ranges.items()
        if name in odd
    )
    names = ", ".join(f'"{column.name}"' for column in columns)  # 0.1 wrote others, too
    return f"(SELECT {names} FROM {parquet_of(paths)}{' WHERE ' if kept else ''}{kept})"


def _beyond(
    database: duckdb.DuckDBPyConnection,
    paths: Sequence[Path],
    ranges: Mapping[str, tuple[int, int]],
) -> set[str]:
    """The columns of which the files do not say that all values are within their range: a filter
    has to read each of them at each question, and those of a real run need none."""
    stated = database.execute(
        "SELECT path_in_schema, min(TRY_CAST(stats_min_value AS BIGINT)),"
        " max(TRY_CAST(stats_max_value AS BIGINT)), bool_and(num_values = 0 OR"
        " (stats_null_count = 0 AND TRY_CAST(stats_min_value AS BIGINT) IS NOT NULL"
        " AND TRY_CAST(stats_max_value AS BIGINT) IS NOT NULL))"
        f" FROM parquet_metadata([{_listed(paths)}]) GROUP BY 1"
    ).fetchall()
    within = set()
    for name, least, most, known in stated:
        if name in ranges and known:
            low, high = ranges[name]
            if least is None or (least >= low and most <= high):
                within.add(name)
    return set(ranges) - within


def check_rows(database: duckdb.DuckDBPyConnection, paths: Sequence[Path]) -> None:
    """Errors: `RltraceError` for files that state more rows than they can have."""
    stated = f"FROM parquet_metadata([{_listed(paths)}]) WHERE column_id = 0"
    rows = database.execute(f"SELECT sum(row_group_num_rows) {stated}").fetchall()[0][0]
    check_stated(int(rows or 0), paths)


def check_stated(rows: int, paths: Sequence[Path]) -> None:
    """Errors: `RltraceError` where these files cannot have so many rows."""
    most = MOST_SMALL_ROWS + ROWS_OF_BYTE * sum(path.stat().st_size for path in paths)
    if rows > most:
        raise RltraceError(f"{paths[0]} is no table of rltrace: it states {rows:,} rows")


def check_columns(
    database: duckdb.DuckDBPyConnection, paths: Sequence[Path], columns: Iterable[Column]
) -> None:
    """Errors: `RltraceError` for files in which one of the columns has another type."""
    kinds = {column.name: _STORED[column.kind] for column in columns}
    found = database.execute(
        "SELECT file_name, name, type, converted_type, logical_type "
        f"FROM parquet_schema([{_listed(paths)}])"
    ).fetchall()
    for file, name, stored, converted, logical in found:
        signed = (converted is None and logical is None) or converted in _SIGNED
        if name in kinds and (stored != kinds[name] or not signed):
            raise RltraceError(f"{file} is no table of rltrace: {name} has another type")


def names_in(database: duckdb.DuckDBPyConnection, path: Path) -> str:
    """A query of the `id` and the `text` of each name in a file. Errors: `RltraceError` for one
    that holds something else, or more than the texts of a run are: what stands in a file once can
    be in all of its rows; duckdb.Error for what is no Parquet."""
    check_rows(database, [path])
    check_columns(database, [path], [Column("id", "i")])
    texts = f"FROM parquet_schema([{_listed([path])}]) WHERE name = 'text'"
    if database.execute(f"SELECT type, converted_type {texts}").fetchall() != [_TEXT]:
        raise RltraceError(f"{path} is no table of rltrace: text has another type")
    names = parquet_of([path])
    held, is_odd = database.execute(
        f"SELECT sum(strlen(text)), count(*) > least(count(DISTINCT id), count(text)) FROM {names}"
    ).fetchall()[0]
    if is_odd:  # else every row that has the name would come as often as it has texts
        raise RltraceError(f"{path} holds no names")
    if (held or 0) > MOST_TEXT_BYTES:
        said = f"its texts are longer than {MOST_TEXT_BYTES >> 20} MiB"
        raise RltraceError(f"{path} is no table of rltrace: {said}")
    return f"SELECT id::INT AS id, text FROM {names}"


def parquet_of(paths: Iterable[Path]) -> str:
    """The rows of Parquet files, one after the other. A folder called `step=5` is no column."""
    return f"read_parquet([{_listed(paths)}], hive_partitioning = false)"


def pattern_of(path: Path) -> Path:
    """The pattern that fits a path only: DuckDB reads all that fits, and follows links."""
    return Path(_GLOB.sub(r"[\1]", str(path)))


def quoted(path: Path) -> str:
    """A path as a literal."""
    return "'" + str(path).replace("'", "''") + "'"


def _listed(paths: Iterable[Path]) -> str:
    """Paths as literals, each of which fits itself only."""
    return ", ".join(quoted(pattern_of(path)) for path in paths)


def unreadable(path: Path, error: Exception) -> RltraceError:
    """What is said of a compacted table that is none."""
    return RltraceError(f"{path} cannot be read: {str(error).strip().splitlines()[0]}")


# --- a compacted run without a database of its own


def table_columns(manifest: Manifest, table: str) -> dict[str, NDArray[Any]]:
    """The columns of a table, `process` among them. Errors: `RltraceError` where it is none."""
    import duckdb

    paths = [part.path for part in manifest.tables[table]]
    columns = (*TABLES[table].columns, PROCESS)
    try:
        with duckdb.connect() as database:
            rows = rows_of(database, paths, columns, len(manifest.processes))
            found = database.execute(f"FROM {rows}").fetchnumpy()
    except duckdb.Error as error:
        raise unreadable(paths[0].parent, error) from None
    unknown = {column.name: np.nan if column.kind in "fd" else -1 for column in columns}
    return {
        column.name: np.ma.filled(found[column.name], unknown[column.name]).astype(column.kind)
        for column in columns
    }


def name_texts(path: Path) -> list[str]:
    """The text of each name id in a file. Errors: `RltraceError` for one that holds no names."""
    import duckdb

    try:
        with duckdb.connect() as database:
            rows = database.execute(names_in(database, path)).fetchall()
    except duckdb.Error as error:
        raise unreadable(path, error) from None
    texts = dict(rows)
    try:
        return [str(texts[number]) for number in range(len(rows))]  # no gaps, none twice
    except KeyError:
        raise RltraceError(f"{path} holds no names") from None
