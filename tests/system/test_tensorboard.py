"""TensorBoard reads what is written beside a job's own log."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
from torch.utils.tensorboard import SummaryWriter

import rltrace
from rltrace.testing.inside.run import log_steps
from tests.report.everything import STEPS, everything


def test_tensorboard_shows_a_run_beside_the_jobs_own(tmp_path: Path) -> None:
    run, log = everything(tmp_path / "run"), tmp_path / "log"
    with SummaryWriter(str(log)) as writer:
        for step in range(STEPS):
            writer.add_scalar("loss", 1 / (step + 1), step)
    log_steps(run, log, lambda seconds: True)

    shown = EventMultiplexer().AddRunsFromDirectory(str(log)).Reload()
    assert set(shown.Runs()) == {".", "rltrace"}
    assert shown.Runs()["."]["scalars"] == ["loss"]
    seconds = [(s.step, s.value) for s in shown.Scalars("rltrace", "rltrace/step_seconds")]
    taken = rltrace.open_run(run).sql("SELECT step, seconds FROM steps").fetchall()
    assert seconds == [(step, pytest.approx(one)) for step, one in taken]
