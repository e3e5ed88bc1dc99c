"""The processes and the names of a run as tables of its database."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rltrace.trace.errors import RltraceError
from rltrace.trace.processes import Process
from rltrace.trace.sources import names_in, unreadable

if TYPE_CHECKING:
    import duckdb

_ODD_NAMES = """
SELECT id FROM names GROUP BY id HAVING count(*) > 1 OR id IS NULL OR any_value(text) IS NULL
"""
"""Each name has one text: else every row that has the name would come as often."""


def publish_processes(database: duckdb.DuckDBPyConnection, processes: Sequence[Process]) -> None:
    """Makes `processes`, or makes it anew."""
    import pyarrow as pa

    columns = {
        "process": pa.array([p.number for p in processes], pa.int32()),
        "who": pa.array([p.who for p in processes], pa.string()),
        "host": pa.array([p.host for p in processes], pa.string()),
        "node": pa.array([p.node for p in processes], pa.string()),
        "pid": pa.array([p.pid for p in processes], pa.int64()),
        "role": pa.array([p.role for p in processes], pa.string()),
        "child_of": pa.array([p.child_of for p in processes], pa.string()),
        "rank": pa.array([p.rank for p in processes], pa.int64()),
        "adapter": pa.array([p.adapter for p in processes], pa.string()),
        "devices": pa.array([json.dumps(p.facts.get("devices")) for p in processes], pa.string()),
        "start_ns": pa.array([p.start_ns for p in processes], pa.int64()),
        "clock_bound_ns": pa.array([p.clock_bound_ns for p in processes], pa.int64()),
    }
    database.register("processes", pa.table(columns))


def publish_names(database: duckdb.DuckDBPyConnection, ids: Mapping[str, int]) -> None:
    """Makes `names` of the texts that have these ids, or makes it anew."""
    import pyarrow as pa

    columns = {"id": pa.array(ids.values(), pa.int32()), "text": pa.array(ids.keys(), pa.string())}
    database.register("names", pa.table(columns))


def publish_compacted_names(database: duckdb.DuckDBPyConnection, path: Path) -> None:
    """Makes `names` of a compacted run's. Errors: `RltraceError` for a file that holds none."""
    import duckdb

    try:
        database.execute(f"CREATE OR REPLACE VIEW names AS {names_in(database, path)}")
        if database.execute(_ODD_NAMES).fetchall():
            raise RltraceError(f"{path} holds no names")
    except duckdb.Error as error:
        raise unreadable(path, error) from None
