"""The stored rows of a run as SQL: those of its Parquet files and, loaded when they are first asked
for, those of its segments. What is not whole is not shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rltrace.trace.files import RunFiles
from rltrace.trace.given import hidden_devices
from rltrace.trace.manifest import segment_bytes
from rltrace.trace.processes import Process
from rltrace.trace.real_times import EVER_NS
from rltrace.trace.run_dir import PARQUET
from rltrace.trace.schema import OF_ONE_SAMPLE, TABLES, Column
from rltrace.trace.sources import PROCESS, names_in, rows_of, unreadable
from rltrace.trace.stream import Columns
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
        """A query of the rows of a table that are shown, in the files in which those of a range of
        time are. Errors: as `rows_of`."""
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

    def count(self, name: str) -> int:
        """How many rows of a table are shown. Errors: `RltraceError` where they cannot be read."""
        import duckdb

        try:
            counted = f"SELECT count(*) FROM ({self.near(name)})"
            count: int = self._connect().execute(counted).fetchall()[0][0]
        except duckdb.Error as error:
            raise unreadable(self._files.path / PARQUET / name, error) from None
        return count

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
        """What is shown of the segments of a table; None where nothing is read from them."""
        rest = self._rest(name)
        return None if rest is None else self._shown(name, rest)

    def about_rows(self) -> int:
        """How many rows there are in all tables, about; no file is read for it."""
        compacted = 0 if self.manifest is None else sum(self.manifest.rows.values())
        rest = sum(segment_bytes(self._files.path, table) for table in self._files.rest)
        return compacted + rest // _ROW_BYTES

    def publish(self, database: duckdb.DuckDBPyConnection) -> None:
        """Makes the processes and names that are known by now, or makes them anew. Errors:
        `RltraceError` for a file that holds no names."""
        import duckdb

        files = self._files
        publish_processes(database, files.processes)
        if self.manifest is not None and not files.rest:
            path = self.manifest.names
            try:
                database.execute(f"CREATE OR REPLACE VIEW names AS {names_in(database, path)}")
            except duckdb.Error as error:
                raise unreadable(path, error) from None
        else:
            publish_names(database, files.names)
        self._published = len(files.processes), len(files.names)

    def _shown(self, name: str, rows: str) -> str:
        """Of rows of a table those that are shown: all, unless others were dropped, or left out, or
        are readings of another job's devices."""
        hidden = hidden_devices(self._files.processes) if name == "samples" else {}
        for agent, devices in hidden.items():
            which = f"process = {agent} AND device IN ({', '.join(map(str, devices))})"
            rows = f"(FROM {rows} WHERE NOT ({which}))"
        if self._files.only_some and name in OF_ONE_SAMPLE:
            rows = f"(FROM {rows} WHERE false)"
        dropped = self._files.dropped
        return rows if dropped is None else dropped.shown(TABLES[name], rows)

    def _rows_of(self, files: Sequence[Path], columns: Sequence[Column]) -> str:
        """The rows of compacted files. Errors: as `rows_of`."""
        processes = 0 if self.manifest is None else len(self.manifest.processes)
        return rows_of(self._connect(), files, columns, processes)

    def _rest(self, name: str) -> str | None:
        """The table of what is read from segments; None where nothing is. One that was not there
        yet when the run was compacted has none, and is empty."""
        manifest = self.manifest
        if name not in self._files.rest and (manifest is None or manifest.tables[name]):
            return None
        if name not in self._registered:
            self._registered.add(name)
            self._register(name)
        return f"stored_{name}"

    def _register(self, name: str) -> None:
        import pyarrow as pa

        columns = self.columns(name)
        kinds = [*TABLES[name].columns, PROCESS]
        named = zip([kind.name for kind in kinds], columns, strict=True)
        loaded = pa.table({of: pa.array(values) for of, values in named})
        self._connect().register(f"stored_{name}", loaded)
        known = len(self._files.processes), len(self._files.names)
        if known != self._published:  # the table may bring new ones
            self.publish(self._connect())


# --- the processes and the names of a run as tables of its database


def publish_processes(database: duckdb.DuckDBPyConnection, processes: Sequence[Process]) -> None:
    """Makes `processes`, or makes it anew."""
    import pyarrow as pa

    whole, text = pa.int64(), pa.string()
    kinds = {"process": pa.int32(), **dict.fromkeys(("who", "host", "node"), text), "pid": whole}
    kinds |= {"role": text, "child_of": text, "rank": whole, "adapter": text, "devices": text}
    kinds |= dict.fromkeys(("start_ns", "clock_bound_ns"), whole)
    rows = [
        {**vars(p), "process": p.number, "devices": json.dumps(p.facts.get("devices"))}
        for p in processes
    ]
    database.register("processes", pa.Table.from_pylist(rows, pa.schema(kinds)))


def publish_names(database: duckdb.DuckDBPyConnection, ids: Mapping[str, int]) -> None:
    """Makes `names` of the texts that have these ids, or makes it anew."""
    import pyarrow as pa

    columns = {"id": pa.array(ids.values(), pa.int32()), "text": pa.array(ids.keys(), pa.string())}
    database.register("names", pa.table(columns))
