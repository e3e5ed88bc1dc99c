"""The queries that come with rltrace tell what was learned from: versions, verdicts, signals."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from rltrace.testing.inside.trace import Fate, Finish, Outcome, Run
from rltrace.testing.made import process, rows, run_of, stating
from tests.analysis.asking import ask, columns


def trained(path: Path) -> Run:
    """Four samples were trained on by version 5, sample 4 in two passes; one was dropped. They were
    begun by versions 5, 3, 3, unknown and 0; sample 2 saw three versions."""
    worker = rows(
        process("rollout"),
        "trajectories",
        start_s=[0.0] * 5,
        end_s=[1.0, 3.0, 1.0, 1.0, 1.0],
        trajectory=[1, 2, 3, 4, 5],
        first_version=[5, 3, 3, -1, 0],
        last_version=[5, 5, 3, -1, 0],
        response_tokens=[100, 200, 300, 400, 500],
    )
    rows(
        worker,
        "uses",
        time_s=[10.0, 10.0, 10.0, 10.0, 11.0, 10.0],
        trajectory=[1, 2, 3, 4, 4, 5],
        version=[5, 5, 5, 5, 5, 5],
        fate=[Fate.TRAINED] * 5 + [Fate.STALE],
        tokens=[100, 200, 300, 400, 400, 500],
        mean_log_ratio=[0.0, 0.1, 0.2, math.nan, math.nan, 9.0],
        sum_w=[100.0, 200.0, 300.0, math.nan, math.nan, 9.0],
        sum_w_squared=[100.0, 400.0, 600.0, math.nan, math.nan, 9.0],
    )
    return run_of(path, worker)


def test_lag_is_of_what_was_trained_on_and_unknown_is_its_own(tmp_path: Path) -> None:
    found = ask(trained(tmp_path), "lag_histogram")
    wanted = ("lag", "samples", "tokens", "share_of_tokens")
    assert columns(found, *wanted) == [(0, 1, 100, 0.1), (2, 2, 500, 0.5), (None, 1, 400, 0.4)]


def test_lags_of_the_synthetic_run_are_the_truth(synthetic: Any) -> None:
    run, truth = synthetic(placement="async", unknown_versions=0.1)
    found = ask(run, "lag_histogram")
    named = {"unknown" if row["lag"] is None else str(row["lag"]): row for row in found}
    assert {lag: row["samples"] for lag, row in named.items()} == truth.lag_trajectories
    assert {lag: row["tokens"] for lag, row in named.items()} == truth.lag_tokens


def test_samples_of_several_versions_are_counted_by_how_many(tmp_path: Path) -> None:
    found = ask(trained(tmp_path), "mixed_versions")
    wanted = ("versions", "samples", "response_tokens", "p50_s")
    assert columns(found, *wanted) == [(1, 3, 900, 1), (3, 1, 200, 3), (None, 1, 400, 1)]


def test_what_is_left_of_stale_samples(tmp_path: Path) -> None:
    found = ask(trained(tmp_path), "off_policy_by_lag")
    wanted = ("lag", "uses", "mean_log_ratio", "effective_share")
    assert columns(found, *wanted) == [
        (0, 1, 0, 1),
        (2, 2, pytest.approx(0.16), pytest.approx(500**2 / 1000 / 500)),
        (None, 2, None, None),
    ]


def judged(path: Path) -> Run:
    """Groups A (rewards differ), B (all 0) and C (all 1) of two samples, D of one. A and B are
    trained on, C is dropped for it, D aborted and was never used."""
    group = {"A": 1, "B": 2, "C": 3, "D": 4}
    of = ["A", "A", "B", "B", "C", "C", "D"]
    worker = rows(
        process("rollout"),
        "trajectories",
        start_s=[0.0] * 7,
        end_s=[1.0, 1.0, 2.0, 3.0, 1.0, 1.0, 1.0],
        trajectory=list(range(1, 8)),
        group=[group[g] for g in of],
        prompt=[10 * group[g] for g in of],
        response_tokens=[10, 10, 20, 30, 5, 5, 70],
        finish=[Finish.STOP] * 6 + [Finish.ABORT],
    )
    rows(
        worker,
        "rewards",
        start_s=[1.0] * 6,
        end_s=[1.5, 1.5, 1.5, 1.5, 11.0, 2.0],
        trajectory=list(range(1, 7)),
        component=["math"] * 6,
        value=[0.0, 1.0, 0.0, 0.0, 1.0, 1.0],
        outcome=[Outcome.OK] * 4 + [Outcome.TIMEOUT, Outcome.ERROR],
    )
    rows(
        worker,
        "uses",
        time_s=[20.0] * 6,
        trajectory=list(range(1, 7)),
        step=[3, 3, 3, 3, 4, 4],
        fate=[Fate.TRAINED] * 4 + [Fate.ZERO_ADVANTAGE] * 2,
        tokens=[10, 10, 20, 30, 5, 5],
    )
    return run_of(path, worker)


def test_every_token_has_one_reason(tmp_path: Path) -> None:
    found = ask(judged(tmp_path), "useful_tokens_by_reason")
    assert columns(found, "reason", "samples", "tokens") == [
        ("useful", 2, 20),
        ("never used (abort)", 1, 70),
        ("trained, no signal in its group", 2, 50),
        ("zero-advantage", 2, 10),
    ]
    assert sum(row["share_of_tokens"] for row in found) == pytest.approx(1)


def test_useful_tokens_of_the_synthetic_run_are_the_truth(synthetic: Any) -> None:
    run, truth = synthetic(placement="async")
    found = {row["reason"]: row["tokens"] for row in ask(run, "useful_tokens_by_reason")}
    assert found["useful"] == truth.useful_tokens
    assert found["trained, no signal in its group"] == truth.zero_advantage_tokens
    assert found["stale"] == truth.tokens_by_fate["stale"]
    assert sum(found.values()) == truth.generated_tokens


def test_groups_without_a_signal_are_listed_with_their_cost(tmp_path: Path) -> None:
    found = ask(judged(tmp_path), "groups_without_signal")
    wanted = ("group", "prompt", "reward", "samples", "response_tokens", "generation_s", "step")
    assert columns(found, *wanted) == [(2, 20, 0, 2, 50, 5, 3), (3, 30, 1, 2, 10, 2, 4)]


def test_the_signal_of_each_step(tmp_path: Path) -> None:
    found = ask(judged(tmp_path), "signal_by_step")
    wanted = ("step", "groups", "with_signal", "share", "flat_reward", "flat_response_tokens")
    assert columns(found, *wanted) == [(3, 2, 1, 0.5, 0, 50), (4, 1, 0, 0, 1, 10)]


def test_prompts_that_nobody_solved(tmp_path: Path) -> None:
    found = ask(judged(tmp_path), "prompts_never_solved")
    assert columns(found, "prompt", "samples", "best_reward", "response_tokens") == [(20, 2, 0, 50)]


def test_the_reward_of_each_step_is_a_sum_of_components(tmp_path: Path) -> None:
    worker = rows(process("reward"), "uses", time_s=[9.0, 9.0], trajectory=[1, 2], step=[0, 0])
    rows(
        worker,
        "rewards",
        start_s=[1.0] * 4,
        end_s=[2.0] * 4,
        trajectory=[1, 1, 2, 2],
        component=["format", "math", "format", "math"],
        value=[0.5, 1.0, 0.5, 0.0],
    )
    run = run_of(tmp_path, worker)
    wanted = ("step", "samples", "reward", "lowest", "highest", "trained_share")
    assert columns(ask(run, "reward_by_step"), *wanted) == [(0, 2, 1.0, 0.5, 1.5, 0)]
    weighted = stating(run, {"reward_weights": {"format": 0.5, "math": 2.0}})
    assert columns(ask(weighted, "reward_by_step"), *wanted) == [(0, 2, 1.25, 0.25, 2.25, 0)]


def test_what_did_not_apply_adds_nothing_and_what_has_no_weight_neither(tmp_path: Path) -> None:
    worker = rows(process("reward"), "uses", time_s=[9.0] * 3, trajectory=[1, 2, 3], step=[0] * 3)
    rows(
        worker,
        "rewards",
        start_s=[1.0] * 5,
        end_s=[2.0] * 5,
        trajectory=[1, 1, 2, 2, 3],
        component=["math", "length", "math", "length", "math"],
        value=[1.0, math.inf, math.nan, 7.0, math.nan],
    )
    run = stating(run_of(tmp_path, worker), {"reward_weights": {"math": 2.0, "length": 0.0}})
    wanted = ("step", "samples", "reward", "lowest", "highest")
    assert columns(ask(run, "reward_by_step"), *wanted) == [(0, 3, 1.0, 0.0, 2.0)]


def test_the_tail_of_verdicts_and_which_failed(tmp_path: Path) -> None:
    run = judged(tmp_path)
    (latency,) = ask(run, "reward_latency_tail")
    assert (latency["component"], latency["verdicts"], latency["max_s"]) == ("math", 6, 10)
    assert latency["total_s"] == 13
    wanted = ("component", "verdicts", "timeouts", "errors", "failed_share", "failed_s")
    (failed,) = columns(ask(run, "verifier_errors"), *wanted)
    assert failed == ("math", 6, 1, 1, pytest.approx(1 / 3), 11)
