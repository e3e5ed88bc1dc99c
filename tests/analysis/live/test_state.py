"""What a run is doing at this moment, and whether its job and its processes live."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rltrace.analysis.live.live_state import LiveState
from rltrace.testing.clocks import UP_FOR_DAYS, up_for_days
from rltrace.testing.inside.analysis import SILENT_NS, Snapshot, job_of
from rltrace.testing.inside.hooks import Recorder
from rltrace.testing.inside.trace import (
    AGAIN,
    FETCHED_FILE,
    LOOKED,
    NODES,
    SHIPPED,
    Fate,
    RltraceError,
    Stage,
    create_run,
    update_run_json,
    write_json,
)

SECOND = 10**9
IN_THE_MIDDLE = """
import os, signal, sys
from rltrace.testing.inside.hooks import Recorder
recorder = Recorder(sys.argv[1], role="rollout", rank=1)
recorder.begin(recorder.name("Engine.generate"), 0)
recorder.begin(recorder.name("Engine.prefill"), 0)
recorder.append("trajectories", start_ns=recorder._started_ns, trajectory=9)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    create_run(str(path), ["python", "train.py"], {}, "0")
    return path


@pytest.fixture
def learner(folder: Path) -> Recorder:
    return Recorder(str(folder), role="learner", rank=0, cores=4)


def seen(folder: Path) -> Snapshot:
    return LiveState(folder).snapshot()


def test_who_stopped_recording_is_told(folder: Path, learner: Recorder) -> None:
    state = LiveState(folder)
    learner.problem(
        "recording-stopped", target="1", monotonic_ns=time.monotonic_ns(), detail="full"
    )
    other = Recorder(str(folder), role="rollout")  # where the disk has no room for a line
    other.describe(**{"recording-stopped": {"monotonic_ns": time.monotonic_ns(), "detail": "full"}})
    assert state.snapshot().stopped == ()
    state.poll()
    told = state.snapshot().stopped
    assert {(one.role, one.rank, one.pid, one.detail) for one in told} == {
        ("learner", 0, os.getpid(), "full"),
        ("rollout", None, os.getpid(), "full"),
    }
    assert all(one.at_ns is not None and one.at_ns > SECOND for one in told)
    assert all(0 <= one.silent_s < 60 for one in told)
    state.poll()
    assert state.snapshot().stopped[0].at_ns == told[0].at_ns


def begin(recorder: Recorder, stage: Stage, **more: Any) -> Any:
    return recorder.begin(recorder.name(stage.name.lower()), stage, **more)


def test_the_step_and_the_stage_that_are_in_progress(folder: Path, learner: Recorder) -> None:
    begin(learner, Stage.STEP, step=0).end()
    begin(learner, Stage.STEP, step=1)
    begin(learner, Stage.WAIT)
    begin(learner, Stage.TRAIN)
    shown = seen(folder)
    assert shown.job.state == "running"
    assert shown.step is not None
    assert (shown.step.step, shown.totals.steps) == (1, 1)
    [role] = shown.roles
    assert (role.role, role.processes, role.living) == ("learner", 1, 1)
    assert role.doing == {"train": 1}


def test_figures_are_there_with_the_first_step_also_for_who_is_sparing(
    folder: Path, learner: Recorder
) -> None:
    state = LiveState(folder, sparing=1e9)
    state.poll()  # without steps, rows of the last minutes only are kept
    begin(learner, Stage.STEP, step=0).end()
    begin(learner, Stage.STEP, step=1)
    while not state.steps.windows:  # what ended a moment ago is known to be complete a look later
        state.poll()  # all samples of the run count now: it is read again
    assert state.snapshot().window is not None


def test_a_role_that_does_nothing_is_idle_and_what_it_did_is_known(
    folder: Path, learner: Recorder
) -> None:
    now = time.monotonic_ns()
    begin(learner, Stage.TRAIN).set(start_ns=now - 5 * SECOND, end_ns=now + 3600 * SECOND)
    [role] = seen(folder).roles
    assert role.doing == {"idle": 1}
    assert 0.5 <= role.busy_shares["train"] <= 1  # five of the last ten seconds, or more by now


