"""The time of day is set while a job runs: what it took is what the monotonic clock says."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

import rltrace
from rltrace.analysis.summary import summarize
from rltrace.trace.duration import command_s
from tests.faults.counted import CountedJob, said_by_us, until
from tests.patience import PATIENCE_S

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
    told = json.loads((job.run / "run.json").read_text())
    lasted = command_s(told)
    assert lasted is not None
    assert 0 < lasted < whole_s
    assert summarize(run, predict=False).health.alarms == ()
