"""Workloads of runs with all that is recorded, and of stage seconds where nothing is known of
samples, replayed and predicted; and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rltrace.testing.handmade_runs import process, run_of, turns
from rltrace.testing.inside.analysis import (
    LEVERS,
    Constants,
    OffTheRun,
    baseline,
    predict,
    ranked,
    replay,
    workload_of,
)
from rltrace.testing.inside.trace import CANNOT_TELL, RltraceError, Stage
from rltrace.testing.inside.trace import OpenedRun as Run
from tests.analysis.walls.walled import in_steps
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
    assert of(synthetic(placement="colocated", reward_streamed=True)[0]).scoring == "sample"
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


APART = {"gpus": 0, "switch_s": 0.0}


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


@pytest.mark.parametrize(
    ("before", "after", "move", "rel"),
    [
        ({}, {"logprob_s": 0.0}, ("drop_logprob", "1"), 0.02),
        ({"reward_s": 1.0}, {"reward_s": 0.5}, ("reward_latency", "0.5"), 0.03),
        (APART, {**APART, "placement": "one-step-off"}, ("placement", "one-step-off"), 0.1),
    ],
)
def test_what_one_trace_predicts_another_shows(
    synthetic: Made, before: dict[str, Any], after: dict[str, Any], move: Any, rel: float
) -> None:
    one, other = (synthetic(**{"placement": "colocated", **knobs})[0] for knobs in (before, after))
    found = predict(workload_of(one), [move])
    step_s = baseline(workload_of(other)).step_s
    assert found.step_s.value == pytest.approx(step_s, rel=rel)
    assert rel < 0.1 or found.step_s.low < step_s < found.step_s.high


def test_all_levers_that_apply_are_ranked(synthetic: Made) -> None:
    run, _ = synthetic(placement="disaggregated")
    found, _ = ranked(workload_of(run))
    assert len(found) > 10
    assert all(one.step_s.low <= one.step_s.value <= one.step_s.high for one in found)
    verdicts = {one.levers[0]: one.outcome for one in found}
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
    assert "still take turns on the same devices" in " ".join(found.rests_on)
    assert found.devices == {"shared": 8.0}
    apart, _ = synthetic(placement="disaggregated")
    found = predict(workload_of(apart), [("no_barrier", "1")])
    assert "samples lag by up to 1 version (placement=async)" in " ".join(found.rests_on)


def test_a_run_that_was_killed_or_has_no_versions_has_an_answer(synthetic: Made) -> None:
    for knobs in (
        {"kill_step": 5, "nodes": 2},
        {"unknown_versions": 1.0},
        {"reward_timeouts": 0.3},
    ):
        run, _ = synthetic(placement="async", **knobs)
        found = predict(workload_of(run), [("train_speed", "1.5")])
        assert found.step_s.low < found.step_s.value < found.step_s.high
        assert any("replayed as they were" in sentence for sentence in found.rests_on)


def test_batches_that_wait_for_each_other_are_replayed_so_with_versions_or_without(
    synthetic: Made,
) -> None:
    for knobs in ({}, {"unknown_versions": 1.0}):
        run, _ = synthetic(placement="async", **knobs)
        load = of(run)
        assert (load.placement, load.in_batches) == ("async", True)
        assert load.model_error == pytest.approx(0, abs=0.05)
        assert predict(workload_of(run), [("no_barrier", "1")]).gain.value > 1.1


@pytest.mark.parametrize("steps", [1, 4])
def test_without_trajectories_the_stages_are_taken_as_stated(tmp_path: Path, steps: int) -> None:
    run = run_of(tmp_path, process("driver", *turns(*[6] * steps)))
    load = of(run)
    assert load.steps == steps
    assert replay(load).step_s == pytest.approx(10)
    found = predict(workload_of(run), [("train_speed", "2")])
    assert found.step_s.value == pytest.approx(8)
    assert (found.step_s.high / found.step_s.low > 1.3) == (steps == 1)
    assert any(note.startswith(f"{steps} measured step") for note in found.rests_on)
    tails = predict(workload_of(run), [("placement", "async")])
    assert any(note.startswith("tail_share") for note in tails.rests_on)


def ahead(path: Path, rollout_s: float, train_s: float, begins_s: float = 0.0) -> Run:
    """A thread generates the next batch beside the learner, so long after its step began; weights
    move for 1 s at the end of a step."""
    step_s = max(begins_s + rollout_s, train_s) + 1
    steps = in_steps(
        step_s, (("step", 0), 0, step_s, 0), (Stage.TRAIN, 0, train_s, 0),
        (Stage.SYNC, step_s - 1, step_s, 0), (Stage.ROLLOUT, begins_s, begins_s + rollout_s, 1),
    )  # fmt: skip
    return run_of(path, process("driver", *steps))


def test_stages_that_run_beside_each_other_are_replayed_so(tmp_path: Path) -> None:
    source = workload_of(ahead(tmp_path, rollout_s=3, train_s=6))
    found = baseline(source)
    assert found.placement == "one-step-off"
    assert found.replayed_s == pytest.approx(7)
    # 4 s of training, 1 s of weights: the learner's speed counts in full.
    assert predict(source, [("train_speed", "1.5")]).step_s.value == pytest.approx(5)
    levers = {one.levers[0]: one for one in ranked(source)[0] if one.goodput_gain.value > 1.02}
    assert list(levers) == ["train_speed=1.5"]
    with pytest.raises(RltraceError, match="overlap already") as error:
        predict(source, [("placement", "async")])
    assert error.value.exit_code == CANNOT_TELL


def test_training_that_is_hidden_gains_nothing(tmp_path: Path) -> None:
    source = workload_of(ahead(tmp_path, rollout_s=6, train_s=3))
    assert predict(source, [("train_speed", "1.5")]).gain.value == pytest.approx(1)


def test_stages_that_overlap_in_part_or_do_not_add_up_predict_nothing(tmp_path: Path) -> None:
    with pytest.raises(RltraceError, match=r"overlap in part \(50 % of the shorter\)") as error:
        workload_of(ahead(tmp_path / "part", rollout_s=4, train_s=6, begins_s=4))
    assert error.value.exit_code == CANNOT_TELL
    in_turns = process("driver", *turns(5, 5, 5, 5))
    run = run_of(tmp_path, in_turns, settings={"placement": "one-step-off"})
    with pytest.raises(OffTheRun, match="off by -50 %"):
        predict(workload_of(run), [("train_speed", "2")])


@pytest.mark.parametrize(
    "move", [("no_barrier", "1"), ("partial_rollout", "1.5"), ("tail_cap", "p95")]
)
def test_a_tail_that_nobody_saw_is_not_taken_away(tmp_path: Path, move: tuple[str, str]) -> None:
    source = workload_of(run_of(tmp_path, process("driver", *turns(6, 6, 6, 6))))
    with pytest.raises(RltraceError, match="no trajectory was recorded") as error:
        predict(source, [move])
    assert error.value.exit_code == CANNOT_TELL


def one_process(path: Path, rest_s: float = 0.0) -> Run:
    """A plain loop: 6 s of generation, 4 s of training, and so much that is in no span."""
    step_s = 10 + rest_s
    steps = in_steps(step_s, (("step", 0), 0, step_s), (Stage.ROLLOUT, 0, 6), (Stage.TRAIN, 6, 10))
    return run_of(path, process("driver", *steps))


@pytest.mark.parametrize(
    "move",
    [
        ("placement", "one-step-off"),
        ("placement", "async"),
        ("placement", "disaggregated"),
        ("train_speed", "1000"),
        ("devices", "x1000"),
    ],
)
def test_time_in_no_span_does_not_go_away(tmp_path: Path, move: tuple[str, str]) -> None:
    run = one_process(tmp_path, rest_s=5.0)
    found = predict(workload_of(run), [move])
    assert found.step_s.high > 5
    same = predict(workload_of(one_process(tmp_path / "without")), [move])
    assert move[0] == "devices" or sum(same.devices.values()) == pytest.approx(1)  # one pool
    assert found.step_s.value >= same.step_s.value + (0 if "placement" in move else 4.9)
    assert "33 % of the step is not explained by the replay, and stays" in " ".join(found.rests_on)
    if move[1] in ("one-step-off", "async"):  # held up by it, or not: the range has both
        assert found.step_s.high >= same.step_s.value + 5


@pytest.mark.parametrize(
    ("spans", "says"),
    [
        ([], "no complete step"),
        ([(Stage.ROLLOUT, 0, 5)], "no complete step"),
        ([(("step", 0), 0, 5), (Stage.TRAIN, 0, 5)], "placement is not known|no generation"),
        ([(("step", 0), 0, -1), (Stage.ROLLOUT, 0, -1)], "no complete step"),
    ],
)
def test_what_cannot_be_replayed_is_said(tmp_path: Path, spans: Any, says: str) -> None:
    with pytest.raises(RltraceError, match=says) as error:
        workload_of(run_of(tmp_path, process("driver", *spans)))
    assert error.value.exit_code == CANNOT_TELL