def test_trajectories_in_flight_and_the_slowest_first(folder: Path, learner: Recorder) -> None:
    now = time.monotonic_ns()
    for sample, (age_s, first) in enumerate([(2, True), (30, False), (5, True)]):
        row = learner.append(
            "trajectories", start_ns=now - age_s * SECOND, trajectory=sample, first_version=3
        )
        assert row is not None
        if first:
            row.set(first_token_ns=now)
    shown = seen(folder)
    assert (shown.in_flight, shown.waiting_for_first_token) == (3, 1)
    assert [one.trajectory for one in shown.slowest] == [1, 2, 0]
    assert shown.slowest[0].elapsed_s >= 30
    assert [one.has_first_token for one in shown.slowest] == [False, True, True]
    assert shown.roles[0].doing == {"rollout": 1}


def test_the_queue_is_what_no_learner_has_met(folder: Path, learner: Recorder) -> None:
    now = time.monotonic_ns()
    for sample in range(5):
        learner.append(
            "trajectories", start_ns=now - 9 * SECOND, end_ns=now - 5 * SECOND, trajectory=sample
        )
    assert seen(folder).queue is None  # no learner says what it does with them
    learner.append("uses", trajectory=0, fate=Fate.TRAINED, tokens=7, time_ns=now)
    learner.append("uses", trajectory=1, fate=Fate.STALE, time_ns=now)
    shown = seen(folder)
    assert shown.queue == 3
    assert (shown.totals.trained_samples, shown.totals.trained_tokens) == (1, 7)
    assert shown.totals.lost == {"stale": 1}


