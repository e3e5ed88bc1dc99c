"""The stored rows of a run as SQL: those of its Parquet files and, loaded when they are first asked
for, those of its segments. Of a run that is kept small (`wrap --max-bytes`) some are not shown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rltrace.trace.dropped import Dropped
from rltrace.trace.dropped_tables import SEGMENT, publish_dropped, shown
from rltrace.trace.files import RunFiles
from rltrace.trace.hidden import Hidden, hidden_rows, with_hidden
from rltrace.trace.published import publish_compacted_names, publish_names, publish_processes
from rltrace.trace.real_times import EVER_NS
from rltrace.trace.run_dir import PARQUET
from rltrace.trace.schema import TABLES, Column
from rltrace.trace.sources import PROCESS, rows_of, unreadable
from rltrace.trace.stream import Columns
from rltrace.trace.vocabulary import Stage

if TYPE_CHECKING:
    import duckdb

STEP_COLUMNS = ("step", "start_ns", "end_ns", "process")


class Stored:
    """The rows of `files`, in the database that `database` gives."""

    def __init__(self, files: RunFiles, database: Callable[[], duckdb.DuckDBPyConnection]) -> None:
        self._files, self._connect = files, database
        self._columns: dict[str, Columns] = {}
        self._registered: set[str] = set()
        self._hidden: dict[str, Hidden] = {}
        self._hidden_by: Dropped | None = None
        self._published = (-1, -1)  # how many processes and names are: they only become more

    def columns(self, name: str) -> Columns:
        """What segments hold of a table and was not compacted, shown or not."""
        if name not in self._columns:
            self._columns[name] = self._files.columns(name)
            self._publish_dropped()
        return self._columns[name]

    def shown(self, name: str) -> str:
        """A query of all rows of a table that are shown. Errors: as `rows_of`."""
        found = [self._shown(name, source) for source in self._sources(name)]
        return " UNION ALL BY NAME ".join(f"FROM {rows}" for rows in found)

    def count(self, name: str) -> int:
        """How many rows of a table are shown. Errors: `RltraceError` where they cannot be read."""
        import duckdb

        try:
            counted = f"SELECT count(*) FROM ({self.shown(name)})"
            count: int = self._connect().execute(counted).fetchall()[0][0]
        except duckdb.Error as error:
            raise unreadable(self._files.path / PARQUET / name, error) from None
        return count

    def steps(self) -> list[str]:
        """Queries of the spans of steps that are shown, by `STEP_COLUMNS`. Errors: as `rows_of`."""
        columns, of_steps = ", ".join(STEP_COLUMNS), f"WHERE stage = {int(Stage.STEP)}"
        manifest = self._files.manifest
        found = []
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
        """What is shown of the segments of a table; None where nothing is read from them."""
        rest = self._rest(name)
        return None if rest is None else self._shown(name, rest)

    def dropped(self, tables: Collection[str]) -> Dropped | None:
        """What was dropped, with what is hidden of these tables; None: nothing was. Errors:
        `RltraceError` where they cannot be read."""
        if self._files.dropped is None:
            return None
        for name in tables:
            self._rest(name)  # more may have been dropped when all are read
        self._publish_dropped()
        dropped = self._files.dropped
        if dropped is not self._hidden_by:
            self._hidden_by, self._hidden = dropped, {}
        for name in tables:
            if name not in self._hidden:
                self._hidden[name] = self._hidden_until(dropped.until_ns, name)
        return with_hidden(dropped, {name: self._hidden[name] for name in tables})

    def publish(self, database: duckdb.DuckDBPyConnection) -> None:
        """Makes the processes and names that are known by now, and what is not shown, or makes them
        anew. Errors: `RltraceError` for a file that holds no names."""
        files = self._files
        publish_processes(database, files.processes)
        if files.manifest is not None and not files.rest:
            publish_compacted_names(database, files.manifest.names)
        else:
            publish_names(database, files.names)
        self._published = len(files.processes), len(files.names)
        if files.capped:  # else no query looks
            publish_dropped(database, files.dropped, files.segments)

    def _publish_dropped(self) -> None:
        if self._files.dropped is not None:
            publish_dropped(self._connect(), self._files.dropped, self._files.segments)

    def _hidden_until(self, until_ns: int, name: str) -> Hidden:
        import duckdb

        try:
            return hidden_rows(self._connect(), TABLES[name], self._sources(name, until_ns))
        except duckdb.Error as error:
            raise unreadable(self._files.path / PARQUET / name, error) from None

    def _sources(self, name: str, until_ns: int = EVER_NS) -> list[str]:
        """All rows of a table that there are, shown or not; of compacted ones those at least that
        began until a moment (Unix ns)."""
        found = []
        if self._files.manifest is not None:
            parts = [p.path for p in self._files.manifest.tables[name] if p.from_ns <= until_ns]
            found += [self._rows_of(parts, (*TABLES[name].columns, PROCESS))] if parts else []
        if (rest := self._rest(name)) is not None:
            found.append(rest)
        return found

    def _shown(self, name: str, rows: str) -> str:
        """Of rows of a table those that are shown: all, unless the run is kept small."""
        return shown(TABLES[name], rows) if self._files.capped else rows

    def _rows_of(self, files: Sequence[Path], columns: Sequence[Column]) -> str:
        """The rows of compacted files; of a run that is kept small with their segments, -1 where
        an older rltrace wrote them. Errors: as `rows_of`."""
        manifest = self._files.manifest
        processes = 0 if manifest is None else len(manifest.processes)
        has_segments = manifest is not None and manifest.has_segments
        columns = (*columns, SEGMENT) if has_segments else columns
        rows = rows_of(self._connect(), files, columns, processes)
        if self._files.capped and not has_segments:
            return f"(SELECT *, -1 AS {SEGMENT.name} FROM {rows})"
        return rows

    def _rest(self, name: str) -> str | None:
        """The table of what is read from segments; None where nothing is. One that was not there
        yet when the run was compacted has none, and is empty."""
        manifest = self._files.manifest
        if name not in self._files.rest and (manifest is None or manifest.tables[name]):
            return None
        if name not in self._registered:
            self._registered.add(name)
            self._register(name)
        return f"stored_{name}"

    def _register(self, name: str) -> None:
        import pyarrow as pa

        columns = self.columns(name)
        kinds = [*TABLES[name].columns, PROCESS, *([SEGMENT] if self._files.capped else [])]
        named = zip([kind.name for kind in kinds], columns, strict=True)
        loaded = pa.table({of: pa.array(values) for of, values in named})
        self._connect().register(f"stored_{name}", loaded)
        known = len(self._files.processes), len(self._files.names)
        if self._files.capped or known != self._published:  # the table may bring new ones
            self.publish(self._connect())
