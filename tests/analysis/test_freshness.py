"""How old samples are, by sample and by token; ESS, clip share and KL at each lag, the mismatch
apart from it, and the bound that they allow."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rltrace.analysis.trajectories.freshness import (
    Freshness,
    LagPoint,
    RatioSums,
    freshness,
    lag_bound,
)
from rltrace.analysis.trajectories.freshness import point as point_of
from rltrace.analysis.trajectories.staleness import LagBar, Staleness, UnknownTokens, staleness
from rltrace.testing import process, run_of
from rltrace.testing.inside.analysis import Interval, LiveState, goodput, lag_history, summarize
from rltrace.testing.inside.report import staleness_section
from rltrace.testing.inside.trace import Fate, Stage
from rltrace.testing.inside.trace import OpenedRun as Run
from tests.analysis.asking import told
from tests.analysis.made import not_none, rows, steps_of


@pytest.fixture
def reused(tmp_path: Path) -> Run:
    """Three steps. Samples 1 and 2 are of version 5, the versions 5, 6 and 7 train on them; sample
    3 is of a version that nobody recorded, and 7 trains on it in two passes."""
    spans = [(("step", n), 10 * n, 10 * n + 9) for n in range(3)]
    learner = process("learner", *spans, *[(Stage.TRAIN, 10 * n, 10 * n + 8) for n in range(3)])
    version = [5, 5, -1]
    rows(learner, "trajectories", start_s=0.0, end_s=1.0, trajectory=[1, 2, 3],
         first_version=version, last_version=version, response_tokens=[10, 20, 40])  # fmt: skip
    rows(learner, "uses", time_s=[2.0, 2.0, 12.0, 12.0, 22.0, 22.0, 22.0, 23.0],
         trajectory=[1, 2, 1, 2, 1, 2, 3, 3], version=[5, 5, 6, 6, 7, 7, 7, 7],
         fate=Fate.TRAINED, tokens=[10, 20, 10, 20, 10, 20, 40, 40])  # fmt: skip
    return run_of(tmp_path, learner)


def test_each_version_that_trains_on_a_sample_is_a_use_with_its_lag(reused: Run) -> None:
    found = staleness(reused)
    bars = (LagBar(0, 2, 30), LagBar(1, 2, 30), LagBar(2, 2, 30), LagBar(None, 1, 40))
    assert found.by_first_token == found.by_last_token == bars
    assert (found.trajectories, found.known_trajectories, found.uses, found.known_uses) == (
        3,
        2,
        7,
        6,
    )
    assert (found.mean_lag, found.p95_lag, found.largest_lag) == (1.0, 2.0, 2)
    assert (found.by_token.tokens, found.by_token.mean_lag.value) == (130, 1.0)
    worth = not_none(goodput(reused, steps_of(reused), None)).trained
    assert (worth.samples, worth.tokens) == (3, 70)  # its tokens once


def test_all_views_of_lag_tell_the_same(reused: Run) -> None:
    counts = [(0, 2), (1, 2), (2, 2), (None, 1)]
    assert told(reused, "lag_histogram", "lag samples") == counts
    window = not_none(LiveState(reused.path, last=100).snapshot().window)
    assert list(not_none(window.lags).by_lag) == counts
    assert [step.mean_lag for step in window.recent] == [0.0, 1.0, 2.0]
    history = not_none(lag_history(reused, steps_of(reused), 100, 100))
    counted = [(step.counts, step.unknown) for step in history.steps]
    assert counted == [((2, 0, 0), 0), ((0, 2, 0), 0), ((0, 0, 2), 1)]
    summary = summarize(reused, predict=False)
    section = staleness_section(summary.staleness)
    assert "uses" in [column.title for column in not_none(section.grid).columns]
    notes = " ".join(section.notes)
    assert "3 trajectories were trained on 7 times" in notes
    assert "By token unknown: 31 %" in notes


def staleness_of(path: Path, *samples: tuple[int, int, int, int]) -> Staleness:
    """Samples `(trained by, first version, last version, tokens)`."""
    trained, first, last, tokens = (list(column) for column in zip(*samples, strict=True))
    ids = list(range(len(samples)))
    learner = process("learner")
    rows(learner, "trajectories", start_s=0, end_s=1, trajectory=ids, first_version=first,
         last_version=last, response_tokens=tokens)  # fmt: skip
    rows(learner, "uses", time_s=2, trajectory=ids, version=trained, fate=Fate.TRAINED)
    return staleness(run_of(path, learner))


def test_tokens_between_two_versions_are_a_range_and_spread_evenly(tmp_path: Path) -> None:
    stale = staleness_of(tmp_path, (5, 5, 5, 100), (5, 3, 5, 300))  # lags 0, and 0 to 2
    found = stale.by_token
    assert found.mixed_tokens == 300
    assert found.mean_lag == Interval(0.75, 0, 1.5)
    assert found.share(0, 0) == (0.25, 0.5, 1)
    assert found.share(1, 1) == found.share(2, 2) == (0, 0.25, 0.75)
    assert found.share(0, 2) == (1, 1, 1)  # wherever they are, they are in there
    assert stale.unknown_by_token == ()


@pytest.mark.parametrize(
    ("unknown", "why"),
    [
        ((-1, 3, 3), "the version that trained on them was not recorded"),
        ((5, -1, 3), "the version of their first token was not recorded"),
        ((5, 3, -1), "the version of their last token was not recorded"),
        ((5, 4, 3), "the version of their last token is older than that of their first"),
        ((5, -1, -1), "which versions generated them and trained on them was not recorded"),
        ((-1, 3, -1), "which versions generated them and trained on them was not recorded"),
    ],
)
def test_what_nobody_recorded_is_neither_old_nor_new_and_why_is_said(
    tmp_path: Path, unknown: tuple[int, int, int], why: str
) -> None:
    stale = staleness_of(tmp_path, (*unknown, 60), (5, 4, 4, 40))
    found = stale.by_token
    assert (found.tokens, found.known_tokens, found.mean_lag.value) == (100, 40, 1)
    assert found.share(0, 9)[1] == pytest.approx(0.4)
    assert stale.unknown_by_token == (UnknownTokens(why, 60),)


@pytest.mark.parametrize(("end_s", "later", "known"), [(1, 1, 100), (3, 1, 40), (1, -1, 0)])
def test_the_last_token_before_the_first_update_is_of_the_version_of_the_first(
    tmp_path: Path, end_s: int, later: int, known: int
) -> None:
    """A sample says version 0 of its first token, and its process knows none before the update of
    2 s; what ends after it is unknown, and all is where the process never knows one."""
    learner = process("learner")
    rows(learner, "trajectories", start_s=[0, 4], end_s=[end_s, 5], trajectory=[0, 1],
         first_version=[0, 1], last_version=[-1, later], response_tokens=[60, 40])  # fmt: skip
    rows(learner, "uses", time_s=6, trajectory=[0, 1], version=1, fate=Fate.TRAINED)
    rows(learner, "syncs", start_s=1.5, end_s=2, version=1)
    found = staleness(run_of(tmp_path, learner)).by_token
    assert (found.tokens, found.known_tokens) == (100, known)
    assert math.isnan(found.mean_lag.value) == (not known)


def test_the_truth_of_a_made_run_lies_within(synthetic: Any) -> None:
    run, truth = synthetic(placement="async", mixed=0.3, unknown_versions=0.1)
    found = staleness(run).by_token
    assert found.tokens == sum(truth.lag_tokens.values())
    assert found.known_tokens == found.tokens - truth.lag_tokens["unknown"]
    by_first = sum(int(k) * n for k, n in truth.lag_tokens.items() if k != "unknown")
    assert found.mean_lag.high == pytest.approx(by_first / found.known_tokens)
    assert found.mean_lag.low < found.mean_lag.value < found.mean_lag.high


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


def made(path: Path, steps: int = 6, samples: int = 12) -> tuple[Run, dict[int, list[Any]]]:
    """A run in which half of each step's samples have lag 0 and half lag 2, of ratios further off;
    with the step and the ratios of all tokens by lag."""
    rng = np.random.default_rng(1)
    learner, lags = process("learner"), [0, 2] * (samples // 2)
    drawn: dict[int, list[Any]] = {0: [], 2: []}
    for step in range(2, steps + 2):
        ids, versions = [1000 * step + i for i in range(samples)], [step - lag for lag in lags]
        far = [0.1 + lag / 4 for lag in lags]
        weights = [np.exp(d * rng.standard_normal(5 + i)) for i, d in enumerate(far)]
        for lag, w in zip(lags, weights, strict=True):
            drawn[lag].append((step, w))
        rows(learner, "trajectories", start_s=step, end_s=step + 0.5, trajectory=ids,
             first_version=versions, last_version=versions)  # fmt: skip
        rows(learner, "uses", time_s=step + 2.5, trajectory=ids, step=step, version=step,
             fate=Fate.TRAINED, **ratios(weights, lags))  # fmt: skip
    return run_of(path, learner), drawn


def ess(drawn: list[Any]) -> float:
    w = np.concatenate([weights for _, weights in drawn])
    return float(w.sum() ** 2 / (len(w) * (w**2).sum()))


def test_the_curve_is_that_of_the_tokens_and_the_weight_of_the_steps(tmp_path: Path) -> None:
    run, drawn = made(tmp_path)
    found, every = fresh(run), drawn[0] + drawn[2]
    assert [point.lag for point in found.curve] == [0, 2]
    for lag, point in zip((0, 2), found.curve, strict=True):
        tokens = np.concatenate([w for _, w in drawn[lag]])
        assert point.ess_share.value == pytest.approx(ess(drawn[lag]))
        assert point.ess_share.low < point.ess_share.value < point.ess_share.high
        assert point.kl_nats == pytest.approx(-np.log(tokens).mean())
        assert point.clip_share.value == pytest.approx(lag * len(drawn[lag]) / len(tokens))
        assert (point.trajectories, point.tokens) == (len(drawn[lag]), len(tokens))
        assert (point.steps, point.enough) == (6, True)
    assert not_none(found.overall).ess_share.value == pytest.approx(ess(every))
    by_step = [[one for one in every if one[0] == step] for step in range(2, 8)]
    sizes = [sum(len(w) for _, w in of_step) for of_step in by_step]
    assert found.effective_share.value == pytest.approx(
        np.average(list(map(ess, by_step)), weights=sizes)
    )
    assert found.effective_share.low < found.effective_share.value < found.effective_share.high
    # At lag 0 the mismatch stands alone, where a version is one update.
    for updates, alone in ((None, None), (1, True), (4, False)):
        run.processes[0].facts.update({"updates_per_version": updates} if updates else {})
        found = fresh(run)
        mismatch = not_none(found.mismatch)
        assert mismatch.alone is alone
        assert mismatch.point.ess_share.value == pytest.approx(ess(drawn[0]))
        assert found.unit.learner_steps == 1
        assert math.isnan(found.unit.optimizer_updates) == (updates is None)


def used(path: Path, first: list[int], last: list[int], **columns: list[Any]) -> Run:
    ids = list(range(len(first)))
    learner = process("learner")
    rows(learner, "trajectories", start_s=0, end_s=1, trajectory=ids, first_version=first,
         last_version=last, response_tokens=10)  # fmt: skip
    defaults = {"version": 3, "fate": Fate.TRAINED, "trajectory": ids}
    rows(learner, "uses", time_s=2, **{**defaults, **columns})
    return run_of(path, learner)


@pytest.mark.parametrize(
    ("first", "last", "uses", "curve", "of_mismatch"),
    [
        ([-1, 3, 3], [-1, 3, 3], {"version": [3, -1, 3]}, [(0, 1), (None, 2)], 1),
        ([3] * 5, [3] * 5, {"trajectory": [0, 0, 0, 1, -1]}, [(0, 2), (None, 1)], 2),
        ([3, 3], [3, 4], {}, [(0, 2)], 1),
    ],
    ids=["an unknown version is an unknown lag", "a step goes over a sample several times",
         "a version change under way says nothing of the mismatch"],
)  # fmt: skip
def test_a_sample_is_counted_once_at_a_lag_that_is_known(
    tmp_path: Path, first: list[int], last: list[int], uses: Any, curve: Any, of_mismatch: int
) -> None:
    n = len(first)
    found = fresh(used(tmp_path, first, last, **uses, **ratios([np.ones(10)] * n, [0] * n)))
    assert [(point.lag, point.trajectories) for point in found.curve] == curve
    assert not_none(found.mismatch).point.trajectories == of_mismatch


def test_ratios_that_are_infinite_are_counted_and_spoil_no_figure(tmp_path: Path) -> None:
    columns = ratios([np.ones(10)] * 2, [0, 0])
    columns["sum_w"][1] = columns["sum_w_squared"][1] = math.inf
    found = fresh(used(tmp_path, [3, 3], [3, 3], **columns))
    assert found.infinite_ratios == 1
    assert found.effective_share.value == pytest.approx(1.0)
    assert not_none(found.overall).tokens == 10
    one_step = fresh(made(tmp_path / "one", steps=1, samples=60)[0])
    assert all(math.isnan(point.ess_share.low) for point in one_step.curve)
    assert not one_step.bound.known
    assert "too few" in one_step.bound.because


def test_without_ratios_a_prior_is_stated_and_gives_a_range(tmp_path: Path) -> None:
    run = used(tmp_path, [3, 2, 0, -1], [3, 2, 0, -1])
    found = fresh(run)
    assert found.overall is None
    assert not found.bound.known
    assert (found.prior.objective, found.prior.assumed) == ("plain PPO", True)
    assert found.effective_share.value == 1.0
    # Lag 3 is doubtful for plain PPO and one lag is unknown: two of four samples are for sure.
    assert found.effective_share.low == pytest.approx(0.5)
    assert "prior for plain PPO" in found.effective_share_source
    assert math.isnan(fresh(used(tmp_path / "no lag", [-1], [-1])).effective_share.value)
    assert math.isnan(fresh(run_of(tmp_path / "none")).effective_share.value)
    run.processes[0].facts["objective"] = "decoupled"
    held = fresh(run)
    assert (held.prior.objective, held.prior.assumed) == ("decoupled PPO", False)
    assert held.effective_share.low == pytest.approx(0.75)


SURE = LagPoint(0, 100, 1000, 10, Interval(0.9, 0.85, 0.95), Interval(0.05, 0.04, 0.06), 0.01, True)
UNSURE = replace(SURE, ess_share=Interval(0.5, 0.4, 0.6))
BAD = replace(SURE, ess_share=Interval(0.2, 0.1, 0.3))
CLIPPED = replace(SURE, clip_share=Interval(0.3, 0.25, 0.35))
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
    assert (found.known, found.safe_lag, found.max_lag) == (told, sure, most)
    # Without the objective nobody knows that a lag does no harm; that one does is known.
    anyones = lag_bound(tuple(replace(p, lag=lag) for lag, p in enumerate(points)), assumed=True)
    assert anyones.max_lag == most
    assert anyones.known == (told and most is not None)
    far = lag_bound((replace(FEW, lag=1), replace(BAD, lag=12)))  # the lags between are open
    assert (far.safe_lag, far.max_lag) == (-1, 11)


@pytest.mark.filterwarnings("error")
def test_clip_shares_of_any_size_warn_of_nothing() -> None:
    """A damaged segment may hold them."""
    steps = np.arange(4.0)
    sums = RatioSums(*[np.ones(4)] * 12)
    sums = replace(sums, step=steps, clipped_tokens=np.array([1e200, -1e200, 3.0, 1.0]))
    assert point_of(sums, 0).clip_share.value == pytest.approx(1.0)
