"""Workloads of traces: of runs with all that is recorded, replayed and predicted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rltrace.analysis.whatif.of_run import workload_of
from rltrace.testing.inside.analysis import LEVERS, Constants, baseline, predict, ranked, replay
from rltrace.testing.inside.trace import Run, Stage
from tests.analysis.whatif.played import of

Made = Callable[..., tuple[Run, Any]]


def test_a_run_whose_stages_take_turns_is_replayed_as_it_was(synthetic: Made) -> None:
    run, _ = synthetic(placement="colocated")
    load = of(run)
    assert load.placement == "colocated"
    assert load.engine.workers == 4
    assert load.engine.token_s == pytest.approx(0.002, rel=0.05)
    assert load.engine.slots > 32  # one slot for each sample: no limit
    assert load.scoring == "batch"
    assert load.devices == {"shared": 8.0}
    assert abs(load.model_error) < 0.03
    assert replay(load).step_s == pytest.approx(load.measured_step_s, rel=0.01)
    assert load.mean_s(Stage.TRAIN) == pytest.approx(2.5, rel=0.05)


def test_generation_of_the_next_batch_is_replayed_beside_the_learner(synthetic: Made) -> None:
    run, _ = synthetic(placement="one-step-off")
    load = of(run)
    played = replay(load)
    assert played.step_s == pytest.approx(load.measured_step_s, rel=0.05)
    assert played.lags == {1: 1.0}
    assert load.devices == {"rollout": 4.0, "train": 4.0}


def test_verdicts_that_did_not_wait_are_found(synthetic: Made) -> None:
    run, _ = synthetic(placement="colocated", reward_streamed=True)
    assert of(run).scoring == "sample"


def test_the_same_work_in_another_placement(synthetic: Made) -> None:
    """What one trace predicts of a placement, another trace of that placement shows."""
    before, _ = synthetic(placement="colocated", gpus=0, switch_s=0.0)
    after, _ = synthetic(placement="one-step-off", gpus=0, switch_s=0.0)
    found = predict(workload_of(before), [("placement", "one-step-off")])
    step_s = baseline(workload_of(after)).step_s
    assert found.step_s.middle == pytest.approx(step_s, rel=0.1)
    assert found.step_s.low < step_s < found.step_s.high


def test_a_part_of_one_device_decodes_as_much_slower(synthetic: Made) -> None:
    """Also where a token takes as long however many sequences run: then it is the device that takes
    it, not its share of them."""
    run, _ = synthetic(placement="colocated", gpus=0, rollout_workers=1)
    load = replace(of(run), devices={"shared": 1.0})
    assert not load.engine.pooled
    whole = load.engine.token_s
    for part in (0.5, 0.04):
        split = LEVERS["split"].change(load, str(part), Constants())
        assert split.engine.token_s == pytest.approx(whole / part)
        assert replay(split).step_s > replay(load).step_s


def test_a_stage_that_is_gone_is_gone(synthetic: Made) -> None:
    before, _ = synthetic(placement="colocated")
    after, _ = synthetic(placement="colocated", logprob_s=0.0)
    found = predict(workload_of(before), [("drop_logprob", "1")])
    assert found.step_s.middle == pytest.approx(baseline(workload_of(after)).step_s, rel=0.02)


def test_faster_verdicts(synthetic: Made) -> None:
    before, _ = synthetic(placement="colocated", reward_s=1.0)
    after, _ = synthetic(placement="colocated", reward_s=0.5)
    found = predict(workload_of(before), [("reward_latency", "0.5")])
    assert found.step_s.middle == pytest.approx(baseline(workload_of(after)).step_s, rel=0.03)


def test_all_levers_that_apply_are_ranked(synthetic: Made) -> None:
    run, _ = synthetic(placement="disaggregated")
    found = ranked(workload_of(run))
    assert len(found) > 10
    assert all(one.step_s.low <= one.step_s.middle <= one.step_s.high for one in found)
    verdicts = {one.levers[0]: one.verdict for one in found}
    assert verdicts["rollout_workers=x2"] == "slower"  # for each device


def test_more_samples_than_are_played_change_nothing(synthetic: Made) -> None:
    run, _ = synthetic(placement="colocated", prompts=96, group=4)
    load = of(run)
    assert len(load.batches[0].tokens) <= 256
    assert load.engine.stands_for == pytest.approx(1.5, rel=0.01)
    assert replay(load).step_s == pytest.approx(load.measured_step_s, rel=0.02)


def test_without_a_barrier_it_is_said_what_that_means(synthetic: Made) -> None:
    together, _ = synthetic(placement="colocated")
    found = predict(workload_of(together), [("no_barrier", "1")])
    assert "take turns on the same devices, which they go on to do" in " ".join(found.rests_on)
    assert found.devices == {"shared": 8.0}
    apart, _ = synthetic(placement="disaggregated")
    found = predict(workload_of(apart), [("no_barrier", "1")])
    assert "samples that lag by up to 1 version (placement=async)" in " ".join(found.rests_on)


def test_a_run_that_was_killed_or_has_no_versions_has_an_answer(synthetic: Made) -> None:
    for knobs in (
        {"kill_step": 5, "nodes": 2},
        {"unknown_versions": 1.0},
        {"reward_timeouts": 0.3},
    ):
        run, _ = synthetic(placement="async", **knobs)
        found = predict(workload_of(run), [("train_speed", "1.5")])
        assert found.step_s.low < found.step_s.middle < found.step_s.high
        assert any("replayed as they were" in sentence for sentence in found.rests_on)


def test_batches_that_wait_for_each_other_are_replayed_so_with_versions_or_without(
    synthetic: Made,
) -> None:
    for knobs in ({}, {"unknown_versions": 1.0}):
        run, _ = synthetic(placement="async", **knobs)
        load = of(run)
        assert (load.placement, load.in_batches) == ("async", True)
        assert load.model_error == pytest.approx(0, abs=0.05)
        assert predict(workload_of(run), [("no_barrier", "1")]).gain.middle > 1.1
