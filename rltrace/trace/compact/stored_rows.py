"""The stored rows of a run as SQL, from Parquet files and segments.

Segments are loaded when they are first asked for. What is not whole is not shown.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.compact.manifest import CompactManifest, segment_bytes
from rltrace.trace.errors import RltraceError, first_line
from rltrace.trace.job_devices import hidden_devices
from rltrace.trace.read import bounds
from rltrace.trace.read.bounds import EVER_NS
from rltrace.trace.read.processes import TracedProcess
from rltrace.trace.read.row_filters import COUNTS, publish, ranges_of
from rltrace.trace.read.run_files import RunFiles
from rltrace.trace.read.segment_batches import Columns
from rltrace.trace.schema import TABLES, Column
from rltrace.trace.vocabulary import Stage

if TYPE_CHECKING:
    import duckdb


_ROW_BYTES = 50  # of a segment, about

STEP_COLUMNS = ("step", "start_ns", "end_ns", "process")


class Stored:
    """The rows of `files`, in the database that `database` gives."""

    def __init__(self, files: RunFiles, database: Callable[[], duckdb.DuckDBPyConnection]) -> None:
        self._files, self._connect = files, database
        self.manifest = files.manifest
        self._columns: dict[str, Columns] = {}
        self._registered: set[str] = set()
        self._published = (-1, -1)  # how many processes and names are: they only become more

    def columns(self, name: str) -> Columns:
        """What segments hold of a table and was not compacted, shown or not."""
        if name not in self._columns:
            self._columns[name] = self._files.columns(name)
        return self._columns[name]

    def near(self, name: str, since_ns: int = -EVER_NS, until_ns: int = EVER_NS) -> str:
        """A query of a table's shown rows in the files of a range of time. Errors: as `rows_of`."""
        manifest, found = self.manifest, []
        if manifest is not None:
            parts, carried = manifest.between(name, since_ns, until_ns)
            if parts:
                found.append(f"FROM {self.of_files(name, [part.path for part in parts])}")
            if carried:
                began = f'WHERE "{TABLES[name].columns[0].name}" < {parts[0].from_ns}'
                found.append(f"FROM {self.of_files(name, carried)} {began}")
        if (rest := self.rest(name)) is not None:
            found.append(f"FROM {rest}")
        if not found and manifest is not None:
            found = [f"FROM {self.of_files(name, [manifest.tables[name][0].path])} LIMIT 0"]
        return " UNION ALL BY NAME ".join(found)

    def steps(self) -> list[str]:
        """Queries of the spans of steps that are shown, by `STEP_COLUMNS`. Errors: as `rows_of`."""
        columns, of_steps = ", ".join(STEP_COLUMNS), f"WHERE stage = {int(Stage.STEP)}"
        manifest, found = self.manifest, []
        if manifest is not None and manifest.steps is not None:
            source = self._rows_of([manifest.steps], [Column(name, "q") for name in STEP_COLUMNS])
            found.append(f"SELECT {columns} FROM {self._shown('spans', source)}")
        elif manifest is not None:
            parts = self.of_files("spans", [part.path for part in manifest.tables["spans"]])
            found.append(f"SELECT {columns} FROM {parts} {of_steps}")
        if (rest := self.rest("spans")) is not None:
            found.append(f"SELECT {columns} FROM {rest} {of_steps}")
        return found

    def of_files(self, name: str, files: Sequence[Path]) -> str:
        """What is shown of compacted files of a table. Errors: as `rows_of`."""
        return self._shown(name, self._rows_of(files, (*TABLES[name].columns, PROCESS)))

    def rest(self, name: str) -> str | None:
        """What is shown of a table's segments; None: none is read. A newer table is empty."""
        manifest = self.manifest
        if name not in self._files.rest and (manifest is None or manifest.tables[name]):
            return None
        if name not in self._registered:
            self._registered.add(name)
            names = [column.name for column in (*TABLES[name].columns, PROCESS)]
            named = dict(zip(names, self.columns(name), strict=True))
            publish_columns(self._connect(), f"stored_{name}", named)
            known = len(self._files.processes), len(self._files.names)
            if known != self._published:  # the table may bring new ones
                self.publish(self._connect())
        return self._shown(name, f"stored_{name}")

    def about_rows(self) -> int:
        """How many rows there are in all tables, about; no file is read for it."""
        compacted = 0 if self.manifest is None else sum(self.manifest.rows.values())
        rest = sum(segment_bytes(self._files.path, table) for table in self._files.rest)
        return compacted + rest // _ROW_BYTES

    def publish(self, database: duckdb.DuckDBPyConnection) -> None:
        """Makes the known processes and names. Errors: `RltraceError` for a file without names."""
        files = self._files
        publish_processes(database, files.processes)
        if self.manifest is not None and not files.rest:
            path = self.manifest.names
            with reading(path):
                database.execute(f"CREATE OR REPLACE VIEW names AS {names_in(database, path)}")
        else:
            publish_names(database, files.names)
        self._published = len(files.processes), len(files.names)

    def _shown(self, name: str, rows: str) -> str:
        """Those of `rows` that are of the job's own devices."""
        hidden = hidden_devices(self._files.processes) if name == "samples" else {}
        for agent, devices in hidden.items():
            which = f"process = {agent} AND device IN ({', '.join(map(str, devices))})"
            rows = f"(FROM {rows} WHERE NOT ({which}))"
        return rows

    def _rows_of(self, files: Sequence[Path], columns: Sequence[Column]) -> str:
        processes = 0 if self.manifest is None else len(self.manifest.processes)
        return rows_of(self._connect(), files, columns, processes)


