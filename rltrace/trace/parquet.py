"""Compacted runs: one Parquet file a table, and the manifest that says they are whole.

Times are aligned and names are global, so a compacted table needs nothing but `names` and the
process files. Rows are sorted by time, which is what makes them small: `start_ns` is delta-encoded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rltrace.trace.errors import RltraceError
from rltrace.trace.run_dir import PARQUET, write_json
from rltrace.trace.schema import SCHEMA_VERSION, TABLES

if TYPE_CHECKING:
    from rltrace.trace.run import Run

LOADING_PROBLEMS = ("torn-file", "no-process-file")
"""Problems that are seen when segments are read, and would be forgotten with them."""

_MANIFEST = "manifest.json"
_ROW_GROUP_ROWS = 200_000


@dataclass(frozen=True)
class Manifest:
    """Where the compacted tables lie, how many rows each has, which process each number is, and
    what was wrong with the segments that they were made from."""

    tables: dict[str, Path]
    names: Path
    rows: dict[str, int]
    processes: list[str]
    problems: list[dict[str, Any]]


@dataclass(frozen=True)
class Compaction:
    """What compacting a run did, by table; sizes in bytes of the files."""

    rows: dict[str, int]
    segment_bytes: dict[str, int]
    parquet_bytes: dict[str, int]


def read_manifest(run: Path) -> Manifest | None:
    """The manifest of a compacted run; None when it is not compacted, or has grown since."""
    folder = run / PARQUET
    try:
        said = json.loads((folder / _MANIFEST).read_text("utf-8"))
        current = said["schema_version"] == SCHEMA_VERSION
        grown = any(_segment_bytes(run, t) not in (0, said["segment_bytes"][t]) for t in TABLES)
        rows = {t: int(said["rows"][t]) for t in TABLES}
        processes, problems = list(said["processes"]), list(said["problems"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    tables = {t: folder / f"{t}.parquet" for t in TABLES}
    names = folder / "names.parquet"
    if not current or grown or not all(p.exists() for p in (*tables.values(), names)):
        return None
    return Manifest(tables, names, rows, processes, problems)


def compact(run: Run, progress: Callable[[str], None] | None = None) -> Compaction:
    """Writes the Parquet files of a run; the segments stay. Errors: `RltraceError` when the run is
    still being written or the disk is full."""
    folder = run.path / PARQUET
    rows, segment_bytes, parquet_bytes = {}, {}, {}
    try:
        folder.mkdir(exist_ok=True)
        (folder / _MANIFEST).unlink(missing_ok=True)
        for name, table in TABLES.items():
            if progress is not None:
                progress(name)
            segment_bytes[name] = _segment_bytes(run.path, name)
            order = table.columns[0].name
            parquet_bytes[name] = _copy(run, f"FROM raw_{name} ORDER BY {order}", folder / name)
            rows[name] = run.rows(name)
        _copy(run, "FROM names", folder / "names")
        said = {
            "schema_version": SCHEMA_VERSION,
            "rows": rows,
            "segment_bytes": segment_bytes,
            "processes": [process.who for process in run.processes],
            "problems": [p for p in run.problems if p["what"] in LOADING_PROBLEMS],
        }
        write_json(str(folder / _MANIFEST), said)
    except OSError as error:
        raise RltraceError(f"cannot write {folder}: {error}") from None
    return Compaction(rows, segment_bytes, parquet_bytes)


def delete_segments(run: Path) -> None:
    """Deletes the segments of a compacted run. Errors: `RltraceError` when it is not compacted."""
    if read_manifest(run) is None:
        raise RltraceError(f"{run} is not compacted: its segments are all there is")
    for table in TABLES:
        for path in (run / table).glob("*.arrows"):
            path.unlink()


def _copy(run: Run, query: str, stem: Path) -> int:
    import duckdb  # only compaction needs its error type

    path, temporary = stem.with_suffix(".parquet"), stem.with_suffix(".tmp")
    quoted = str(temporary).replace("'", "''")
    run.sql("SELECT 1 FROM " + query.split()[1] + " LIMIT 0")  # loads the table
    try:
        run.connection.execute(
            f"COPY ({query}) TO '{quoted}' (FORMAT parquet, COMPRESSION zstd, "
            f"PARQUET_VERSION v2, ROW_GROUP_SIZE {_ROW_GROUP_ROWS})"
        )
    except duckdb.Error as error:
        temporary.unlink(missing_ok=True)
        raise RltraceError(f"cannot write {path}: {error}") from None
    os.replace(temporary, path)
    return path.stat().st_size


def _segment_bytes(run: Path, table: str) -> int:
    return sum(path.stat().st_size for path in (run / table).glob("*.arrows"))
