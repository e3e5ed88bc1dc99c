"""A run, opened for reading: `open_run(path)` gives tables and views in DuckDB.

Times are Unix nanoseconds on one time line for all nodes (`alignment`). A table is loaded when it
is first asked for; a compacted run is read from its Parquet files and nothing is loaded at all.
"""

from __future__ import annotations

import json
import re
from functools import cached_property
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from rltrace.trace import run_dir
from rltrace.trace.alignment import NodeClock, Pair, align, read_clock_files
from rltrace.trace.errors import WRONG_USAGE, RltraceError
from rltrace.trace.manifest import Manifest, read_manifest
from rltrace.trace.parents import roles_of_parents
from rltrace.trace.processes import Process, described
from rltrace.trace.schema import SCHEMA_VERSION, TABLES
from rltrace.trace.segments import NUMPY_KINDS, Segment, read_segments
from rltrace.trace.views import BASES, LAGS, view_statements


def open_run(path: str | Path) -> Run:
    """Opens a run directory. Errors: `RltraceError` when it is none, or newer than this rltrace."""
    return Run(Path(path))


class Run:
    """A run's metadata, processes and tables.

    `problems` lists, as dicts with "what" and "target", the files that could not be read whole and
    everything that the traced processes could not record.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.meta = run_dir.read_run_json(str(path))
        version = self.meta.get("schema_version")
        if not isinstance(version, int):
            raise RltraceError(f"{path}/{run_dir.RUN_FILE} states no schema version: no run")
        if version > SCHEMA_VERSION:
            raise RltraceError(
                f"{path} was written with trace schema {version}, this rltrace reads up to "
                f"{SCHEMA_VERSION}: upgrade rltrace-toolkit"
            )
        self.problems: list[dict[str, Any]] = []
        self._manifest: Manifest | None = read_manifest(path)
        self._loaded: set[str] = set()
        self._rows: dict[str, int] = {}
        self._database = duckdb.connect()
        self._read_processes()
        self._read_problem_files()

    @property
    def is_compacted(self) -> bool:
        """Whether the tables come from Parquet files."""
        return self._manifest is not None

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The in-memory database, with every table and view in it."""
        for table in TABLES:
            self._load(table)
        return self._database

    def sql(self, query: str) -> duckdb.DuckDBPyRelation:
        """Runs a query over the tables and views (docs/trace-format.md lists them). Errors:
        `RltraceError` with DuckDB's own message for a query that does not run."""
        words = set(re.findall(r"\w+", query.lower()))
        for name, tables in BASES.items():
            if name in words:
                for table in tables:
                    self._load(table)
                if name == "lags":
                    self._database.execute(LAGS)
        try:
            relation = self._database.sql(query)
        except duckdb.Error as error:
            said = str(error).strip().splitlines()[0]
            known = ", ".join(sorted(n for n in BASES if not n.startswith("raw_")))
            message = f"the query does not run: {said} (tables: {known}, processes, names)"
            raise RltraceError(message, WRONG_USAGE) from None
        if relation is None:
            raise RltraceError("the query returns no rows: give a SELECT", WRONG_USAGE)
        return relation

    def clock_of(self, node: str) -> NodeClock | None:
        """How a node's monotonic clock maps to the run's time; None where it is not known."""
        return self._clocks.get(node)

    def rows(self, table: str) -> int:
        """Number of stored rows of a table."""
        self._load(table)
        return self._rows[table]

    @cached_property
    def spans(self) -> duckdb.DuckDBPyRelation:
        """The `spans` view as a relation: `.df()`, `.pl()`, `.arrow()` are DuckDB's own."""
        return self.sql("FROM spans")

    @cached_property
    def trajectories(self) -> duckdb.DuckDBPyRelation:
        """The `trajectories` view."""
        return self.sql("FROM trajectories")

    @cached_property
    def rewards(self) -> duckdb.DuckDBPyRelation:
        """The `rewards` view."""
        return self.sql("FROM rewards")

    @cached_property
    def uses(self) -> duckdb.DuckDBPyRelation:
        """The `uses` view."""
        return self.sql("FROM uses")

    @cached_property
    def syncs(self) -> duckdb.DuckDBPyRelation:
        """The `syncs` view."""
        return self.sql("FROM syncs")

    @cached_property
    def samples(self) -> duckdb.DuckDBPyRelation:
        """The `samples` view."""
        return self.sql("FROM samples")

    def _problem(self, what: str, target: str, detail: str) -> None:
        self.problems.append({"what": what, "target": target, "detail": detail})

    def _read_json_files(self, folder: str) -> dict[str, dict[str, Any]]:
        found = {}
        for path in sorted((self.path / folder).glob("*.json")):
            try:
                loaded = json.loads(path.read_text("utf-8"))
                found[path.stem] = {**loaded}
            except (OSError, ValueError, TypeError) as error:
                self._problem("unreadable-file", f"{folder}/{path.name}", str(error))
        return found

    def _read_processes(self) -> None:
        facts = self._read_json_files(run_dir.PROCESS)
        pairs, exchanges, bad_lines = read_clock_files(self.path / run_dir.CLOCKS)
        for line in bad_lines:
            self._problem("unreadable-line", f"{run_dir.CLOCKS}/{line}", "skipped")
        for fact in facts.values():
            clock = fact.get("clock")
            if isinstance(clock, dict) and not {"monotonic_ns", "real_ns"} - set(clock):
                pair: Pair = (clock["monotonic_ns"], clock["real_ns"], clock.get("bracket_ns", 0))
                pairs.setdefault(str(fact.get("node")), []).append(pair)
        self._clocks: dict[str, NodeClock] = align(str(self.meta.get("node")), pairs, exchanges)
        self.processes: list[Process] = []
        self._numbers: dict[str, int] = {}
        order = sorted(facts, key=lambda w: (facts[w].get("start_ns") or 0, w))
        if self._manifest is not None:
            order = self._manifest.processes
            self.problems += self._manifest.problems
        parents = roles_of_parents(facts)
        for who in order:
            self._add_process(who, facts.get(who, {}), parents.get(who))
        self._names: dict[str, int] = {}
        self._publish_processes()
        self._publish_names()

    def _add_process(self, who: str, facts: dict[str, Any], child_of: str | None = None) -> Process:
        process = described(len(self.processes), who, facts, self._clocks, child_of)
        self.processes.append(process)
        self._numbers[who] = process.number
        return process

    def _publish_processes(self) -> None:
        rows = self.processes
        columns = {
            "process": pa.array([p.number for p in rows], pa.int32()),
            "who": pa.array([p.who for p in rows], pa.string()),
            "host": pa.array([p.host for p in rows], pa.string()),
            "node": pa.array([p.node for p in rows], pa.string()),
            "pid": pa.array([p.pid for p in rows], pa.int64()),
            "role": pa.array([p.role for p in rows], pa.string()),
            "child_of": pa.array([p.child_of for p in rows], pa.string()),
            "rank": pa.array([p.rank for p in rows], pa.int64()),
            "adapter": pa.array([p.adapter for p in rows], pa.string()),
            "devices": pa.array([json.dumps(p.facts.get("devices")) for p in rows], pa.string()),
            "start_ns": pa.array([p.start_ns for p in rows], pa.int64()),
            "clock_bound_ns": pa.array([p.clock_bound_ns for p in rows], pa.int64()),
        }
        self._database.register("processes", pa.table(columns))

    def _publish_names(self) -> None:
        if self._manifest is not None:
            source = f"read_parquet({_quoted(self._manifest.names)})"
            self._database.execute(f"CREATE OR REPLACE VIEW names AS FROM {source}")
            return
        columns = {
            "id": pa.array(self._names.values(), pa.int32()),
            "text": pa.array(self._names.keys(), pa.string()),
        }
        self._database.register("names", pa.table(columns))

    def _read_problem_files(self) -> None:
        for path in sorted((self.path / run_dir.PROBLEMS).glob("*.jsonl")):
            for line in path.read_text("utf-8", "replace").splitlines():
                try:
                    self.problems.append({**json.loads(line), "who": path.stem})
                except (ValueError, TypeError):
                    self._problem("unreadable-line", f"{run_dir.PROBLEMS}/{path.name}", "skipped")

    def _load(self, name: str) -> None:
        if name in self._loaded:
            return
        self._loaded.add(name)
        if self._manifest is not None:
            source = f"read_parquet({_quoted(self._manifest.tables[name])})"
            self._database.execute(f"CREATE OR REPLACE VIEW raw_{name} AS FROM {source}")
            self._rows[name] = self._manifest.rows[name]
        else:
            self._load_segments(name)
        for statement in view_statements(TABLES[name]):
            self._database.execute(statement)

    def _load_segments(self, name: str) -> None:
        table = TABLES[name]
        parts: list[list[np.ndarray[Any, Any]]] = []
        for segment in read_segments(self.path / name, table):
            if segment.problem:
                self._problem("torn-file", f"{name}/{segment.path.name}", segment.problem)
            if segment.rows:
                parts.append(self._translated(name, segment))
        kinds = [NUMPY_KINDS[c.kind] for c in table.columns] + [np.int32]
        columns = (
            [np.concatenate(column) for column in zip(*parts, strict=True)]
            if parts
            else [np.empty(0, kind) for kind in kinds]
        )
        names = [c.name for c in table.columns] + ["process"]
        loaded = pa.table({n: pa.array(c) for n, c in zip(names, columns, strict=True)})
        self._rows[name] = loaded.num_rows
        self._database.register(f"raw_{name}", loaded)
        self._publish_names()
        self._publish_processes()

    def _translated(self, name: str, segment: Segment) -> list[np.ndarray[Any, Any]]:
        """Columns of a segment with aligned times and global name ids, and its process number."""
        number = self._numbers.get(segment.who)
        if number is None:
            self._problem("no-process-file", segment.who, "its clock and role are unknown")
            number = self._add_process(segment.who, {}).number
        clock = self._clocks.get(self.processes[number].node)
        columns = []
        for column, values in zip(TABLES[name].columns, segment.columns, strict=True):
            if column.is_time and clock is not None:
                columns.append(clock.to_unix(values))
            elif column.is_name:
                columns.append(self._global_names(segment.who, values))
            else:
                columns.append(values)
        columns.append(np.full(segment.rows, number, np.int32))
        return columns

    def _global_names(self, who: str, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        table = self._name_table(who)
        highest = int(ids.max(initial=-1))
        if highest >= len(table):
            missing = [self._names.setdefault("?", len(self._names))] * (highest + 1 - len(table))
            table = np.concatenate([table, np.array(missing, np.int32)])
        lookup = np.concatenate([table, np.array([-1], np.int32)])
        return lookup[np.where(ids < 0, -1, ids)]

    def _name_table(self, who: str) -> np.ndarray[Any, Any]:
        known: dict[int, str] = {}
        path = self.path / run_dir.NAMES / f"{who}.jsonl"
        if path.exists():
            for line in path.read_text("utf-8", "replace").splitlines():
                try:
                    number, text = json.loads(line)
                    known[int(number)] = str(text).encode("utf-8", "replace").decode()
                except (ValueError, TypeError):
                    self._problem("unreadable-line", f"{run_dir.NAMES}/{path.name}", "skipped")
        texts = [known.get(i, "?") for i in range(max(known, default=-1) + 1)]
        ids = [self._names.setdefault(text, len(self._names)) for text in texts]
        return np.array(ids, np.int32)


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
