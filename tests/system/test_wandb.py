"""`rltrace wrap --log-steps` with the real wandb, offline: a job's own rows have the figures of its
steps, and nothing else about them is different."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

import rltrace
from rltrace.importers.reading import read_log
from tests.hooks.conftest import WRAP, clean_environment

STEPS = 6
JOB = f"""
import sys, time
import rltrace
if sys.argv[1] == "logs":
    import wandb
    run = wandb.init(mode="offline", dir=sys.argv[2], project="job")
for step in range({STEPS}):
    with rltrace.step(step):
        with rltrace.span("rollout"):
            time.sleep(0.8)
        with rltrace.span("train"):
            time.sleep(0.4)
    if sys.argv[1] == "logs":
        wandb.log({{"loss": 1 / (step + 1)}}, step=step)
if sys.argv[1] == "logs":
    run.finish()
print("done")
"""


def job(folder: Path, *words: str, logs: str = "logs") -> Path:
    """Runs the job; the folder that it logged to."""
    log = folder / "log"
    log.mkdir(parents=True)
    command = [*WRAP, *words, "--out", str(folder / "run"), "--"]
    command += [sys.executable, "-c", JOB, logs, str(log)]
    done = subprocess.run(
        command,
        cwd=folder,
        env=clean_environment() | {"WANDB_SILENT": "true"},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert done.stdout.endswith("done\n")
    assert "Traceback" not in done.stderr
    return log


def test_the_jobs_own_rows_have_the_figures_of_its_steps(tmp_path: Path) -> None:
    logged = read_log(job(tmp_path / "with", "--log-steps"))
    taken = dict(
        rltrace.open_run(tmp_path / "with" / "run")
        .sql("SELECT step, seconds FROM steps")
        .fetchall()
    )
    rows = [record.metrics for record in logged.records]
    assert [row["loss"] for row in rows] == [1 / (step + 1) for step in range(STEPS)]
    told = [row for row in rows if "rltrace/step" in row]
    assert len(told) >= 2
    for row in told:
        step = int(row["rltrace/step"])
        assert math.isclose(row["rltrace/step_seconds"], taken[step], rel_tol=1e-6)
        assert row["rltrace/tau_seconds/rollout"] == pytest.approx(0.8, rel=0.5)
    steps = [row["rltrace/step"] for row in told]
    assert steps == sorted(set(steps))  # each once


def test_nothing_is_logged_unless_asked_for(tmp_path: Path) -> None:
    logged = read_log(job(tmp_path, "--live"))
    names = {name for record in logged.records for name in record.metrics}
    assert not any(name.startswith("rltrace/") for name in names)
    assert len(logged.records) == STEPS


def test_a_job_that_does_not_use_it_begins_no_run(tmp_path: Path) -> None:
    assert not any(job(tmp_path, "--log-steps", logs="no").iterdir())
