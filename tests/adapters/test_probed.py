"""The built-in trainer on Ray under a probe: every role is delayed, and does what it did."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import rltrace
from rltrace.testing.inside.analysis import summarize
from rltrace.testing.inside.hooks import Design
from tests.adapters.conftest import SMALL, TRAIN
from tests.hooks.conftest import WRAP, clean_environment

pytestmark = pytest.mark.slow

STEPS = 10
SEED = 4


def test_actors_in_processes_of_their_own_get_the_doses_of_the_step(tmp_path: Path) -> None:
    path = tmp_path / "run"
    settings = SMALL | {"placement": "colocated", "steps": STEPS, "decode-floor": 0.01}
    settings |= {"update-floor": 0.05, "reward-latency": 0.005}
    done = subprocess.run(
        [*WRAP, "--out", str(path), "--probe", "--probe-budget", "12.5%", "--probe-seed", str(SEED)]
        + ["--", sys.executable, str(TRAIN)]
        + [f"--{name}={value}" for name, value in settings.items()],
        env=clean_environment(RAY_memory_monitor_refresh_ms="0"),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    run = rltrace.open_run(path)
    rows = run.sql(
        "select distinct s.role, split_part(counter, '/', 2), k.step from samples s join steps k "
        "on s.time_ns between k.start_ns and k.end_ns "
        "where counter like 'probe/%/slept' and value > 0"
    ).fetchall()
    assert {(role, stage) for role, stage, _ in rows} >= {
        ("rollout", "rollout"),
        ("reward", "reward"),
        ("learner", "train"),
    }
    design = Design((), 0.125, SEED)
    assert {(stage, step) for _, stage, step in rows} <= {
        (stage, place) for place in range(STEPS) for stage in design.doses(place)
    }
    summary = summarize(run)
    assert summary.probe is not None
    assert [p for p in run.problems if p["what"] == "not-probed"] == []
