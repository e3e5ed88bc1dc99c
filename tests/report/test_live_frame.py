"""The live view fits every screen and shows on it what matters most."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.make_trace import Workload, make
from rltrace.report import live_line
from rltrace.report.live_frame import frame
from rltrace.testing.inside.analysis import LiveState, job_of
from rltrace.testing.inside.analysis import snapshot as live
from rltrace.testing.inside.report import to_json
from rltrace.testing.run_files import SECOND

RUNNING = {"state": "running", "sentence": "running"}
KILLED = {"state": "killed", "sentence": "killed by SIGKILL (kill -9)"}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> live.Snapshot:
    """A run of a job on GPUs that has ended."""
    path = tmp_path_factory.mktemp("live") / "run"
    make(path, Workload(placement="async", steps=8, prompts=4, group=4, nodes=2))
    return LiveState(path).snapshot()


@pytest.fixture
def running(ended: live.Snapshot) -> live.Snapshot:
    """As if it were going on."""
    in_flight = [
        live.InFlight(0xABC << 44 | n, "rollout", n % 4, 30.0 - n, n > 0, 7) for n in range(8)
    ]
    return replace(
        ended,
        job=replace(ended.job, **RUNNING),
        step=live.StepNow(8, ended.time_ns, 12.0, 4.0),
        roles=(
            live.RoleNow("rollout", 4, 4, 0, {"rollout": 3, "idle": 1}, {"rollout": 0.8}),
            live.RoleNow("learner", 2, 1, 0, {"train": 1}, {"train": 0.5}),
        ),
        queue=12,
        in_flight=31,
        waiting_for_first_token=4,
        slowest=tuple(in_flight),
    )


def text(shown: live.Snapshot, width: int = 80, height: int = 24) -> str:
    return "\n".join(line.plain for line in frame(shown, width, height, "q quits"))


@pytest.mark.parametrize("width", [20, 80, 200])
@pytest.mark.parametrize("height", [4, 10, 24, 60])
def test_it_fits(width: int, height: int, running: live.Snapshot, ended: live.Snapshot) -> None:
    for shown in (running, ended):
        lines = frame(shown, width, height, "q quits")
        assert len(lines) <= height
        assert all(line.cell_len <= width for line in lines)


def test_on_a_small_screen_there_is_what_matters(running: live.Snapshot) -> None:
    screen = text(running)
    first, second, *_ = screen.splitlines()
    assert re.search(r" running, [^,]+$", first)
    assert re.match(r"step 8.*3\.0× the usual", second)
    for pattern in (
        *("tokens/s", "useful a GPU", "lag", "12 wait for the learner", "31 in flight", "GB/s"),
        *("slowest in flight", r"rollout +4 +rollout 3 idle 1", r"learner +2 +1 gone train"),
    ):
        assert re.search(pattern, screen), pattern
    assert screen.splitlines()[-1].endswith("q quits")
    assert re.search(r"GPUs .*% busy", screen)
    early = replace(running, window=None, step=replace(running.step, usual_s=math.nan))
    assert "step 8  12.0 s so far" in text(early)


def test_a_stage_is_drawn_by_its_share_of_the_step(running: live.Snapshot) -> None:
    assert running.window is not None
    train = next(row for row in running.window.stages if row.stage == "train")
    [line] = [row for row in text(running).splitlines() if row.strip().startswith("train ")]
    drawn = line.count("█") / (line.count("█") + line.count("▒") + line.count("·"))
    assert drawn == pytest.approx(train.exposed_s / running.window.step_s, abs=0.03)


def test_a_killed_job_is_said_first_and_in_what_it_died(running: live.Snapshot) -> None:
    dead = (live.Dead("rollout", 2, 4711, "node1", "Engine.generate"),)
    shown = text(replace(running, job=replace(running.job, **KILLED), dead=dead))
    assert "killed by SIGKILL (kill -9) after" in shown.splitlines()[0]
    assert "step 8 was cut off after 12.0 s" in shown.splitlines()[1]
    assert "rollout 2 (pid 4711 on node1) died in Engine.generate" in shown
    assert "last 10 s" not in shown  # nobody does anything any more


def test_who_stopped_recording_is_said(running: live.Snapshot, ended: live.Snapshot) -> None:
    full = live.SilentProcess(
        "learner", 0, 4711, "node1", 1, 12.0, "[Errno 28] No space left on device"
    )
    others = [replace(full, rank=n, pid=n, silent_s=math.nan) for n in (1, 2, 3)]
    shown = replace(running, stopped=(full, *others))
    said = [line for line in text(shown).splitlines() if line.startswith("! ")]
    assert [line.partition(", figures")[0] for line in said] == [
        "! recording stopped in learner 0 (pid 4711 on node1) 12.0 s ago",
        "! recording stopped in learner 1 (pid 1 on node1)",
        "! recording stopped in 2 more processes",
    ]
    assert text(shown).splitlines()[-1].endswith("q quits")
    over = text(replace(ended, stopped=(full,)))
    assert "(pid 4711 on node1) 12.0 s before its end" in over
    (first, *_) = to_json.of_snapshot(shown)["stopped"]
    assert (first["silent_s"], first["detail"]) == (12.0, "[Errno 28] No space left on device")


def test_that_a_job_was_killed_is_read_at_80_columns(running: live.Snapshot) -> None:
    told = {"id": "2026-11-23-train-grpo-7b" * 5, "start_real_ns": 0, "command_pid": 4194304}
    job = job_of(Path("run"), told, False, False, True, 163 * SECOND, 200 * SECOND)
    [first, *_] = text(replace(running, job=job)).splitlines()
    assert "killed: its command (pid 4194304) is gone after" in first
    assert first.endswith("2 min 43 s")
    assert first.startswith("rltrace top")


def test_json_has_no_nan(running: live.Snapshot) -> None:
    document = json.loads(json.dumps(to_json.of_snapshot(running), allow_nan=False))
    assert (document["schema"], document["schema_version"]) == ("rltrace-live", 2)
    assert document["useful_tokens_per_device_s"] == running.goodput
    assert document["window"]["trained_tokens_per_s"] > 0
    step = {"step": 8, "start_ns": running.time_ns, "elapsed_s": 12.0, "usual_s": 4.0}
    assert document["step"] == step


def test_a_step_as_a_line_and_as_scalars_for_a_tracker() -> None:
    step = live.StepDone(
        12, 0, 2.1, {"rollout": 1.2, "wait": 2.0, "train": 0.8}, 1500, 1234, 64, 1.25
    )
    assert live_line.line(step) == (
        "step 12: 2.10 s (rollout 1.20 s, train 800 ms), 1,234 tokens trained on, lag 1.25"
    )
    unknown = replace(step, step=-1, tau_s={}, trained_tokens=0, mean_lag=math.nan)
    assert live_line.line(unknown) == "a step: 2.10 s, 1,500 tokens generated"
    step = live.StepDone(3, 1, 4.0, {"rollout": 2.0}, 1000, 400, 4, 1.5)
    found = live_line.scalars(step)
    assert found["rltrace/generated_tokens_per_second"] == 250
    assert found["rltrace/trained_tokens_per_second"] == 100
    assert found["rltrace/mean_lag_versions"] == 1.5
    assert found["rltrace/trained_samples"] == 4
    rates = {name for name in found if name.endswith("per_second")}
    for seconds in (0.0, math.nan):
        assert set(found) - set(live_line.scalars(replace(step, step_s=seconds))) >= rates
    unknown = live_line.scalars(replace(step, mean_lag=math.nan, trained_samples=0))
    assert not {"rltrace/mean_lag_versions", "rltrace/trained_samples"} & set(unknown)
