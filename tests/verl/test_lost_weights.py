"""A version that does not reach verl's engine, which says that it has it, is an alarm."""

from __future__ import annotations

from pathlib import Path

from rltrace.testing.inside.analysis import RunAnalysis
from tests.framework_jobs import FULL_FORM
from tests.verl.jobs import ROLLOUT, Job, train

pytestmark = FULL_FORM

LOST = 8  # the version: that of the step


def test_a_version_that_did_not_arrive_is_named(assets: Path, tmp_path: Path) -> None:
    settings = ("trainer.use_v1=False", f"{ROLLOUT}.calculate_log_probs=True")
    job = Job(settings, (("VERL_CPU_LOST_VERSION", str(LOST)),), steps=LOST + 3)
    analysis = RunAnalysis(train(job, assets, tmp_path / "job").run)
    found = analysis.engine_gaps
    assert (found.lag, found.alone) == (0, True)
    assert [(one.engine, one.version, one.until_version) for one in found.departures] == [
        (None, LOST, LOST + 1)
    ]
    assert "weights" in [one.kind for one in analysis.health.alarms]
