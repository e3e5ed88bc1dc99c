"""The run directory fills up, cannot be written to, goes away, or is somebody else's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rltrace
from rltrace.testing.inside.analysis import LiveState, summarize
from rltrace.testing.inside.trace import (
    CACHE_VARIABLE,
    RECORDING_STOPPED,
    compact,
    delete_segments,
    fetch,
    holds_run,
    read_run_json,
)
from tests.faults.counted import CountedJob, said_by_us, until
from tests.faults.means import cannot_be_made
from tests.hooks.conftest import wrapped
from tests.patience import PATIENCE_S

AS_ROOT = () if os.geteuid() == 0 else ("--map-root-user",)
MOUNT_NAMESPACE = ("unshare", *AS_ROOT, "--mount", "sh", "-c")


def test_a_disk_that_fills_up_keeps_what_was_stored_on_it(tmp_path: Path, small_disk: Path) -> None:
    """tests/hooks/test_recorder.py does the same with a limit on the size of files, where nothing
    can be mounted."""
    job = CountedJob(tmp_path, rows=20_000, workers=3, out="small/run")
    process = job.start()
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, job.result + "\n")
    said = said_by_us(errors)
    assert 1 <= len([line for line in said if "recording stopped" in line]) <= 4  # one a process
    assert "Traceback" not in errors
    assert all(100 < stored < 20_000 for stored in job.stored())
    assert job.wrong() == {}


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
        assert run.sql("SELECT stage, tokens FROM spans ORDER BY 2").fetchall() == [
            ("train", 7), ("step", None),
        ]  # fmt: skip


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
    run = rltrace.open_run(small_disk / "run")
    (stopped,) = (p for p in run.problems if p["what"] == RECORDING_STOPPED)
    assert "No space left on device" in stopped["detail"]
    ended = dict(run.sql("SELECT step, end_ns FROM steps").fetchall())
    assert stopped["real_ns"] > ended[4]
    whole = [step for step, end_ns in ended.items() if end_ns <= stopped["real_ns"]]
    assert whole[:5] == [0, 1, 2, 3, 4]
    assert len(whole) < 8
    assert [time.step for time in summarize(run, predict=False).steps.times] == whole
    at_rest = Path(shutil.copytree(run.path, tmp_path / "copy"))
    compact(rltrace.open_run(at_rest))
    delete_segments(at_rest)
    kept = summarize(rltrace.open_run(at_rest), predict=False)
    assert [time.step for time in kept.steps.times] == whole
    for path in (run.path, at_rest):
        (told,) = LiveState(path).snapshot().stopped
        assert told.at_ns == stopped["real_ns"]
        assert told.detail == stopped["detail"]


def test_a_directory_that_becomes_read_only(tmp_path: Path) -> None:
    """As an NFS server does it: those who record go on, those who begin cannot."""
    script = (
        f"{{ while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; "
        f"mount --bind {tmp_path}/run {tmp_path}/run && mount -o remount,bind,ro {tmp_path}/run && "
        f'touch {tmp_path}/gone; }} & "$@"'
    )
    probe = subprocess.run([*MOUNT_NAMESPACE, "true"], capture_output=True, check=False)
    if probe.returncode:
        cannot_be_made(f"no mount can be made read-only here: {probe.stderr.decode().strip()}")
    job = CountedJob(tmp_path, rows=3000, workers=2, before=(*MOUNT_NAMESPACE, script, "sh"))
    program = f"""
import os, subprocess, sys, time
print("ready", flush=True)
open({str(tmp_path / "go")!r}, "w").close()
while not os.path.exists({str(tmp_path / "gone")!r}): time.sleep(0.02)
job = [sys.executable, *sys.argv[1:]]
print(subprocess.run(job, capture_output=True, text=True, check=True))
"""
    (tmp_path / "late.py").write_text(program)
    process = job.start(str(tmp_path / "late.py"))
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    assert job.result in out
    assert out.count("cannot record into") == 1  # its children are not asked again
    assert "Traceback" not in errors + out
    assert job.stored() == [0, 0]
    assert rltrace.open_run(job.run).sql("SELECT count(*) FROM spans").fetchall() == [(0,)]


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


def test_two_jobs_in_one_directory(tmp_path: Path) -> None:
    """They get a run each, and each the rows of its own."""
    jobs = [CountedJob(tmp_path, rows=rows, workers=2) for rows in (700, 900)]
    started = [job.start() for job in jobs]
    for job, process in zip(jobs, started, strict=True):
        out, errors = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, out) == (0, job.result + "\n"), errors
    runs = [path for path in (tmp_path / "run", tmp_path / "run-2") if holds_run(str(path))]
    assert len(runs) == 2
    for job in jobs:
        assert job.stored() == [job.rows] * 2
        (own,) = [run for run in runs if str(job.rows) in command_of(run)]
        assert job.wrong(own) == {}
    assert not holds_run(str(tmp_path / "run-3"))


def test_a_job_that_was_killed_and_begins_again(tmp_path: Path) -> None:
    """`rltrace wrap` with the same directory: the first run stays what it was."""
    first = CountedJob(tmp_path, rows=3000, workers=2, hold_at=1500)
    process = first.start()
    pids = first.pids()
    for pid in (process.pid, *pids.values()):
        subprocess.run(["kill", "-KILL", str(pid)], check=True)
    process.communicate(timeout=PATIENCE_S)
    until(lambda: json.loads((first.run / "run.json").read_text())["end_real_ns"] is not None)
    before = {path: path.read_bytes() for path in sorted(first.run.rglob("*")) if path.is_file()}
    again = CountedJob(tmp_path, rows=400, workers=2)
    process = again.start()
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, again.result + "\n")
    assert "(run holds a run already)" in errors
    assert {p: p.read_bytes() for p in sorted(first.run.rglob("*")) if p.is_file()} == before
    assert first.stored() == [1500, 1500]
    assert first.wrong() == {}
    assert again.stored() == [400, 400]
    assert again.wrong(tmp_path / "run-2") == {}


def command_of(run: Path) -> list[str]:
    """The command that a run traced."""
    command = json.loads((run / "run.json").read_text())["command"]
    assert isinstance(command, list)
    return command
