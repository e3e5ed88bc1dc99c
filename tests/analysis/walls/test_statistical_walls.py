"""Walls that cost tokens: freshness, sparse reward, token fidelity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rltrace.testing.handmade_runs import between, process
from rltrace.testing.inside.analysis import (
    FRESHNESS,
    LEARNER,
    OBSERVABILITY,
    SPARSE_REWARD,
    Summary,
)
from rltrace.testing.inside.trace import Stage
from tests.analysis.walls.walled import (
    STEP_S,
    STEPS,
    first,
    job,
    samples,
    summary_of,
    uses,
    verdicts,
    walls_of,
)

EACH = 40


def run_with(path: Path, of_use: dict[str, Any], **of_sample: Any) -> Summary:
    """Steps with 4 s of generation and 6 s of training, of 40 samples each."""
    rollout = samples(process("rollout"), [4.0] * EACH, **of_sample)
    learner = uses(process("learner"), EACH, **of_use)
    return summary_of(path, job(rollout=4, train=6), rollout, learner)


def ratios(ess: float) -> dict[str, Any]:
    """Sums of w and w² of 100 tokens with that effective sample size."""
    return {"sum_w": 100.0, "sum_w_squared": 100.0 / ess, "clip_share": 0.3}


def lagged(lag: int) -> dict[str, Any]:
    return {"version": lambda n, _: n + lag}


def test_freshness_costs_the_tokens_that_do_not_count(tmp_path: Path) -> None:
    found = run_with(tmp_path, ratios(0.25) | lagged(8))
    wall = walls_of(found)[FRESHNESS]
    assert wall.cost.share == pytest.approx(0.75)
    assert first(found) == FRESHNESS
    told = {one.name: one.value for one in wall.evidence}
    assert told["lag, mean"] == 8
    assert told["tokens that count (ESS)"] == pytest.approx(0.25)


def test_ratios_at_lag_zero_are_no_lack_of_freshness(tmp_path: Path) -> None:
    found = run_with(tmp_path, ratios(0.25))
    assert walls_of(found)[FRESHNESS].cost.share == 0
    assert first(found) == LEARNER


LOST = {"token_ids": 0, "logprobs": 0}
KEPT = {"token_ids": 1, "logprobs": 1}


def test_what_was_not_kept_costs_its_tokens_and_hides_the_lag(tmp_path: Path) -> None:
    found = run_with(tmp_path, ratios(1.0) | lagged(1), **LOST)
    walls = walls_of(found)
    assert first(found) == OBSERVABILITY
    assert walls[OBSERVABILITY].cost.share == 1
    assert walls[FRESHNESS].confidence == "cannot tell"


def test_what_was_kept_costs_nothing(tmp_path: Path) -> None:
    found = run_with(tmp_path, ratios(1.0) | lagged(1), **KEPT)
    assert walls_of(found)[OBSERVABILITY].cost.share == 0
    assert first(found) == LEARNER


def test_lost_log_probs_at_lag_zero_cost_the_pass_that_stands_in(tmp_path: Path) -> None:
    rollout = samples(process("rollout"), [3.0] * EACH, token_ids=1, logprobs=0)
    learner = uses(process("learner"), EACH)
    found = summary_of(tmp_path, job(rollout=3, logprob=2, train=5), rollout, learner)
    walls = walls_of(found)
    assert walls[OBSERVABILITY].cost.share == pytest.approx(0.2)
    assert walls[LEARNER].cost.share == pytest.approx(0.5)


def with_pass(path: Path, at_s: float, version: int) -> Summary:
    """Samples of weights n that are trained on 2 updates later, with a log-prob pass over them at
    `at_s` of their step, under weights `n + version`."""
    driver = job(rollout=3, train=5)
    for n in range(STEPS):
        start_s = n * STEP_S + at_s
        driver.span(between(start_s, start_s + 1), "logprob", Stage.LOGPROB, n + version)
    rollout = samples(process("rollout"), [3.0] * EACH, token_ids=1, logprobs=0)
    learner = uses(process("learner"), EACH, **lagged(2))
    return summary_of(path, driver, rollout, learner)


def test_log_probs_made_anew_under_the_weights_that_sampled_are_not_lost(tmp_path: Path) -> None:
    """As TRL makes them where one generation serves several updates."""
    found = with_pass(tmp_path, 8.5, 0)
    wall = walls_of(found)[OBSERVABILITY]
    told = {one.name: one.value for one in wall.evidence}
    assert told["tokens with a ratio that cannot be trusted"] == 0
    assert wall.cost.share == pytest.approx(0.1)  # what the pass takes


@pytest.mark.parametrize(
    ("at_s", "version"),
    [
        pytest.param(8.5, 2, id="under later weights"),
        pytest.param(8.5, 1, id="after an update"),
        pytest.param(1.0, 0, id="before the samples were there"),
        pytest.param(9.95, 0, id="after they were trained on"),
    ],
)
def test_log_probs_of_no_pass_under_the_weights_that_sampled_are_lost(
    tmp_path: Path, at_s: float, version: int
) -> None:
    assert walls_of(with_pass(tmp_path, at_s, version))[OBSERVABILITY].cost.share == 1


UNVERSIONED = {"first_version": -1, "last_version": -1}


@pytest.mark.parametrize(
    ("of_use", "of_sample", "wall", "missing"),
    [
        (lagged(8), {}, FRESHNESS, "ratio statistics"),
        (ratios(0.25), UNVERSIONED, FRESHNESS, "version"),  # no lag of zero
        ({}, {"token_ids": 1, "logprobs": 0, "first_version": -1}, OBSERVABILITY, "version"),
        ({}, {}, OBSERVABILITY, ""),
    ],
    ids=["lag without ratios", "no versions", "lost at an unknown lag", "nobody says what is kept"],
)
def test_what_was_not_recorded_cannot_be_told(
    tmp_path: Path, of_use: dict[str, Any], of_sample: dict[str, Any], wall: str, missing: str
) -> None:
    found = walls_of(run_with(tmp_path, of_use, **of_sample))[wall]
    assert (found.confidence, found.cost.known) == ("cannot tell", False)
    assert missing in found.missing[0]


def judged(path: Path, value: Any) -> Summary:
    rollout = samples(process("rollout"), [4.0] * EACH)
    learner = uses(process("learner"), EACH)
    judge = verdicts(process("reward"), EACH, value)
    return summary_of(path, job(rollout=4, train=6), rollout, learner, judge, predict=True)


def test_groups_in_which_all_fail_are_sparse_reward(tmp_path: Path) -> None:
    """Groups of 4: in one of ten a single sample succeeds."""
    found = judged(tmp_path, lambda _, i: i == 0)
    wall = walls_of(found)[SPARSE_REWARD]
    assert wall.cost.share == pytest.approx(0.9)
    assert first(found) == SPARSE_REWARD
    told = {one.name: one.value for one in wall.evidence}
    assert told["groups with a signal"] == pytest.approx(0.1)
    assert found.signal is not None
    assert found.signal.share == pytest.approx(told["groups with a signal"])
    more = next(fix for fix in found.verdict.fixes if fix.lever == "samples=x2")
    assert more.gain is not None
    assert more.gain.value < 1  # a step takes longer, and pays nonetheless
    assert more.goodput_gain is not None
    assert 1 < more.goodput_gain.low < more.goodput_gain.value < more.goodput_gain.high


def test_groups_in_which_all_succeed_teach_as_little_and_other_prompts_are_the_move(
    tmp_path: Path,
) -> None:
    found = judged(tmp_path, lambda _, i: i != 0)
    wall = walls_of(found)[SPARSE_REWARD]
    assert (first(found), wall.cost.share) == (SPARSE_REWARD, pytest.approx(0.9))
    assert len([fix for fix in found.verdict.fixes if fix.wall == SPARSE_REWARD]) >= 3
    told = {one.name: one.value for one in wall.evidence}
    assert told["groups in which all succeed"] == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("value", "because"),
    [
        pytest.param(lambda _, __: 0.25, "the same reward (0.25)", id="one"),
        pytest.param(lambda _, i: i // 8 % 2, "all rewards are equal", id="by group"),
        pytest.param(lambda _, __: 0, "all samples fail", id="failure"),
    ],
)
def test_where_no_group_has_a_signal_nothing_is_learned(
    tmp_path: Path, value: Any, because: str
) -> None:
    found = judged(tmp_path, value)
    assert found.signal is not None
    assert found.signal.with_signal == 0
    wall = walls_of(found)[SPARSE_REWARD]
    assert (first(found), wall.cost.share) == (SPARSE_REWARD, 1)
    assert because in wall.because
    of_success = any("succeed" in one.name for one in wall.evidence)
    assert of_success == ("0.25" not in because)  # one reward for all is none
    assert not [fix.move for fix in found.verdict.fixes if fix.goodput_gain is not None]
    assert not found.verdict.do_nothing


def test_one_group_that_was_judged_is_weak_evidence(tmp_path: Path) -> None:
    rollout = samples(process("rollout"), [4.0] * 4, group=lambda n, _: -1 if n else 1)
    made = verdicts(process("reward"), 4, lambda _, i: 0)
    wall = walls_of(summary_of(tmp_path, job(rollout=4, train=6), rollout, made))[SPARSE_REWARD]
    assert wall.confidence == "weak"
