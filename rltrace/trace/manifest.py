"""The manifest of a compacted run: where its tables lie, and that they are whole."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltrace.trace.run_dir import PARQUET
from rltrace.trace.schema import SCHEMA_VERSION, TABLES

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
        said = json.loads((folder / MANIFEST_FILE).read_text("utf-8"))
        current = said["schema_version"] == SCHEMA_VERSION
        grown = any(segment_bytes(run, t) not in (0, said["segment_bytes"][t]) for t in TABLES)
        rows = {t: int(said["rows"][t]) for t in TABLES}
        processes, problems = list(said["processes"]), list(said["problems"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    tables = {t: folder / f"{t}.parquet" for t in TABLES}
    names = folder / "names.parquet"
    if not current or grown or not all(p.exists() for p in (*tables.values(), names)):
        return None
    return Manifest(tables, names, rows, processes, problems)


def segment_bytes(run: Path, table: str) -> int:
    """Bytes of a table's segments."""
    return sum(path.stat().st_size for path in (run / table).glob("*.arrows"))
