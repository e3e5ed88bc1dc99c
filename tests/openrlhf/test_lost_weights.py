"""An update that brings nothing new to OpenRLHF's engine, and says nothing of it, is an alarm."""

from __future__ import annotations

from pathlib import Path

from rltrace.testing.inside.analysis import RunAnalysis
from tests.framework_jobs import FULL_FORM
from tests.openrlhf.jobs import TENSORS, Job, train

pytestmark = FULL_FORM

LOST = 8  # of the updates, from 1 on: it makes the version of this number


def test_an_update_that_changes_nothing_is_named(assets: Path, tmp_path: Path) -> None:
    flags = ("--algo.advantage.is_correction_level=token", "--actor.adam.lr=1e-3")
    environment = {"OPENRLHF_CPU_LOST_UPDATE": LOST, "OPENRLHF_CPU_TENSORS": TENSORS}
    told = tuple((name, str(number)) for name, number in environment.items())
    analysis = RunAnalysis(train(Job(flags, told, steps=LOST + 3), assets, tmp_path / "job").run)
    found = analysis.engine_gaps
    assert (found.lag, found.alone) == (0, True)
    assert [(one.engine, one.version, one.until_version) for one in found.departures] == [
        (None, LOST, LOST + 1)
    ]
    assert "weights" in [one.kind for one in analysis.health.alarms]
