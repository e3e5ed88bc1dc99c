"""Runs under `--max-bytes`: what they record, and what is shown of it or in the sums."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import rltrace
from rltrace.trace.run_dir import TABLES
from rltrace.trace.schema import EVENT_TABLES

STEPS, SPANS = 60, 400

OF_STEPS = (
    "SELECT step, count(*) FILTER (stage = 'rollout'), count(*) FILTER (stage = 'step') "
    "FROM spans GROUP BY step HAVING count(*) FILTER (stage = 'step') > 0 ORDER BY step"
)
"""Of steps that are shown: their number, spans of their rollout, and themselves."""

ALL = """
SELECT coalesce(step, -1) AS step, what, sum(rows), sum(tokens) FROM (
    SELECT step, stage AS what, 1 AS rows, coalesce(tokens, 0) AS tokens FROM spans
    UNION ALL SELECT step, fate, 1, coalesce(tokens, 0) FROM uses
    UNION ALL SELECT step, what, rows, tokens FROM dropped_steps
) GROUP BY ALL ORDER BY ALL
"""
"""Of each step and stage, or fate: rows and tokens that are shown or in the sums."""

LOOP = f"""
from rltrace.trace import segment
segment.SEGMENT_BYTES = 64 << 10
for n in range({STEPS}):
    with rltrace.step(n):
        for i in range({SPANS}):
            with rltrace.span("rollout", tokens=3): pass
        with rltrace.span("train", tokens=7): pass
        rltrace.use(f"t/{{n}}", fate="trained", step=n, tokens=11)
"""

UNTIL_SMALL = """
import os, time
from pathlib import Path
def size_bytes(file):
    try:
        return file.stat().st_size
    except FileNotFoundError:  # dropped since it was listed
        return 0
while sum(map(size_bytes, Path(os.environ["RLTRACE_RUN"]).glob("*/*.arrows"))) > 10**6:
    time.sleep(0.1)
"""
"""For a job under a cap of a megabyte: waits until the agent has come to it."""

KILL_THE_AGENT = """
import json, os, signal, time
from pathlib import Path
while not (files := list(Path(os.environ["RLTRACE_RUN"]).glob("nodes/*.json"))):
    time.sleep(0.1)
os.kill(json.loads(files[0].read_text())["pid"], signal.SIGKILL)
"""


def segments_bytes(run: Path) -> int:
    total = 0
    for file in (file for table in TABLES for file in (run / table).glob("*.arrows")):
        with suppress(FileNotFoundError):  # dropped since it was listed
            total += file.stat().st_size
    return total


def spans(run: Path) -> int:
    ((count,),) = rltrace.open_run(run).sql("SELECT count(*) FROM spans").fetchall()
    assert isinstance(count, int)
    return count


def all_rows(run: Path) -> list[tuple[int, str, int, int]]:
    return rltrace.open_run(run).sql(ALL).fetchall()


def counted(run: Path) -> dict[str, int]:
    """Rows of each table, whatever became of them."""
    opened = rltrace.open_run(run)
    dropped = opened.dropped
    found = {table: opened.rows(table) for table in EVENT_TABLES}
    for rows in () if dropped is None else (dropped.rows, dropped.hidden):
        for table, number in rows.items():
            found[table] += number
    return found
