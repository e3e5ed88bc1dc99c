"""The time of day is set while a job runs, or its machine has only just started: what it took is
what the monotonic clock says, wherever that began."""

from __future__ import annotations

import dataclasses
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.testing.inside.analysis import LiveState, summarize
from rltrace.testing.inside.trace import EVENT_TABLES, command_s, read_run_json
from rltrace.testing.inside.trace import compaction_compact as compact
from tests.faults.counted import CountedJob, said_by_us
from tests.patience import PATIENCE_S, until
from tests.trace.test_run import BUSY

DAY_S = 86_400


@pytest.mark.parametrize("steps_s", [(-DAY_S,), (3600, -3600), (2 * DAY_S, 5)], ids=str)
def test_a_clock_that_is_set_moves_no_row(
    tmp_path: Path, shim: Path, steps_s: tuple[int, ...]
) -> None:
    moved = tmp_path / "moved"
    moved.write_bytes(struct.pack("q", 0))
    job = CountedJob(tmp_path, rows=900, workers=2, pause_s=0.001)
    job.env = {"LD_PRELOAD": str(shim), "MOVED_SECONDS": str(moved)}
    process = job.start()
    for number, step_s in enumerate(steps_s, 1):
        until(lambda number=number: min(job.stored()) > 250 * number)
        with moved.open("r+b") as file:
            file.write(struct.pack("q", step_s))
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, job.result + "\n")
    assert said_by_us(errors) == []
    assert job.stored() == [900, 900]
    assert job.wrong() == {}
    run = rltrace.open_run(job.run)
    before, whole_s = "lag(start_ns) OVER (PARTITION BY version ORDER BY step)", 240
    disordered = f"""
        SELECT count(*) FILTER (start_ns < before OR end_ns < start_ns),
               (max(end_ns) - min(start_ns)) / 1e9 < {whole_s}
        FROM (SELECT *, {before} AS before FROM spans)"""
    assert run.sql(disordered).fetchall() == [(0, True)]
    assert 0 < command_s(read_run_json(str(job.run))) < whole_s
    assert summarize(run, predict=False).health.alarms == ()


UP_FOR = """
import sys, time
up_ns, passed_ns = int(sys.argv[2]), 0
def monotonic_ns(*_):
    global passed_ns
    passed_ns += 10**6
    return up_ns + passed_ns
time.monotonic_ns, time.time_ns = monotonic_ns, lambda: 1_790_000_000 * 10**9 + passed_ns

import rltrace
from rltrace.testing.inside.hooks import recorder
from rltrace.testing.inside.trace import create_run, update_run_json
create_run(sys.argv[1], ["job"], {}, "0")
recorder.start(sys.argv[1])
{BUSY}
update_run_json(sys.argv[1], end_real_ns=time.time_ns(), exit_code=0)
"""


def test_no_figure_hangs_on_how_long_a_machine_has_been_up(run_path: Path) -> None:
    """Not a byte either: this clock reads the same each time, but for where it began."""

    def figures() -> list[Any]:
        run = rltrace.open_run(run_path)
        # The number of a thread is another one in each process.
        queries = [
            f"SELECT * {'EXCLUDE lane' * (table == 'spans')} FROM raw_{table} ORDER BY ALL"
            for table in EVENT_TABLES
        ]
        rows = [run.sql(query) for query in queries]
        told = dataclasses.replace(summarize(run), own_cost=None)  # it names processes
        return [[each.fetchall() for each in rows], run.problems, told]

    def found(up_ns: int) -> str:
        shutil.rmtree(run_path)
        subprocess.run(
            [sys.executable, "-c", UP_FOR.replace("{BUSY}", BUSY), run_path, str(up_ns)], check=True
        )
        files = run_path.glob("*/*.arrows")
        sizes = sorted((file.parent.name, file.stat().st_size) for file in files)
        window, rows = LiveState(run_path, last=100).snapshot().window, figures()
        compact(rltrace.open_run(run_path))
        assert all(rows[0])
        return repr([sizes, window, rows, figures()])  # as NaN is not itself

    assert found(0) == found(90 * DAY_S * 10**9)
