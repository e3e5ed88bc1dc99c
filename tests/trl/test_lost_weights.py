"""A version that does not reach the server of TRL's GRPO, which says nothing of it, is an alarm."""

from __future__ import annotations

from pathlib import Path

from rltrace.testing.inside.analysis import RunAnalysis
from tests.framework_jobs import FULL_FORM
from tests.trl.jobs import Job, train

pytestmark = FULL_FORM

LOST = 8  # the version: so many updates went before


def test_a_version_that_did_not_arrive_is_named(assets: Path, tmp_path: Path) -> None:
    load = str(LOST + 1)  # the first of all comes before the first update
    job = Job("server", LOST + 3, environment=(("TRL_JOB_LOST_LOAD", load),))
    analysis = RunAnalysis(train(job, assets, tmp_path / "job").run)
    found = analysis.engine_gaps
    assert (found.lag, found.alone) == (0, True)
    assert [(one.engine, one.version, one.until_version) for one in found.departures] == [
        (None, LOST, LOST + 1)
    ]
    assert "weights" in [one.kind for one in analysis.health.alarms]
