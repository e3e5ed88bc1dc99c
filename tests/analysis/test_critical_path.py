"""The critical path: what it rests on, and what it says where that is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rltrace.analysis.lanes import Lane
from rltrace.testing.inside.analysis import summarize
from rltrace.testing.inside.trace import Stage
from rltrace.testing.made import between, process, rows, run_of
from rltrace.testing.played import Process
from tests.analysis.paths import path_of, segments_of

STEPS = 4


def beside(**changes: Any) -> list[Process]:
    """Steps of 10 s: the learner trains from 0 to 9 on what the actors made in the step before, in
    bursts that end just before it begins, and generation leads to it only in the first step."""
    driver = process("driver", *((("step", n), 10 * n, 10 * n + 10) for n in range(STEPS)))
    learner = process("learner", *((Stage.TRAIN, 10 * n + 0.5, 10 * n + 9) for n in range(STEPS)))
    actors = process("rollout")
    begins = [10 * n - 9.5 for n in range(1, STEPS + 1)]
    rows(
        actors,
        "trajectories",
        start_s=begins,
        end_s=[start + 9.7 for start in begins],
        trajectory=list(range(1, STEPS + 1)),
        group=[-1] * STEPS,
    )
    used = list(range(STEPS - 1))
    rows(
        driver,
        "uses",
        time_s=[10 * n + 19.5 for n in used],
        trajectory=changes.get("used", [n + 1 for n in used]),
        step=[n + 1 for n in used],
        fate=[0] * len(used),
    )
    return [driver, learner, actors]


def test_a_learner_that_waits_leads_to_the_sample_it_waited_for(tmp_path: Path) -> None:
    path = segments_of(run_of(tmp_path, *beside()))
    last = [s for s in path if s.stage is Stage.ROLLOUT][-1]
    assert last.what == "the last sample of the step"
    assert last.seconds == pytest.approx(9.7)


def test_time_that_nothing_explains_is_unknown(tmp_path: Path) -> None:
    run = run_of(tmp_path, *beside())
    found = path_of(run)
    assert found is not None
    assert found.segments == len(segments_of(run)) > 4
    assert found.unknown_share > 0
    by_stage = {share.stage: share for share in found.shares}
    assert by_stage["unknown"].share == found.unknown_share
    for step in found.steps_s:
        assert sum(step.values()) == pytest.approx(10)


def test_without_uses_the_exposed_rule_stands_in_and_says_so(tmp_path: Path) -> None:
    driver, learner, actors = beside()
    driver.columns.pop("uses")
    run = run_of(tmp_path, driver, learner, actors)
    found = path_of(run)
    assert found is not None
    assert not found.is_traced
    assert found.because == "no use of a sample by the learner was recorded"
    assert all(share.share == share.exposed_share for share in found.shares)


def test_without_trajectories_too(tmp_path: Path) -> None:
    driver, learner, actors = beside()
    actors.columns.clear()
    found = path_of(run_of(tmp_path, driver, learner, actors))
    assert found is not None
    assert found.because == "no trajectory was recorded"


def test_samples_whose_generation_was_not_seen_are_not_followed(tmp_path: Path) -> None:
    found = path_of(run_of(tmp_path, *beside(used=[77, 78, 79])))
    assert found is not None
    assert found.because.startswith("no use") or found.because.startswith("only 0 %")


def test_a_log_of_durations_has_no_path(tmp_path: Path) -> None:
    run = run_of(tmp_path, *beside(), imported={"trainer": "any", "kind": "jsonl"})
    assert path_of(run) is None


def test_clocks_out_of_order_do_not_keep_the_path_from_its_end(tmp_path: Path) -> None:
    """Verdicts that end before they begin, samples that are used before they were made."""
    driver, learner, actors = beside()
    judge = process("reward")
    rows(judge, "rewards", start_s=[5, 30], end_s=[4, 31], trajectory=[1, 1])
    found = path_of(run_of(tmp_path, driver, learner, actors, judge))
    assert found is not None
    assert sum(sum(step.values()) for step in found.steps_s) == pytest.approx(10 * STEPS)


@pytest.mark.parametrize("placement", ["colocated", "disaggregated", "one-step-off", "async"])
def test_other_synthetic_runs_have_a_path_that_adds_up(
    placement: str, synthetic: Callable[..., Any]
) -> None:
    run, truth = synthetic(placement=placement, kill_step=6, unknown_versions=0.2)
    found = path_of(run)
    assert found is not None
    assert found.is_traced
    for step, known in zip(found.steps_s, truth.steps, strict=True):
        assert sum(step.values()) == pytest.approx(known.step_s)


def test_the_summary_has_it(tmp_path: Path) -> None:
    summary = summarize(run_of(tmp_path, *beside()), predict=False)
    assert summary.critical_path is not None
    assert summary.critical_path.is_traced


def test_a_lane_answers_as_a_look_at_all_its_intervals_does() -> None:
    rng = np.random.default_rng(3)
    start = rng.integers(0, 200, 60)
    end = start + rng.integers(0, 30, 60)
    lane = Lane(start, end, np.arange(60))
    real = end > start
    for moment in range(-5, 240):
        before = end[real & (end <= moment)]
        found = lane.ended(moment)
        assert (end[found] if found >= 0 else None) == (before.max() if len(before) else None)
        under_way = end[real & (start < moment) & (end > moment)]
        found = lane.open(moment)
        assert (end[found] if found >= 0 else None) == (under_way.max() if len(under_way) else None)
        rests = bool(lane.rests_at(np.array([moment]))[0])
        assert rests == (not len(under_way)) == (lane.busy_since(moment) == moment)


def test_a_queue_beside_generation_is_no_explanation(tmp_path: Path) -> None:
    """Requests that wait in an engine's queue while it generates others hold nothing else up."""
    driver, learner, actors = beside()
    alone = process("queue", (Stage.OTHER, 0, 40))
    actors.span(between(0, 40), "queue", Stage.OTHER, -1, lane=5)
    actors.span(between(0, 40), "generate", Stage.ROLLOUT, -1, lane=6)
    busy = segments_of(run_of(tmp_path / "busy", driver, learner, actors))
    assert not [s for s in busy if s.stage is Stage.OTHER]
    known = segments_of(run_of(tmp_path / "alone", *beside(), alone))
    assert [s for s in known if s.stage is Stage.OTHER]
