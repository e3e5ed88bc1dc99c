"""The manifest of a compacted run: where its tables lie, and that they are whole."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltrace.trace.own_files import own_files, read_own
from rltrace.trace.run_dir import PARQUET
from rltrace.trace.schema import SCHEMA_VERSION, TABLES
from rltrace.trace.stated import problem_of
from rltrace.trace.texts import parsed

LOADING_PROBLEMS = ("torn-file", "no-process-file", "negative-values")
"""Problems that are seen when segments are read, and would be forgotten with them."""

MANIFEST_FILE = "manifest.json"


@dataclass(frozen=True)
class Manifest:
    """Where the compacted tables lie, how many rows each has, which process each number is, and
    what was wrong with the segments that they were made from."""

    tables: dict[str, Path]
    names: Path
    rows: dict[str, int]
    processes: list[str]
    problems: list[dict[str, Any]]


def read_manifest(run: Path) -> Manifest | None:
    """The manifest of a compacted run; None when it is not compacted, or has grown since."""
    folder = run / PARQUET
    try:
        said = parsed(read_own(folder / MANIFEST_FILE))
        current = said["schema_version"] == SCHEMA_VERSION
        grown = any(segment_bytes(run, t) not in (0, said["segment_bytes"][t]) for t in TABLES)
        rows = {t: int(said["rows"][t]) for t in TABLES}
        processes = [str(who) for who in said["processes"]]
        problems = [problem_of(problem) for problem in said["problems"]]
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
    tables = {t: folder / f"{t}.parquet" for t in TABLES}
    names = folder / "names.parquet"
    plain, _ = own_files(folder, ".parquet")
    if not current or grown or {*tables.values(), names} - {*plain}:
        return None
    return Manifest(tables, names, rows, processes, problems)


def segment_bytes(run: Path, table: str) -> int:
    """Bytes of a table's segments."""
    plain, _ = own_files(run / table, ".arrows")
    return sum(path.stat().st_size for path in plain)