@pytest.mark.parametrize("lasts_s", [1.0, 0.0], ids=["over", "in progress"])
def test_what_the_next_step_trained_on_is_not_the_one_befores(
    folder: Path, learner: Recorder, lasts_s: float
) -> None:
    """A step is complete a little after its end; what was recorded in the next one is there."""
    state = LiveState(folder)
    now = time.monotonic_ns()
    for step, age_s in enumerate((4, 1)):
        start_ns = now - age_s * SECOND
        span = begin(learner, Stage.STEP, step=step)
        span.set(start_ns=start_ns)
        if step == 0 or lasts_s:
            span.set(end_ns=start_ns + SECOND)
        used = {"trajectory": step, "fate": Fate.TRAINED, "tokens": 50}
        learner.append("uses", time_ns=start_ns + SECOND // 2, **used)
    state.poll()
    window = state.snapshot().window
    assert window is not None
    assert [(one.step, one.trained_tokens) for one in window.recent] == [(0, 50)]


def test_counters_and_their_rates(folder: Path, learner: Recorder) -> None:
    now = time.monotonic_ns()
    for second in range(3):
        for name, value in (("host/cpu_busy_seconds", 2.0 * second), ("gpu/power_watts", 300.0)):
            at = {"device": 0, "time_ns": now + second * SECOND}
            learner.append("samples", counter=learner.name(name), value=value, **at)
    read = {reading.counter: reading for reading in seen(folder).readings}
    assert read["host/cpu_busy_seconds"].per_s == pytest.approx(2.0)
    assert read["gpu/power_watts"].value == 300.0
    assert read["gpu/power_watts"].per_s != read["gpu/power_watts"].per_s  # no growing counter


def test_a_process_that_is_killed_in_the_middle_is_named(folder: Path, learner: Recorder) -> None:
    begin(learner, Stage.STEP, step=0)
    state = LiveState(folder)
    subprocess.run([sys.executable, "-c", IN_THE_MIDDLE, str(folder)], check=False)
    state.poll()
    state.poll()
    shown = state.snapshot()
    assert shown.job.state == "running"  # the job itself goes on
    [one] = shown.dead
    assert (one.role, one.rank, one.doing) == ("rollout", 1, "Engine.prefill")
    gone = next(role for role in shown.roles if role.role == "rollout")
    assert (gone.processes, gone.living) == (1, 0)
    assert shown.in_flight == 0  # nobody generates it any more


def test_the_jobs_command_is_killed(folder: Path, learner: Recorder) -> None:
    begin(learner, Stage.STEP, step=4)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as command:
        update_run_json(str(folder), command_pid=command.pid, wrap_pid=-1)
        state = LiveState(folder)
        assert state.snapshot().job.state == "running"
        command.kill()
        os.waitid(os.P_PID, command.pid, os.WEXITED | os.WNOWAIT)  # a zombie is no more alive
        state.poll()
        shown = state.snapshot()
    assert shown.job.state == "killed"
    assert f"pid {command.pid}" in shown.job.sentence
    assert shown.step is not None
    assert shown.step.step == 4


HOUR_NS = 3600 * SECOND
GONE = 2**30


@pytest.mark.parametrize(
    ("meta", "killed"),
    [
        ({}, False),  # nothing is recorded yet
        ({"command_pid": -1}, False),  # this process made the run: it is `wrap`, and will say how
        ({"command_pid": os.getpid(), "start_monotonic_ns": time.monotonic_ns() - HOUR_NS}, True),
        ({"command_pid": os.getpid(), "start_real_ns": time.time_ns() - HOUR_NS}, False),
        ({"command_pid": GONE, "wrap_pid": GONE}, True),
        ({"command_pid": GONE, "wrap_pid": GONE, "host": "another-container"}, False),
    ],
    ids=["nothing yet", "wrap lives", "a pid of somebody else", "the clock was set", "gone",
         "containers of a machine share its boot id, and see other pids"],
)  # fmt: skip
def test_whether_a_job_of_which_nobody_said_how_it_ended_is_there(
    folder: Path, meta: dict[str, Any], killed: bool
) -> None:
    update_run_json(str(folder), **meta)
    job = seen(folder).job
    assert (job.state == "killed", job.is_over) == (killed, killed)
    assert meta or job.state == "starting"


def test_a_run_that_is_deleted_meanwhile(folder: Path, learner: Recorder) -> None:
    begin(learner, Stage.TRAIN)
    state = LiveState(folder)
    shutil.rmtree(folder)
    state.poll()
    assert state.snapshot().job.state == "deleted"
    with pytest.raises(RltraceError, match="is no run"):
        LiveState(folder.parent)


@pytest.mark.parametrize(
    ("meta", "alive", "state", "sentence"),
    [
        ({"end_real_ns": 9, "exit_code": 0}, False, "ended", "ended"),
        ({"end_real_ns": 9, "exit_code": 3}, False, "failed", "exit code 3"),
        ({"end_real_ns": 9, "exit_code": 128 + 9}, False, "killed", "SIGKILL (kill -9)"),
        ({"end_real_ns": 9, "exit_code": 128 + 11}, False, "killed", "SIGSEGV"),
        ({"end_real_ns": 9, "exit_code": 130, "signals": [2]}, False, "ended", "from outside"),
        ({"end_real_ns": 9, "exit_code": None, "wrap_pid": 7}, False, "killed", "not recorded"),
        ({"end_real_ns": 9, "exit_code": None, "wrap_pid": None}, False, "ended", "ended"),
        ({}, True, "running", "running"),
        ({}, False, "killed", "is gone"),
        ({}, None, "silent", "no sign of life for 40 s"),
    ],
)
def test_what_became_of_the_job(
    meta: dict[str, Any], alive: bool | None, state: str, sentence: str
) -> None:
    now = 10**18
    meta = {"start_real_ns": now - 3600 * SECOND, **meta}
    job = job_of(Path("run"), meta, False, alive, True, now - SILENT_NS - 10 * SECOND, now)
    assert job.state == state
    assert sentence in job.sentence


@pytest.mark.parametrize("again_s", [5, 60])
def test_what_was_shipped_is_shown_as_of_when_it_was_looked_at(
    folder: Path, learner: Recorder, again_s: int
) -> None:
    """What has not come yet makes no step long and no job silent."""
    now = up_for_days(learner)
    begin(learner, Stage.STEP, step=0).set(start_ns=now - 92 * SECOND, end_ns=now - 91 * SECOND)
    begin(learner, Stage.STEP, step=1).set(start_ns=now - 91 * SECOND)
    told = {"node": UP_FOR_DAYS, "host": "vm", SHIPPED: False, AGAIN: again_s}
    told[LOOKED] = now - 90 * SECOND
    write_json(str(folder / NODES / f"{UP_FOR_DAYS}.json"), told)
    write_json(str(folder / FETCHED_FILE), {"url": "s3://bucket/runs/run"})
    shown = seen(folder)
    assert shown.job.state == "running"
    assert "the last that has come" in shown.job.sentence
    assert shown.step is not None
    assert shown.step.elapsed_s == pytest.approx(1, abs=0.1)
    told[LOOKED] = now - 1000 * SECOND
    write_json(str(folder / NODES / f"{UP_FOR_DAYS}.json"), told)
    assert seen(folder).job.state == "silent"
