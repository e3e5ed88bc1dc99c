"""The ledger: every sample that ended is trained on, dropped or left over, and nothing twice."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

from rltrace.testing.inside.trainer import (
    Request,
    Sample,
    TrainerConfig,
    TrainReport,
    Trajectory,
    use_of,
)
from rltrace.trainer.ledger import Ledger, RatioRecord

RATIOS = {"mean_log_ratio": 0.0, "clip_share": 0.5, "sum_w": 3.0, "sum_w_squared": 3.0}


def trajectory(
    name: str, tokens: int = 3, first: int = 0, last: int = 0, finish: str = "stop"
) -> Trajectory:
    return Trajectory(
        request=Request(f"0/0/{name}", "0/0", 0, (2, 3, 1)),
        tokens=np.full(tokens + 1, 2),
        generated=np.array([True] * tokens + [False]),  # a tool said the last one
        log_probs=np.zeros(tokens, dtype=np.float32),
        first_version=first,
        last_version=last,
        finish=finish,
        turns=1,
        env_seconds=0.0,
        preemptions=0,
    )


def report(*trained: Trajectory, version: int, step: int = 0) -> TrainReport:
    uses = [use_of(t, "trained", version, **RATIOS) for t in trained]
    return TrainReport(step, version, uses, 2, sum(u.tokens for u in uses), loss=0.5, kl=0.1)


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger(TrainerConfig(), parameters=10)
    ledger.begin()
    return ledger


def test_a_step_says_what_ended_what_was_trained_on_and_what_was_not(ledger: Ledger) -> None:
    ended = [
        trajectory("a", first=1, last=3),
        trajectory("b", first=3, last=3),
        trajectory("c", finish="abort", first=-1, last=-1, tokens=0),
        trajectory("d", finish="length", tokens=5),
        trajectory("e"),
    ]
    ledger.generated(ended)
    ledger.scored([Sample(ended[0], reward=1.0), Sample(ended[3], reward=0.5), Sample(ended[4])])
    ledger.drop(ended[2], "filtered", version=4)
    ledger.drop(ended[3], "truncated", version=4)
    ledger.trained(report(ended[0], ended[1], version=4))
    ledger.received(100)
    ledger.received(100)
    ledger.lost(4)
    record = ledger.close(step=7, version=4)
    assert (record.step, record.version, record.samples) == (7, 4, 5)
    assert record.finish == {"stop": 3, "abort": 1, "length": 1}
    assert record.reward == 0.75  # of those that have a verdict
    assert (record.prompt_tokens, record.tokens_generated, record.tokens_trained) == (15, 14, 6)
    assert record.lags == {3: 1, 1: 1}
    assert record.lags_in_flight == {2: 1, 0: 1}
    assert record.lags_in_queue == {1: 2}
    assert record.drops == {"filtered": 1, "truncated": 1}
    assert (record.sync_bytes, record.lost, record.optimizer_updates) == (200, 4, 2)
    assert (record.loss, record.kl) == (0.5, 0.1)
    assert ledger.unused == 1


def test_what_a_step_counts_is_not_counted_again_by_the_next(ledger: Ledger) -> None:
    ledger.generated([trajectory("a")])
    ledger.trained(report(trajectory("a"), version=0))
    ledger.close(0, 0)
    empty = ledger.close(1, 1)
    assert (empty.samples, empty.tokens_generated, empty.optimizer_updates) == (0, 0, 0)
    assert (empty.finish, empty.lags, empty.drops) == ({}, {}, {})
    assert (empty.reward, empty.loss, empty.kl, empty.ess, empty.clip_share) == (None,) * 5
    assert [record.step for record in ledger.steps] == [0, 1]
    assert ledger.unused == 0


def test_what_comes_in_after_the_last_step_is_written_down_apart(ledger: Ledger) -> None:
    ledger.close(0, 0)
    ledger.generated([trajectory("a", finish="abort"), trajectory("b")])
    ledger.drop(trajectory("b"), "stale", 1)
    seconds = ledger.seconds
    ledger.end(version=1)
    assert ledger.after is not None
    assert (ledger.after.step, ledger.after.samples, ledger.after.drops) == (-1, 2, {"stale": 1})
    assert ledger.unused == 1
    assert len(ledger.steps) == 1
    assert ledger.seconds == seconds  # the run took as long as its steps


def test_a_sample_without_a_token_has_no_lag(ledger: Ledger) -> None:
    use = ledger.drop(trajectory("a", tokens=0, first=-1, last=-1), "filtered", version=9)
    assert (use.lag, use.in_flight, use.in_queue, use.tokens) == (0, 0, 0, 0)
    assert math.isnan(use.sum_w)


def test_the_effective_sample_size_is_that_of_all_trained_tokens(ledger: Ledger) -> None:
    """(Σw)² / (n Σw²): 1 on policy, less where weights differ."""
    one, other = trajectory("a", tokens=2), trajectory("b", tokens=1)
    uses = [
        use_of(one, "trained", 0, mean_log_ratio=0, clip_share=0.5, sum_w=3.0, sum_w_squared=5.0),
        use_of(other, "trained", 0, mean_log_ratio=0, clip_share=0, sum_w=1.0, sum_w_squared=1.0),
    ]
    ledger.trained(TrainReport(0, 0, uses, 1, 3, 0.0, 0.0))
    record = ledger.close(0, 0)
    assert record.ess == pytest.approx(4**2 / (3 * 6))
    assert record.clip_share == pytest.approx(1 / 3)


def test_ratios_are_booked_by_lag(ledger: Ledger) -> None:
    uses = [
        use_of(trajectory("a", tokens=2, first=first, last=first), "trained", 5, **ratio)
        for first, ratio in (
            (5, {"mean_log_ratio": 0.0, "clip_share": 0.0, "sum_w": 2.0, "sum_w_squared": 2.0}),
            (3, {"mean_log_ratio": 0.1, "clip_share": 0.5, "sum_w": 3.0, "sum_w_squared": 5.0}),
            (3, {"mean_log_ratio": 0.1, "clip_share": 1.0, "sum_w": 4.0, "sum_w_squared": 9.0}),
        )
    ]
    ledger.trained(TrainReport(0, 5, uses, 1, 6, 0.0, 0.0))
    assert ledger.close(0, 5).ratios == {
        0: RatioRecord(tokens=2, clipped=0.0, sum_w=2.0, sum_w_squared=2.0),
        2: RatioRecord(tokens=4, clipped=3.0, sum_w=7.0, sum_w_squared=14.0),
    }


def test_a_group_has_a_signal_where_its_verdicts_differ(ledger: Ledger) -> None:
    def judged(group: str, *rewards: float) -> list[Sample]:
        return [
            Sample(
                dataclasses.replace(
                    trajectory("a"), request=Request(f"{group}/{i}", group, 0, (2,))
                ),
                reward=reward,
            )
            for i, reward in enumerate(rewards)
        ]

    nan = float("nan")
    for samples in (judged("a", 1, 0), judged("b", 1, 1, nan), judged("c", 0, nan)):
        ledger.scored(samples)
    record = ledger.close(0, 0)
    assert (record.groups, record.groups_with_signal) == (2, 1)


def test_the_rise_compares_the_first_steps_with_the_last_that_had_verdicts(ledger: Ledger) -> None:
    assert math.isnan(ledger.reward_rise())
    for number, reward in enumerate([0.0, 0.2, None, 0.6, 0.8, None]):
        if reward is not None:
            ledger.scored([Sample(trajectory("a"), reward=reward)])
        ledger.close(number, number)
    assert ledger.reward_rise(window=2) == pytest.approx(0.6)
    assert ledger.reward_rise(window=50) == pytest.approx(0.6)  # half against half


def test_the_ledger_is_json_with_every_step_and_setting(ledger: Ledger) -> None:
    ledger.generated([trajectory("a", first=0, last=0)])
    ledger.trained(report(trajectory("a"), version=2))
    ledger.close(0, 2)
    ledger.end(3)
    written = json.loads(ledger.to_json())
    assert written["config"] == dataclasses.asdict(ledger.config)
    assert written["steps"][0]["lags"] == {"2": 1}
    assert written["after"]["step"] == -1
    assert written["unused"] == 0


def test_the_ledger_of_a_run_that_diverged_is_json_all_the_same(ledger: Ledger) -> None:
    one = trajectory("0")
    ledger.generated([one])
    nan = float("nan")
    ledger.trained(dataclasses.replace(report(one, version=0), loss=nan, kl=float("inf")))
    ledger.close(0, 0)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    (step,) = json.loads(ledger.to_json(), parse_constant=refuse)["steps"]
    assert step["loss"] is None
    assert step["kl"] is None
    assert step["tokens_trained"] == 3
