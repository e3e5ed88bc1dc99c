"""What NVML's readings of a run come to: by device, by role, and for each useful token."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from rltrace.testing.handmade_runs import at, process, report_of, rows, run_of, turns
from rltrace.testing.inside.analysis import device_load, summarize
from rltrace.testing.inside.trace import Fate
from rltrace.testing.inside.trace import OpenedRun as Run
from rltrace.testing.inside.trace import TracedProcess as Process
from tests.report.summaries import words_of

SECONDS = [float(n) for n in range(41)]


def run_on_gpus(path: Path, **readings: Any) -> Run:
    """Four steps of 10 s, each trained on 100 tokens, and readings of device 0 in each second: one
    value for all of them, or a function of the second."""
    learner, worker = process("learner", *turns(4, 4, 4, 4)), process("rollout")
    for step in range(4):
        rows(worker, "trajectories", start_s=10.0 * step, end_s=10.0 * step + 4, trajectory=[step],
             group=step, first_version=step, response_tokens=100)  # fmt: skip
        rows(learner, "uses", time_s=10.0 * step + 9, trajectory=[step], step=step, version=step,
             fate=Fate.TRAINED, tokens=100)  # fmt: skip
    agent = process("agent")
    for counter, given in readings.items():
        values = [float(given(s) if callable(given) else given) for s in SECONDS]
        rows(agent, "samples", time_s=SECONDS, counter=f"gpu/{counter}", device=0, value=values)
    return run_of(path, learner, worker, agent)


def load_of(run: Run) -> Any:
    (load,) = device_load(run, at(0), at(40), 4)
    return load


def test_what_a_device_took(tmp_path: Path) -> None:
    load = load_of(
        run_on_gpus(
            tmp_path,
            busy_percent=lambda s: 100.0 * (s >= 20),
            memory_used_bytes=lambda s: 1e9 * s,
            memory_total_bytes=80e9,
            power_watts=lambda s: 300 + 100 * (s >= 20),
            energy_joules=lambda s: 5e6 + 350.0 * s,
            sm_clock_hz=1.5e9,
            throttled_by_power_percent=lambda s: 100.0 * (s % 4 == 0),
            throttled_by_heat_percent=0.0,
            throttled_by_hardware_percent=0.0,
        )
    )
    assert load.samples == 41
    assert load.busy.tolist() == pytest.approx([0, 0, 1, 1])
    assert load.busy_share == pytest.approx(21 / 41)
    assert (load.most_memory_bytes, load.memory_bytes) == (40e9, 80e9)
    assert load.mean_power_w == pytest.approx(300 + 100 * 21 / 41)
    assert load.joules == pytest.approx(350 * 40)
    assert load.sm_clock_hz == 1.5e9
    assert load.throttled_shares == pytest.approx({"power": 11 / 41, "heat": 0, "hardware": 0})
    assert load.memory_bytes_by_role == {}


def test_a_device_of_which_little_is_told(tmp_path: Path) -> None:
    load = load_of(run_on_gpus(tmp_path, memory_total_bytes=80e9))
    unknown = (load.busy_share, load.most_memory_bytes, load.mean_power_w, load.joules)
    assert all(map(math.isnan, (*unknown, *load.throttled_shares.values(), *load.busy)))
    assert load.samples == 0


def pids_of(run: Run) -> dict[str | None, int]:
    found: list[Process] = run.processes
    return {one.role: one.pid for one in found}


def test_memory_is_told_by_role(tmp_path: Path) -> None:
    first = run_on_gpus(tmp_path / "first")
    pids = pids_of(first)
    counters: dict[str, Any] = {
        f"memory_of_pid_{pids['learner']}_bytes": lambda s: 1e9 + s,
        f"memory_of_pid_{pids['rollout']}_bytes": 20e9,
        "memory_of_pid_1_bytes": 3e9,
    }
    run = run_on_gpus(tmp_path / "again", **counters)
    assert pids_of(run) == pids
    assert load_of(run).memory_bytes_by_role == {
        "learner": 1e9 + 40,
        "rollout": 20e9,
        "unknown": 3e9,
    }


def test_what_a_useful_token_took(tmp_path: Path) -> None:
    run = run_on_gpus(tmp_path / "read", energy_joules=lambda s: 1e6 + 350.0 * s)
    found = summarize(run).goodput
    assert found is not None
    useful = found.trained.useful_tokens
    assert useful == 100 * found.steps > 0
    assert found.joules == pytest.approx(350 * found.window_s)
    assert found.joules_per_useful_token == pytest.approx(35)
    words = words_of(summarize(run))
    assert re.search(r" m?s of a .+ and 35(\.0)? J\.", words)
    told = report_of(run)
    assert told["goodput"]["joules_per_useful_token"] == pytest.approx(35)
    assert [gpu["device"] for gpu in told["gpus"]] == [0]
    unread = report_of(run_on_gpus(tmp_path / "unread"))
    assert unread["goodput"]["joules_per_useful_token"] is None
    assert unread["gpus"] == []


def test_the_fullest_device_is_evidence(tmp_path: Path) -> None:
    run = run_on_gpus(tmp_path, memory_used_bytes=lambda s: 1e9 * s, memory_total_bytes=80e9)
    figures = {f.name: f.value for wall in summarize(run).verdict.walls for f in wall.evidence}
    assert figures["GPU memory used, the fullest"] == pytest.approx(0.5)
