"""Telling of the steps of a job, on stderr and in a TensorBoard log: the job comes first."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rltrace
from rltrace.run.step_log import Written, log_steps
from rltrace.testing.inside.analysis import LiveState, StepDone
from rltrace.testing.inside.importers import event_files_read as read
from rltrace.testing.inside.report import EventFile
from rltrace.testing.inside.run import EachStep
from rltrace.testing.inside.trace import UNREADABLE, WRONG_USAGE
from tests.analysis.driven import Job
from tests.hooks.conftest import untraced
from tests.report.everything import STEPS, everything


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    """Where a job has logged a loss."""
    with EventFile(tmp_path / "log") as file:
        file.add(0, 10**18, {"loss": 0.5})
    return tmp_path / "log"


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    started = Job(tmp_path / "run")
    yield started
    started.is_killed()


def test_a_recorded_run_is_logged_whole(tmp_path: Path, logdir: Path) -> None:
    run = everything(tmp_path / "run")
    before = {path: path.read_bytes() for path in logdir.iterdir()}
    path, steps = log_steps(run, logdir, lambda seconds: True)
    assert path.parent == logdir / "rltrace"
    assert {file: file.read_bytes() for file in before} == before

    records, problems = read(path)
    assert problems == []
    assert steps == len(records) == STEPS
    taken = rltrace.open_run(run).sql("SELECT step, seconds FROM steps").fetchall()
    assert [record.step for record in records] == [step for step, _ in taken]
    logged = [record.metrics["rltrace/step_seconds"] for record in records]
    assert logged == pytest.approx([seconds for _, seconds in taken])
    window = LiveState(run, STEPS).snapshot().window
    assert window is not None
    last = window.recent[-1]
    assert records[-1].real_ns == pytest.approx(last.end_ns, abs=1000)
    assert records[-1].metrics["rltrace/mean_lag_versions"] == pytest.approx(last.mean_lag)
    assert {f"rltrace/tau_seconds/{stage}" for stage in last.tau_s} <= set(records[-1].metrics)


def test_each_step_of_a_job_is_logged_once_whenever_it_was(
    tmp_path: Path, logdir: Path, job: Job
) -> None:
    done = 100
    for step in range(done):
        job.does("step", step)

    def goes_on(seconds: float) -> bool:
        """Instead of waiting, the job takes a step, five in all, and ends."""
        nonlocal done
        if done == 105:
            job.ends()
        else:
            job.does("begin", "train")
            job.does("end")
            job.does("step", done)
        done += 1
        return False

    path, steps = log_steps(tmp_path / "run", logdir, goes_on)
    assert steps == 105
    assert [record.step for record in read(path)[0]] == [*range(105)]


def test_a_step_that_comes_late_is_logged_with_those_after_it_again(tmp_path: Path) -> None:
    """TensorBoard drops what it knows of later steps when one comes that is before them."""
    steps = [StepDone(n, 10**18 + (n + 1) * 10**9, 1.0, {}, 0, 0, 0, math.nan) for n in range(6)]
    with EventFile(tmp_path / "log") as file:
        written = Written(file)
        for seen in (steps[:2], steps[:2], steps[4:], steps[2:], steps[2:]):
            written.add(tuple(seen))
        written.add(tuple(steps), settled=True)
        path = file.path
    assert [record.step for record in read(path)[0]] == [0, 1, 4, 5, 2, 3, 4, 5]
    assert written.steps == 6


def told(folder: Path, tell: Callable[..., None]) -> list[str]:
    """What is said while the steps of a run are told."""
    said: list[str] = []
    steps = EachStep(everything(folder / "run"), [tell], said.append)
    steps.start()
    steps.finish()
    return said


def test_each_step_is_told_once(tmp_path: Path) -> None:
    seen: list[int] = []
    assert told(tmp_path, lambda step: seen.append(step.step)) == []
    assert seen == sorted(set(seen))
    assert len(seen) == STEPS


def test_what_goes_wrong_is_said_and_ends_the_telling(tmp_path: Path) -> None:
    def fails(step: object) -> None:
        raise OSError("no space left")

    (said,) = told(tmp_path, fails)
    assert said.endswith("OSError: no space left")


def test_no_thread_to_spare_costs_the_telling_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", full)
    (said,) = told(tmp_path, lambda step: None)
    assert said.endswith("can't start new thread")


def export(run: Path, logdir: Path) -> subprocess.CompletedProcess[str]:
    """The command, which lowers the priority of its process."""
    words = ("-m", "rltrace.cli", "export", "tensorboard", str(run), "--logdir", str(logdir))
    return untraced(sys.executable, *words)


def test_what_is_no_log_of_a_job_or_cannot_be_written_is_said(tmp_path: Path, logdir: Path) -> None:
    run = everything(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    (logdir / "rltrace").write_text("in the way")
    ended = {"empty": WRONG_USAGE, "none": WRONG_USAGE, "log": UNREADABLE}
    for folder, code in ended.items():
        done = export(run, tmp_path / folder)
        assert (done.returncode, len(done.stderr.splitlines())) == (code, 1)
        assert folder in done.stderr
    assert [path.name for path in tmp_path.glob("*/rltrace")] == ["rltrace"]
