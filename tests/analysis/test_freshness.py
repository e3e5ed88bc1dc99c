"""ESS, clip share and KL at each lag, the mismatch apart from it, and the bound that they allow."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rltrace.analysis.freshness import Freshness, freshness, lag_bound
from rltrace.testing.inside.analysis import LagPoint, RatioSums, staleness
from rltrace.testing.inside.analysis import point as point_of
from rltrace.testing.inside.trace import Fate, Run
from rltrace.testing.made import process, rows, run_of


def fresh(run: Run) -> Freshness:
    return freshness(run, staleness(run))


def ratios(weights: list[np.ndarray[Any, Any]], clipped: list[int]) -> dict[str, list[Any]]:
    """The columns of `uses` that say how the policy had moved, from the ratios of each token."""
    return {
        "tokens": [len(w) for w in weights],
        "mean_log_ratio": [float(np.log(w).mean()) for w in weights],
        "clip_share": [n / len(w) for n, w in zip(clipped, weights, strict=True)],
        "sum_w": [float(w.sum()) for w in weights],
        "sum_w_squared": [float((w**2).sum()) for w in weights],
    }


def made(path: Path, steps: int = 6, samples: int = 12, **facts: Any) -> tuple[Run, Any]:
    """A run in which half of each step's samples have lag 0 and half lag 2, of ratios further off;
    with the ratios of all tokens by lag."""
    rng = np.random.default_rng(1)
    learner = process("learner")
    drawn: dict[int, list[Any]] = {0: [], 2: []}
    for step in range(2, steps + 2):
        lags = [0, 2] * (samples // 2)
        ids = [1000 * step + i for i in range(samples)]
        weights = [
            np.exp((0.1 + lag / 4) * rng.standard_normal(5 + i)) for i, lag in enumerate(lags)
        ]
        for lag, w in zip(lags, weights, strict=True):
            drawn[lag].append((step, w))
        versions = [step - lag for lag in lags]
        rows(
            learner,
            "trajectories",
            start_s=[step] * samples,
            end_s=[step + 0.5] * samples,
            trajectory=ids,
            first_version=versions,
            last_version=versions,
        )
        rows(
            learner,
            "uses",
            time_s=[step + 2.5] * samples,
            trajectory=ids,
            step=[step] * samples,
            version=[step] * samples,
            fate=[Fate.TRAINED] * samples,
            **ratios(weights, lags),
        )
    run = run_of(path, learner)
    run.processes[0].facts.update(facts)
    return run, drawn


def ess(weights: list[np.ndarray[Any, Any]]) -> float:
    w = np.concatenate(weights)
    return float(w.sum() ** 2 / (len(w) * (w**2).sum()))


def test_the_curve_is_that_of_the_tokens(tmp_path: Path) -> None:
    run, drawn = made(tmp_path)
    found = fresh(run)
    assert [point.lag for point in found.curve] == [0, 2]
    for point in found.curve:
        assert point.lag is not None
        weights = [w for _, w in drawn[point.lag]]
        every = np.concatenate(weights)
        assert point.ess_share == pytest.approx(ess(weights))
        assert point.ess_low < point.ess_share < point.ess_high
        assert point.kl_nats == pytest.approx(-np.log(every).mean())
        assert point.clip_share == pytest.approx(point.lag * len(weights) / len(every))
        assert (point.trajectories, point.tokens) == (len(weights), len(every))
        assert (point.steps, point.enough) == (6, True)
    assert found.overall is not None
    assert found.overall.ess_share == pytest.approx(ess([w for d in drawn.values() for _, w in d]))


def test_the_weight_is_the_ess_of_a_step_in_the_mean_over_tokens(tmp_path: Path) -> None:
    run, drawn = made(tmp_path)
    of_step: dict[int, list[Any]] = {}
    for step, w in drawn[0] + drawn[2]:
        of_step.setdefault(step, []).append(w)
    sizes = [sum(map(len, weights)) for weights in of_step.values()]
    expected = np.average([ess(weights) for weights in of_step.values()], weights=sizes)
    found = fresh(run)
    assert found.weight == pytest.approx(expected)
    assert found.weight_low < found.weight < found.weight_high
    assert found.queue_s.mean == pytest.approx(2.0)


@pytest.mark.parametrize(("updates", "alone"), [(1, True), (4, False), (None, None)])
def test_at_lag_zero_the_mismatch_stands_alone_where_a_version_is_one_update(
    tmp_path: Path, updates: int | None, alone: bool | None
) -> None:
    run, drawn = made(tmp_path, **({} if updates is None else {"updates_per_version": updates}))
    found = fresh(run)
    assert found.mismatch is not None
    assert found.mismatch.alone is alone
    assert found.mismatch.point.ess_share == pytest.approx(ess([w for _, w in drawn[0]]))
    assert found.unit.learner_steps == 1
    assert math.isnan(found.unit.optimizer_updates) == (updates is None)


def used(path: Path, first: list[int], last: list[int], **columns: list[Any]) -> Run:
    n = len(first)
    learner = process("learner")
    rows(
        learner,
        "trajectories",
        start_s=[0] * n,
        end_s=[1] * n,
        trajectory=list(range(n)),
        first_version=first,
        last_version=last,
        response_tokens=[10] * n,
    )
    defaults: dict[str, list[Any]] = {"version": [3] * n, "fate": [Fate.TRAINED] * n}
    defaults["trajectory"] = list(range(n))
    rows(learner, "uses", time_s=[2] * n, **{**defaults, **columns})
    return run_of(path, learner)


def test_an_unknown_version_is_an_unknown_lag_and_no_mismatch(tmp_path: Path) -> None:
    w = [np.ones(10)] * 3
    found = fresh(used(tmp_path, [-1, 3, 3], [-1, 3, 3], version=[3, -1, 3], **ratios(w, [0] * 3)))
    assert [(p.lag, p.trajectories) for p in found.curve] == [(0, 1), (None, 2)]
    assert found.mismatch is not None
    assert found.mismatch.point.trajectories == 1


def test_a_sample_that_a_step_goes_over_several_times_is_one(tmp_path: Path) -> None:
    w = [np.ones(10)] * 5
    found = fresh(
        used(tmp_path, [3] * 5, [3] * 5, trajectory=[0, 0, 0, 1, -1], **ratios(w, [0] * 5))
    )
    points = {point.lag: point.trajectories for point in found.curve}
    assert points == {0: 2, None: 1}


def test_a_trajectory_that_saw_a_version_change_says_nothing_of_the_mismatch(
    tmp_path: Path,
) -> None:
    found = fresh(used(tmp_path, [3, 3], [3, 4], **ratios([np.ones(10)] * 2, [0, 0])))
    assert found.mismatch is not None
    assert found.mismatch.point.trajectories == 1


def test_ratios_that_are_infinite_are_counted_and_spoil_no_figure(tmp_path: Path) -> None:
    columns = ratios([np.ones(10)] * 2, [0, 0])
    columns["sum_w"][1] = columns["sum_w_squared"][1] = math.inf
    found = fresh(used(tmp_path, [3, 3], [3, 3], **columns))
    assert found.infinite_ratios == 1
    assert found.weight == pytest.approx(1.0)
    assert found.overall is not None
    assert found.overall.tokens == 10


def test_one_step_has_no_interval_and_gives_no_bound(tmp_path: Path) -> None:
    run, _ = made(tmp_path, steps=1, samples=60)
    found = fresh(run)
    assert all(math.isnan(point.ess_low) for point in found.curve)
    assert not found.bound.told
    assert "too few" in found.bound.because


def test_without_ratios_a_prior_is_stated_and_gives_a_range(tmp_path: Path) -> None:
    run = used(tmp_path, [3, 2, 0, -1], [3, 2, 0, -1])
    found = fresh(run)
    assert found.overall is None
    assert not found.bound.told
    assert (found.prior.objective, found.prior.assumed) == ("plain PPO", True)
    assert found.weight == 1.0
    # Lag 3 is doubtful for plain PPO and one lag is unknown: two of four samples are for sure.
    assert found.weight_low == pytest.approx(0.5)
    assert "prior for plain PPO" in found.weight_source
    run.processes[0].facts["objective"] = "decoupled"
    held = fresh(run)
    assert (held.prior.objective, held.prior.assumed) == ("decoupled PPO", False)
    assert held.weight_low == pytest.approx(0.75)


def test_without_ratios_and_lags_the_weight_is_unknown(tmp_path: Path) -> None:
    assert math.isnan(fresh(used(tmp_path, [-1], [-1])).weight)
    assert math.isnan(fresh(run_of(tmp_path / "none")).weight)


SURE = LagPoint(0, 100, 1000, 10, 0.9, 0.85, 0.95, 0.05, 0.04, 0.06, 0.01, True)
UNSURE = replace(SURE, ess_low=0.4, ess_share=0.5, ess_high=0.6)
BAD = replace(SURE, ess_low=0.1, ess_share=0.2, ess_high=0.3)
CLIPPED = replace(SURE, clip_share=0.3, clip_low=0.25, clip_high=0.35)
FEW = replace(BAD, enough=False)


@pytest.mark.parametrize(
    ("points", "told", "sure", "most"),
    [
        ([SURE, SURE, BAD], True, 1, 1),
        ([SURE, UNSURE, BAD], True, 0, 1),
        ([SURE, CLIPPED], True, 0, 0),
        ([BAD], True, -1, -1),
        ([SURE, SURE], True, 1, None),
        ([UNSURE, SURE], True, -1, None),
        ([SURE, FEW, SURE], True, 2, None),
        ([FEW, FEW], False, -1, None),
        ([], False, -1, None),
    ],
)
def test_the_bound_lies_between_what_surely_keeps_and_what_surely_breaks_the_limits(
    points: list[LagPoint], told: bool, sure: int, most: int | None
) -> None:
    found = lag_bound(tuple(replace(p, lag=lag) for lag, p in enumerate(points)))
    assert (found.told, found.sure, found.most) == (told, sure, most)


def test_lags_with_too_few_samples_leave_the_bound_open() -> None:
    found = lag_bound((replace(FEW, lag=1), replace(BAD, lag=12)))
    assert (found.sure, found.most) == (-1, 11)


@pytest.mark.filterwarnings("error")
def test_clip_shares_of_any_size_warn_of_nothing() -> None:
    """A damaged segment may hold them."""
    steps = np.arange(4.0)
    sums = RatioSums(*[np.ones(4)] * 12)
    found = point_of(
        replace(sums, step=steps, clipped_tokens=np.array([1e200, -1e200, 3.0, 1.0])), 0
    )
    assert found.clip_share == pytest.approx(1.0)