def publish_processes(
    database: duckdb.DuckDBPyConnection, processes: Sequence[TracedProcess]
) -> None:
    kinds = {"process": "INT", **dict.fromkeys(("who", "host", "node"), "TEXT"), "pid": "BIGINT"}
    kinds |= {"role": "TEXT", "child_of": "TEXT", "rank": "BIGINT", "adapter": "TEXT"}
    kinds |= {"devices": "TEXT", "start_ns": "BIGINT", "clock_bound_ns": "BIGINT"}
    known = (
        {**vars(p), "process": p.number, "devices": json.dumps(p.facts.get("devices"))}
        for p in processes
    )
    publish(database, "processes", kinds, [[one[column] for column in kinds] for one in known])


def publish_names(database: duckdb.DuckDBPyConnection, ids: Mapping[str, int]) -> None:
    publish(
        database, "names", {"id": "INT", "text": "TEXT"}, [(n, text) for text, n in ids.items()]
    )


def publish_columns(
    database: duckdb.DuckDBPyConnection, name: str, columns: Mapping[str, NDArray[Any]]
) -> None:
    """Makes a view of columns, which stay where they are. DuckDB takes NaN of numpy's for NULL; it
    is made NaN again, of the same bits."""
    held, shown = {**columns}, {of: f'"{of}"' for of in columns}
    for of, values in columns.items():
        if values.dtype.kind == "f":
            bits = held[f"{of}_bits"] = values.view(f"i{values.itemsize}")
            nan = f"{of}_bits" if (np.isnan(values) & (bits != -1)).any() else "(-1)"
            whole, real = {4: ("INT", "FLOAT"), 8: ("BIGINT", "DOUBLE")}[values.itemsize]
            shown[of] = f"ifnull({of}, {nan}::{whole}::BIT::{real}) AS {of}"
    database.register(f"{name}_columns", held)
    query = f"SELECT {', '.join(shown.values())} FROM {name}_columns"
    database.execute(f"CREATE OR REPLACE VIEW {name} AS {query}")


# Anybody may have made them: a file of a few kilobytes can state billions of rows, and one that
# somebody else wrote has the types that they liked. Both are told by what the files say of
# themselves before a row of them is read.

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
    """The rows of Parquet files with these columns, of the first `processes` and of possible times.
    Errors: `RltraceError` for what is none of rltrace's; duckdb.Error for what is no Parquet."""
    ranges = {**ranges_of(columns), PROCESS.name: (0, processes - 1)}
    for i, column in enumerate(columns):
        if column.is_time:
            ranges[column.name] = (-EVER_NS if i else 1, EVER_NS - 1)
    odd = _beyond(database, paths, ranges)
    check_columns(database, paths, columns)
    kept = " AND ".join(
        f'"{name}" BETWEEN {least} AND {most}'
        for name, (least, most) in ranges.items()
        if name in odd and name not in COUNTS
    )
    named = (f'"{column.name}"' for column in columns)  # 0.1 wrote others, too
    names = ", ".join(
        f"if({name} BETWEEN {ranges[of][0]} AND {ranges[of][1]}, {name}, -1) AS {name}"
        if (of := name.strip('"')) in odd and of in COUNTS
        else name
        for name in named
    )
    return f"(SELECT {names} FROM {parquet_of(paths)}{' WHERE ' if kept else ''}{kept})"


