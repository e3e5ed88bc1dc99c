"""The run directory fills up, cannot be written to, goes away, or is somebody else's."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

import rltrace
from rltrace.testing.inside.analysis import LiveState, summarize
from rltrace.testing.inside.trace import (
    CACHE_VARIABLE,
    RECORDING_STOPPED,
    delete_segments,
    fetch,
    holds_run,
    read_run_json,
)
from rltrace.testing.inside.trace import compaction_compact as compact
from tests.faults.counted import CountedJob, said_by_us
from tests.hooks.conftest import wrapped
from tests.patience import PATIENCE_S, until


@pytest.mark.parametrize("ship", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_disk_that_fills_up_keeps_what_was_stored_on_it(
    tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch, ship: bool
) -> None:
    """And it is shipped, though the disk stays full. tests/hooks/test_recorder.py does the same
    with a limit on the size of files, where nothing can be mounted."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    (tmp_path / "store").mkdir()
    options = ("--ship", f"file://{tmp_path}/store") if ship else ()
    job = CountedJob(tmp_path, rows=20_000, workers=3, out="small/run", options=options)
    process = job.start()
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, job.result + "\n")
    said = said_by_us(errors)
    assert 1 <= len([line for line in said if "recording stopped" in line]) <= 4  # one a process
    assert "Traceback" not in errors
    assert 100 < max(job.stored()) < 20_000  # of a worker that begins later there may be nothing
    assert job.wrong() == {}
    if ship:
        url = read_run_json(str(job.run))["shipped_to"]
        until(lambda: job.wrong(fetch(url)) == {})


FILLS_THE_DISK = """
import sys, time, rltrace
from pathlib import Path
with rltrace.step(0), rltrace.span("train", tokens=7): pass
while not list(Path("small/run/nodes").glob("*.json")):  # a job takes longer than its agent
    time.sleep(0.05)
with open(sys.argv[1], "wb", buffering=0) as file:
    while True:
        file.write(bytes(4096))
"""


@pytest.mark.parametrize("ship", [False, True], ids=["", "shipped"])
def test_a_job_that_dies_as_it_fills_the_disk(
    tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch, ship: bool
) -> None:
    """By a checkpoint, say: how it ended is known, here and at the run's URL."""
    (tmp_path / "job.py").write_text(FILLS_THE_DISK)
    (tmp_path / "store").mkdir()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    shipping = ("--ship", f"file://{tmp_path}/store") if ship else ()
    job = (sys.executable, "job.py", str(small_disk / "checkpoint"))
    done = wrapped(tmp_path, "--out", "small/run", *shipping, "--", *job)
    assert done.returncode == 1
    assert "OSError: [Errno 28] No space left on device" in done.stderr
    assert os.statvfs(small_disk).f_bavail == 0
    assert "could not be completed" not in done.stderr
    assert "not shipped" not in done.stderr
    told = read_run_json(str(small_disk / "run"))
    for path in [small_disk / "run", *([fetch(told["shipped_to"])] if ship else [])]:
        run = rltrace.open_run(path)
        assert run.meta["exit_code"] == 1
        assert run.meta["end_real_ns"] > run.meta["start_real_ns"]
        found = run.sql("SELECT stage, tokens FROM spans ORDER BY 2").fetchall()
        assert found == [("train", 7), ("step", None)]


FULL_AT_STEP_5 = """
import rltrace
from pathlib import Path
for n in range(8):
    if n == 5:
        with open("small/checkpoint", "wb", buffering=0) as file:
            try:
                while True: file.write(bytes(4096))
            except OSError: pass  # not a byte is left
    with rltrace.step(n), rltrace.span("train"):
        for i in range(600 if n < 5 else 6000):
            with rltrace.span("rollout"): pass
"""


def test_a_disk_without_room_even_to_say_so(tmp_path: Path, small_disk: Path) -> None:
    """Figures are of the steps that were whole by then, and so is what is exported of them."""
    (tmp_path / "job.py").write_text(FULL_AT_STEP_5)
    done = wrapped(tmp_path, "--out", "small/run", "--", sys.executable, "job.py")
    assert done.returncode == 0
    assert "recording stopped in process" in done.stderr
    # A copy stands still: the agent may yet write a last pair, by which clocks are known better.
    not_yet = shutil.ignore_patterns("*.tmp")
    run = rltrace.open_run(shutil.copytree(small_disk / "run", tmp_path / "copy", ignore=not_yet))
    (stopped,) = (p for p in run.problems if p["what"] == RECORDING_STOPPED)
    assert "No space left on device" in stopped["detail"]
    ended = dict(run.sql("SELECT step, end_ns FROM steps").fetchall())
    assert stopped["real_ns"] > ended[4]
    whole = [step for step, end_ns in ended.items() if end_ns <= stopped["real_ns"]]
    assert whole[:5] == [0, 1, 2, 3, 4]
    assert len(whole) < 8
    for _ in range(2):  # as it was written, and compacted
        (told,) = LiveState(run.path).snapshot().stopped
        assert (told.at_ns, told.detail) == (stopped["real_ns"], stopped["detail"])
        kept = summarize(rltrace.open_run(run.path), predict=False)
        assert [time.step for time in kept.steps.times] == whole
        compact(rltrace.open_run(run.path))
        delete_segments(run.path)


def test_a_directory_that_is_deleted_under_the_job(tmp_path: Path) -> None:
    job = CountedJob(tmp_path, rows=5000, workers=3, pause_s=0.0005)
    process = job.start()
    until(lambda: all(job.stored()))
    shutil.rmtree(job.run)
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, job.result + "\n")
    said = said_by_us(errors)
    assert len(said) <= 5  # a line of each process, and what became of the run
    assert said[-1] == "rltrace: run was deleted while the job ran: there is no trace of it"
    assert not job.run.exists()  # nobody made it again


def test_jobs_in_the_directory_of_one_that_was_killed(tmp_path: Path) -> None:
    """That one's run stays what it was; they get a run each, and each the rows of its own."""
    first = CountedJob(tmp_path, rows=3000, workers=2, hold_at=1500)
    process = first.start()
    pids = first.pids()
    for pid in (process.pid, *pids.values()):
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE_S)
    until(lambda: read_run_json(str(first.run))["end_real_ns"] is not None)
    before = {path: path.read_bytes() for path in sorted(first.run.rglob("*")) if path.is_file()}
    jobs = [CountedJob(tmp_path, rows=rows, workers=2) for rows in (700, 900)]
    started = [job.start() for job in jobs]
    for job, process in zip(jobs, started, strict=True):
        out, errors = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, out) == (0, job.result + "\n"), errors
        assert "(run holds a run already)" in errors
    assert {p: p.read_bytes() for p in sorted(first.run.rglob("*")) if p.is_file()} == before
    assert (first.stored(), first.wrong()) == ([1500, 1500], {})
    runs = [tmp_path / "run-2", tmp_path / "run-3"]
    assert not holds_run(str(tmp_path / "run-4"))
    for job in jobs:
        (own,) = [run for run in runs if str(job.rows) in read_run_json(str(run))["command"]]
        assert (job.stored(), job.wrong(own)) == ([job.rows] * 2, {})
