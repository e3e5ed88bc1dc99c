"""Compacted runs: one Parquet file a table, and the manifest that says they are whole.

Times are aligned and names are global, so a compacted table needs nothing but `names` and the
process files. Rows are sorted by time, which is what makes them small: `start_ns` is delta-encoded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rltrace.trace.clock import node_id
from rltrace.trace.errors import RltraceError
from rltrace.trace.manifest import LOADING_PROBLEMS, MANIFEST_FILE, read_manifest, segment_bytes
from rltrace.trace.run_dir import PARQUET, write_json
from rltrace.trace.schema import SCHEMA_VERSION, TABLES

if TYPE_CHECKING:
    from rltrace.trace.processes import Process
    from rltrace.trace.run import Run

_ROW_GROUP_ROWS = 200_000


@dataclass(frozen=True)
class Compaction:
    """What compacting a run did, by table; sizes in bytes of the files."""

    rows: dict[str, int]
    segment_bytes: dict[str, int]
    parquet_bytes: dict[str, int]


def compact(run: Run, progress: Callable[[str], None] | None = None) -> Compaction:
    """Writes the Parquet files of a run; the segments stay. `progress` is told each table's name. A
    run that is compacted already is left as it is. Errors: `RltraceError` when the run is still
    being recorded, or the disk is full."""
    folder = run.path / PARQUET
    if run.is_compacted:
        rows = {name: run.rows(name) for name in TABLES}
        after = {name: (folder / f"{name}.parquet").stat().st_size for name in TABLES}
        return Compaction(rows, {name: segment_bytes(run.path, name) for name in TABLES}, after)
    if _is_being_recorded(run):
        raise RltraceError(f"{run.path} is still being recorded: compact it when it has ended")
    before = {name: segment_bytes(run.path, name) for name in TABLES}
    after = {}
    try:
        folder.mkdir(exist_ok=True)
        (folder / MANIFEST_FILE).unlink(missing_ok=True)
        for name, table in TABLES.items():
            if progress is not None:
                progress(name)
            order = table.columns[0].name
            after[name] = _copy(run, f"FROM raw_{name} ORDER BY {order}", folder / name)
        _copy(run, "FROM names", folder / "names")
        rows = {name: run.rows(name) for name in TABLES}
        said = {
            "schema_version": SCHEMA_VERSION,
            "rows": rows,
            "segment_bytes": before,
            "processes": [process.who for process in run.processes],
            "problems": [p for p in run.problems if p["what"] in LOADING_PROBLEMS],
        }
        write_json(str(folder / MANIFEST_FILE), said)
    except OSError as error:
        raise RltraceError(f"cannot write {folder}: {error}") from None
    return Compaction(rows, before, after)


def delete_segments(run: Path) -> None:
    """Deletes the segments of a compacted run. Errors: `RltraceError` when it is not compacted."""
    if read_manifest(run) is None:
        raise RltraceError(f"{run} is not compacted: its segments are all there is")
    for table in TABLES:
        for path in (run / table).glob("*.arrows"):
            path.unlink()


def _is_being_recorded(run: Run) -> bool:
    """Whether a process of the run is alive on this node, its agent aside. `wrap` may have ended
    before: what its command left in the background goes on recording."""
    here = node_id()
    pids = {p.pid for p in run.processes if p.node == here and p.role != "agent" and _is_same(p)}
    wrap_pid = run.meta.get("wrap_pid")
    if run.meta.get("node") == here and not run.meta.get("end_real_ns"):
        pids.add(wrap_pid if isinstance(wrap_pid, int) else -1)
    return any(Path(f"/proc/{pid}").exists() for pid in pids - {os.getpid()})


def _is_same(process: Process) -> bool:
    """Whether the process with this number, if any, had begun when the recorded one did: numbers
    are used again."""
    try:
        stat = Path(f"/proc/{process.pid}/stat").read_text("utf-8", "replace")
        began_ticks = int(stat.rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return False
    asleep_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    began_ns = began_ticks * 10**9 // os.sysconf("SC_CLK_TCK") - asleep_ns
    recorded_ns = process.facts.get("start_ns")
    return isinstance(recorded_ns, int) and began_ns <= recorded_ns + 10**9


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