def _beyond(
    database: duckdb.DuckDBPyConnection,
    paths: Sequence[Path],
    ranges: Mapping[str, tuple[int, int]],
) -> set[str]:
    """Columns that need a filter: by what the files say, a value may be out of its range. Errors:
    as `check_rows`."""
    stated = database.execute(
        "SELECT path_in_schema, min(TRY_CAST(stats_min_value AS BIGINT)),"
        " max(TRY_CAST(stats_max_value AS BIGINT)), bool_and(num_values = 0 OR"
        " (stats_null_count = 0 AND TRY_CAST(stats_min_value AS BIGINT) IS NOT NULL"
        " AND TRY_CAST(stats_max_value AS BIGINT) IS NOT NULL)),"
        " sum(row_group_num_rows) FILTER (column_id = 0)"
        f" FROM parquet_metadata([{_listed(paths)}]) GROUP BY 1"
    ).fetchall()
    check_stated(sum(int(row[-1] or 0) for row in stated), paths)
    within = set()
    for name, least, most, known, _ in stated:
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
    if rows > bounds.MOST_SMALL_ROWS + bounds.ROWS_OF_BYTE * sum(
        path.stat().st_size for path in paths
    ):
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
    """A query of the `id` and `text` of each name in a file. Errors: `RltraceError` for a file of
    something else, or of more than the texts of a run (what stands in a file once can be in all of
    its rows); duckdb.Error for what is no Parquet."""
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
    if (held or 0) > bounds.MOST_TEXT_BYTES:
        said = f"its texts are longer than {bounds.MOST_TEXT_BYTES >> 20} MiB"
        raise RltraceError(f"{path} is no table of rltrace: {said}")
    return f"SELECT id::INT AS id, text FROM {names}"


def parquet_of(paths: Iterable[Path]) -> str:
    """The rows of Parquet files, one after the other. A folder called `step=5` is no column."""
    return f"read_parquet([{_listed(paths)}], hive_partitioning = false)"


def pattern_of(path: Path) -> Path:
    """The pattern that fits a path only: DuckDB reads all that fits, and follows links."""
    return Path(_GLOB.sub(r"[\1]", str(path)))


def quoted(text: object) -> str:
    """A text, or a path, as SQL has it."""
    return "'" + str(text).replace("'", "''") + "'"


def _listed(paths: Iterable[Path]) -> str:
    return ", ".join(quoted(pattern_of(path)) for path in paths)


def unreadable(path: Path, error: Exception) -> RltraceError:
    return RltraceError(f"{path} cannot be read: {first_line(error)}")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Errors: `RltraceError` where DuckDB cannot read what lies there."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        raise unreadable(path, error) from None


_MOST_THREADS = 16  # each takes a stack of a command's memory


def new_database() -> duckdb.DuckDBPyConnection:
    """One for a few files of a run. Errors: `RltraceError`."""
    import duckdb

    bounds.check_space(bounds.LEAST_SPACE_OF_ONE)
    return duckdb.connect(config={"threads": min(os.cpu_count() or 1, _MOST_THREADS)})


def table_columns(manifest: CompactManifest, table: str) -> dict[str, NDArray[Any]]:
    """The columns of a table, `process` among them. Errors: `RltraceError` where it is none."""
    paths = [part.path for part in manifest.tables[table]]
    columns = (*TABLES[table].columns, PROCESS)
    with reading(paths[0].parent), new_database() as database:
        rows = rows_of(database, paths, columns, len(manifest.processes))
        found = database.execute(f"FROM {rows}").fetchnumpy()
    unknown = {column.name: np.nan if column.kind in "fd" else -1 for column in columns}
    return {
        column.name: np.ma.filled(found[column.name], unknown[column.name]).astype(column.kind)
        for column in columns
    }


def name_texts(path: Path) -> list[str]:
    """The text of each name id in a file. Errors: `RltraceError` for one that holds no names."""
    with reading(path), new_database() as database:
        rows = database.execute(names_in(database, path)).fetchall()
    texts = dict(rows)
    try:
        return [str(texts[number]) for number in range(len(rows))]  # no gaps, none twice
    except KeyError:
        raise RltraceError(f"{path} holds no names") from None
