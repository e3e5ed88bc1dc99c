"""Walls of a run that has a probe: what delaying showed comes before what was computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rltrace.analysis.walls.held_up import Measured
from rltrace.testing.inside.analysis import LEARNER, ROLLOUT, Summary, summarize
from rltrace.testing.inside.report import evidence, headline
from rltrace.testing.inside.trace import Stage
from rltrace.testing.made import process, run_of
from tests.analysis.probed import probed


def measured(found: Summary) -> dict[str, Measured]:
    return {one.name: one for one in found.verdict.measured}


def test_a_stage_that_runs_all_the_time_and_holds_nothing_up_is_no_wall(tmp_path: Path) -> None:
    found = probed(tmp_path, "train", beside=True)
    told = measured(found)
    assert told["rollout"].computed == pytest.approx(1, abs=0.02)  # the longer chain is charged
    assert told["rollout"].contradicts
    assert told["train"].contradicts
    assert told["train"].share.contains(0.9)
    verdict = found.verdict
    assert verdict.first is not None
    assert verdict.first.name == LEARNER
    assert verdict.first.cost.share == pytest.approx(told["train"].share.value)
    assert verdict.first.cost.half_width >= told["train"].share.half_width
    assert "train as measured by delaying it" in verdict.because
    assert verdict.confidence == "likely"
    said = [line for line in evidence(found) if line.startswith("measured by delaying")]
    assert len(said) == 2
    assert all(line.endswith("wrongly") for line in said)
    assert LEARNER in headline(found)


def test_what_the_probe_confirms_stands_as_it_was_computed(tmp_path: Path) -> None:
    found = probed(tmp_path, "both", beside=False)
    told = measured(found)
    assert not any(one.contradicts for one in told.values())
    verdict = found.verdict
    assert verdict.first is not None
    assert verdict.first.name == ROLLOUT
    assert verdict.first.cost.share == pytest.approx(told["rollout"].computed)
    assert "delaying" not in verdict.because
    assert any(line.endswith("so too") for line in evidence(found)) == told["rollout"].agrees


def test_doses_that_were_given_in_part_only_put_nothing_right(tmp_path: Path) -> None:
    found = probed(tmp_path, "train", beside=True, given=0.4)
    assert found.probe is not None
    assert "train" not in measured(found)


def test_without_a_probe_nothing_is_measured(tmp_path: Path) -> None:
    spans: list[Any] = []
    for n in range(6):
        spans += [(("step", n), 10 * n, 10 * n + 10), (Stage.TRAIN, 10 * n, 10 * n + 10)]
    found = summarize(run_of(tmp_path, process("learner", *spans)), predict=False)
    assert found.verdict.measured == ()
