"""`rltrace wrap --log-steps` with the real wandb, offline: a job's own rows have the figures of its
steps, and nothing else about them is different."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import rltrace
from rltrace.testing.inside.importers import read_log
from tests.hooks.conftest import wrapped

STEPS = 6
JOB = f"""
import json, os, sys, time
import rltrace
from rltrace.testing.inside.hooks import FILE
logs, told = "logs" in sys.argv, "told" in sys.argv
def is_known(step):
    try:
        with open(os.path.join(os.environ["RLTRACE_RUN"], FILE)) as file:
            return json.load(file)["rltrace/step"] == step
    except FileNotFoundError:
        return False
if logs:
    import wandb
    run = wandb.init(mode="offline", dir=sys.argv[1], project="job")
for step in range({STEPS}):
    with rltrace.step(step):
        with rltrace.span("rollout"):
            time.sleep(0.2)
        with rltrace.span("train"):
            time.sleep(0.1)
    while told and not is_known(step):
        time.sleep(0.1)
    if logs:
        wandb.log({{"loss": 1 / (step + 1)}}, step=step)
if logs:
    run.finish()
print("done")
"""


def job(folder: Path, option: str, *words: str) -> Path:
    """Runs the job, of which `words` say whether it `logs`, and waits until it may be `told` of a
    step before it logs it; the folder that it logged to."""
    log = folder / "log"
    log.mkdir(parents=True)
    words = ["--out", str(folder / "run"), "--", sys.executable, "-c", JOB, str(log), *words]
    done = wrapped(folder, option, *words, WANDB_SILENT="true")
    assert (done.returncode, done.stdout[-5:]) == (0, "done\n"), done.stderr
    assert "Traceback" not in done.stderr
    return log


def test_the_jobs_own_rows_have_the_figures_of_its_steps(tmp_path: Path) -> None:
    logged = read_log(job(tmp_path, "--log-steps", "logs", "told"))
    run = rltrace.open_run(tmp_path / "run")
    length = dict(run.sql("SELECT step, seconds FROM steps").fetchall())
    rollout = dict(run.sql("SELECT step, seconds FROM stages WHERE stage = 'rollout'").fetchall())
    rows = [record.metrics for record in logged.records]
    assert [row["loss"] for row in rows] == [1 / (step + 1) for step in range(STEPS)]
    assert [row["rltrace/step"] for row in rows] == list(range(STEPS))
    for step, row in enumerate(rows):
        assert row["rltrace/step_seconds"] == pytest.approx(length[step])
        assert row["rltrace/tau_seconds/rollout"] == pytest.approx(rollout[step])


def test_nothing_is_logged_unless_asked_for(tmp_path: Path) -> None:
    logged = read_log(job(tmp_path, "--live", "logs"))
    names = {name for record in logged.records for name in record.metrics}
    assert not any(name.startswith("rltrace/") for name in names)
    assert len(logged.records) == STEPS


def test_a_job_that_does_not_use_it_begins_no_run(tmp_path: Path) -> None:
    assert not any(job(tmp_path, "--log-steps", "told").iterdir())
