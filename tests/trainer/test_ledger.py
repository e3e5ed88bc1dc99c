"""The ledger: every sample that ended is trained on, dropped or left over, and nothing twice."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

from rltrace.testing.inside.trainer import (
    Sample,
    TrainerConfig,
    TrainReport,
    Trajectory,
    use_of,
)
from rltrace.trainer.ledger import Ledger, RatioRecord
from tests.trainer import local

RATIOS = {"mean_log_ratio": 0.0, "clip_share": 0.5, "sum_w": 3.0, "sum_w_squared": 3.0}


def trajectory(
    name: str, tokens: int = 3, first: int = 0, last: int = 0, finish: str = "stop"
) -> Trajectory:
    """A tool said its last token."""
    return local.trajectory(
        f"0/0/{name}",
        tokens=[2] * (tokens + 1),
        generated=np.array([True] * tokens + [False]),
        log_probs=np.zeros(tokens, dtype=np.float32),
        first_version=first,
        last_version=last,
        finish=finish,
    )


def report(*trained: Trajectory, version: int) -> TrainReport:
    uses = [use_of(t, "trained", version, **RATIOS) for t in trained]
    return TrainReport(uses, 2, loss=0.5, kl=0.1)


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
    ledger.drop([ended[2]], "filtered", version=4)
    ledger.drop([ended[3]], "truncated", version=4)
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


def test_what_a_step_counts_is_not_counted_again_and_what_comes_after_the_last_is_apart(
    ledger: Ledger,
) -> None:
    ledger.generated([trajectory("a")])
    ledger.trained(report(trajectory("a"), version=0))
    ledger.close(0, 0)
    empty = ledger.close(1, 1)
    assert (empty.samples, empty.tokens_generated, empty.optimizer_updates) == (0, 0, 0)
    assert (empty.finish, empty.lags, empty.drops) == ({}, {}, {})
    assert (empty.reward, empty.loss, empty.kl, empty.ess, empty.clip_share) == (None,) * 5
    assert ledger.unused == 0
    ledger.generated([trajectory("b", finish="abort"), trajectory("c")])
    ledger.drop([trajectory("c")], "stale", 1)
    seconds = ledger.seconds
    ledger.end(version=1)
    assert ledger.after is not None
    assert (ledger.after.step, ledger.after.samples, ledger.after.drops) == (-1, 2, {"stale": 1})
    assert ledger.unused == 1
    assert [record.step for record in ledger.steps] == [0, 1]
    assert ledger.seconds == seconds  # the run took as long as its steps


def test_a_sample_without_a_token_has_no_lag(ledger: Ledger) -> None:
    (use,) = ledger.drop([trajectory("a", tokens=0, first=-1, last=-1)], "filtered", version=9)
    assert (use.lag, use.in_flight, use.in_queue, use.tokens) == (0, 0, 0, 0)
    assert math.isnan(use.sum_w)


def test_ratios_are_booked_by_lag_and_weigh_all_trained_tokens_the_same(ledger: Ledger) -> None:
    """The effective sample size is (Σw)² / (n Σw²): 1 on policy, less where weights differ."""
    uses = [
        use_of(
            trajectory("a", tokens=tokens, first=first, last=first),
            "trained",
            version=5,
            mean_log_ratio=0.1,
            clip_share=clipped,
            sum_w=sum_w,
            sum_w_squared=squares,
        )
        for tokens, first, clipped, sum_w, squares in (
            (2, 5, 0.0, 2.0, 2.0),
            (2, 3, 0.5, 3.0, 5.0),
            (1, 3, 1.0, 4.0, 9.0),
        )
    ]
    ledger.trained(TrainReport(uses, 1, 0.0, 0.0))
    record = ledger.close(0, 5)
    assert record.ratios == {
        0: RatioRecord(tokens=2, clipped=0.0, sum_w=2.0, sum_w_squared=2.0),
        2: RatioRecord(tokens=3, clipped=2.0, sum_w=7.0, sum_w_squared=14.0),
    }
    assert record.ess == pytest.approx(9**2 / (5 * 16))
    assert record.clip_share == pytest.approx(2 / 5)


def test_a_group_has_a_signal_where_its_verdicts_differ(ledger: Ledger) -> None:
    for group, rewards in {"a": (1, 0), "b": (1, 1, math.nan), "c": (0, math.nan)}.items():
        one = dataclasses.replace(trajectory("a"), group=group)
        ledger.scored([Sample(one, reward) for reward in rewards])
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


def test_the_ledger_is_json_with_every_step_and_setting_even_if_the_run_diverged(
    ledger: Ledger,
) -> None:
    one = trajectory("a")
    ledger.generated([one])
    diverged = dataclasses.replace(report(one, version=2), loss=math.nan, kl=math.inf)
    ledger.trained(diverged)
    ledger.close(0, 2)
    ledger.end(3)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    written = json.loads(ledger.to_json(), parse_constant=refuse)
    assert written["config"] == dataclasses.asdict(ledger.config)
    (step,) = written["steps"]
    assert (step["loss"], step["kl"]) == (None, None)
    assert (step["tokens_trained"], step["lags"]) == (3, {"2": 1})
    assert (written["after"]["step"], written["unused"]) == (-1, 0)
