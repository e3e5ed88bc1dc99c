"""Walls of a run that has a probe: what delaying showed comes before what was computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rltrace.analysis.summary import Summary, summarize
from rltrace.analysis.walls.held_up import Measured
from rltrace.analysis.walls.wall import LEARNER, ROLLOUT
from rltrace.hooks.doses import Design
from rltrace.report.verdict import evidence, headline
from rltrace.trace.vocabulary import Stage
from tests.analysis.handmade import process, rows, run_of

STEPS = 60
BUDGET = 0.1


def probed(path: Path, binds: str, beside: bool, given: float = 1.0) -> Summary:
    """A run of steps of about 10 s with doses of both stages, of which only `binds` lengthens them.
    `beside`: engines generate all through the step, and training runs for nine tenths of it; else
    generation takes 6 s, then training 4 s, and both bind. `given`: how much of the doses came."""
    design = Design(("rollout", "train"), BUDGET, 4)
    rng = np.random.default_rng(4)
    driver, actors, learner = process("controller"), process("rollout"), process("learner")
    counters: list[tuple[float, str, float]] = []
    now = 0.0
    for n in range(STEPS):
        doses = design.doses(n)
        dose = {stage: doses.get(stage, 0.0) for stage in ("rollout", "train")}
        length_s = {"rollout": 10.0 if beside else 6.0, "train": 9.0 if beside else 4.0}
        work_s = {
            stage: length * float(rng.uniform(0.98, 1.02)) for stage, length in length_s.items()
        }
        took_s = {stage: work_s[stage] * (1 + dose[stage] * given) for stage in work_s}
        if beside:
            ends = now + (10 + work_s["train"] * dose["train"] * given if binds == "train" else
                          took_s["rollout"])  # fmt: skip
            generates, trains = (now, ends), (now + 1, ends)
        else:
            ends = now + sum(took_s.values())
            generates, trains = (now, now + took_s["rollout"]), (now + took_s["rollout"], ends)
        driver.spans += process("controller", (("step", n), now, ends)).spans
        actors.spans += process("rollout", (Stage.ROLLOUT, *generates)).spans
        learner.spans += process("learner", (Stage.TRAIN, *trains)).spans
        for stage, worked in work_s.items():
            counters += [(now + 0.1, f"probe/{stage}/planned", dose[stage]),
                         (ends - 0.1, f"probe/{stage}/worked", worked)]  # fmt: skip
            if dose[stage]:
                slept = worked * dose[stage] * given
                counters.append((ends - 0.1, f"probe/{stage}/slept", slept))
        now = ends
    times, names, values = (list(column) for column in zip(*counters, strict=True))
    rows(driver, "samples", time_s=times, counter=names, value=values)
    return summarize(run_of(path, driver, actors, learner, settings={"probe": design.settings()}))


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
    found = summarize(run_of(tmp_path, process("learner", *spans)))
    assert found.verdict.measured == ()
