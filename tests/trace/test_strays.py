"""Segments of another run that lie in a run, and of processes whose own file is lost."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

import rltrace
from rltrace.testing.inside.trace import (
    Follower,
    RltraceError,
    compact,
    create_run,
    delete_segments,
    update_run_json,
)
from tests.cli.conftest import invoke
from tests.conftest import recorded

PROGRAM = """
for n in range(5):
    with rltrace.step(n):
        with rltrace.span("rollout"): pass
"""
COUNTED = "SELECT count(*), count(DISTINCT who), max(end_ns) - min(start_ns) < 60e9 FROM spans"


def run_at(path: Path) -> Path:
    """A run of five steps that has ended."""
    create_run(str(path), ["python", "train.py"], {}, "test")
    recorded(path, PROGRAM)
    update_run_json(str(path), end_real_ns=time.time_ns(), exit_code=0)
    time.sleep(0.2)  # the next one begins
    return path


def copy_segments(source: Path, to: Path) -> str:
    """Copies the spans of a run into another; the name of their file."""
    (file,) = (source / "spans").iterdir()
    shutil.copy(file, to / "spans")
    return f"spans/{file.name}"


@pytest.mark.parametrize("is_older", [True, False], ids=["an older run", "a newer run"])
def test_segments_of_another_run_are_named_and_left_out(tmp_path: Path, is_older: bool) -> None:
    runs = run_at(tmp_path / "first"), run_at(tmp_path / "second")
    other, run = runs if is_older else runs[::-1]
    named = copy_segments(other, run)
    opened = rltrace.open_run(run)
    assert opened.rows_of_processes("spans").total() == 10
    assert opened.sql(COUNTED).fetchall() == [(10, 1, True)]
    (problem,) = (one for one in opened.problems if one["target"] == named)
    assert problem["what"] == "another-run"
    assert len(opened.processes) == 1
    for command in ("info", "report"):
        assert "another-run" in invoke(command, run).output
    follower = Follower(run)
    assert sum(len(follower.poll()["spans"]) for _ in range(2)) == 10
    compact(opened)
    with pytest.raises(RltraceError, match="or are of another run"):
        delete_segments(run)  # which may be all that there is of it
    again = rltrace.open_run(run)
    assert again.sql(COUNTED).fetchall() == [(10, 1, True)]
    assert "another-run" in [one["what"] for one in again.problems]


def test_segments_of_a_host_of_which_the_run_knows_nothing_are_left_out(tmp_path: Path) -> None:
    run = run_at(tmp_path / "run")
    (file,) = (run / "spans").iterdir()
    host = file.name.rsplit("-", 3)[0]
    shutil.copy(file, run / "spans" / file.name.replace(host, "elsewhere", 1))
    opened = rltrace.open_run(run)
    assert opened.sql(COUNTED).fetchall() == [(10, 1, True)]
    assert "another-run" in [one["what"] for one in opened.problems]


def test_what_a_process_recorded_whose_file_is_lost_is_told_by_the_clock_of_its_host(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    create_run(str(run), ["python", "train.py"], {}, "test")
    recorded(run, PROGRAM)
    recorded(run, PROGRAM)
    before = rltrace.open_run(run).sql("SELECT start_ns FROM spans ORDER BY 1").fetchall()
    sorted((run / "process").iterdir())[0].unlink()
    opened = rltrace.open_run(run)
    found = opened.sql("SELECT start_ns FROM spans ORDER BY 1").fetchall()
    assert len(found) == len(before) == 20
    assert max(abs(a - b) for (a,), (b,) in zip(before, found, strict=True)) < 10**9
    assert "no-process-file" in [one["what"] for one in opened.problems]
