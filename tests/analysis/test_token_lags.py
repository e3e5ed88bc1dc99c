"""Single tokens of trajectories that saw versions change: a range, never a guess."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.analysis.token_lags import TokenLags
from rltrace.testing.inside.analysis import Staleness, UnknownTokens, staleness, summarize
from rltrace.testing.inside.report import staleness_section
from rltrace.testing.inside.trace import Fate
from rltrace.testing.made import process, rows, run_of


def lags_of(path: Path, *samples: tuple[int, int, int, int]) -> TokenLags:
    """The lags of tokens of samples, see `staleness_of`."""
    return staleness_of(path, *samples).by_token


def staleness_of(path: Path, *samples: tuple[int, int, int, int]) -> Staleness:
    """Samples `(trained by, first version, last version, tokens)`."""
    trained, first, last, tokens = (list(column) for column in zip(*samples, strict=True))
    n = len(samples)
    learner = process("learner")
    rows(learner, "trajectories", start_s=[0] * n, end_s=[1] * n, trajectory=list(range(n)),
         first_version=first, last_version=last, response_tokens=tokens)  # fmt: skip
    rows(learner, "uses", time_s=[2] * n, trajectory=list(range(n)), version=trained,
         fate=[Fate.TRAINED] * n)  # fmt: skip
    return staleness(run_of(path, learner))


def test_tokens_of_one_version_have_one_lag(tmp_path: Path) -> None:
    found = lags_of(tmp_path, (5, 5, 5, 100), (5, 3, 3, 300))
    assert (found.mean_low, found.mean, found.mean_high) == (1.5, 1.5, 1.5)
    assert found.share(0, 0) == (0.25, 0.25, 0.25)
    assert found.share(1, 1) == (0, 0, 0)
    assert found.mixed_tokens == 0


def test_tokens_between_two_versions_are_a_range_and_spread_evenly(tmp_path: Path) -> None:
    found = lags_of(tmp_path, (5, 5, 5, 100), (5, 3, 5, 300))  # lags 0, and 0 to 2
    assert found.mixed_tokens == 300
    assert (found.mean_low, found.mean, found.mean_high) == (0, 0.75, 1.5)
    assert found.share(0, 0) == (0.25, 0.5, 1)
    assert found.share(2, 2) == (0, 0.25, 0.75)
    assert found.share(0, 2) == (1, 1, 1)  # wherever they are, they are in there


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
    assert (found.tokens, found.known_tokens, found.mean) == (100, 40, 1)
    assert found.share(0, 9)[1] == pytest.approx(0.4)
    assert stale.unknown_by_token == (UnknownTokens(why, 60),)
    summary = summarize(rltrace.open_run(tmp_path / "run"), predict=False)
    notes = staleness_section(summary.staleness, summary.freshness).notes
    assert f"By token unknown: 60 %, {why}." in notes


def test_where_the_lag_of_each_token_is_known_nothing_is_said_of_others(tmp_path: Path) -> None:
    assert staleness_of(tmp_path, (5, 3, 5, 60), (5, 4, 4, 40)).unknown_by_token == ()


@pytest.mark.parametrize(("end_s", "later", "known"), [(1, 1, 100), (3, 1, 40), (1, -1, 0)])
def test_the_last_token_before_the_first_update_is_of_the_version_of_the_first(
    tmp_path: Path, end_s: int, later: int, known: int
) -> None:
    """A sample says version 0 of its first token, and its process knows none before the update of
    2 s; what ends after it is unknown, and all is where the process never knows one."""
    learner = process("learner")
    rows(learner, "trajectories", start_s=[0, 4], end_s=[end_s, 5], trajectory=[0, 1],
         first_version=[0, 1], last_version=[-1, later], response_tokens=[60, 40])  # fmt: skip
    rows(learner, "uses", time_s=[6, 6], trajectory=[0, 1], version=[1, 1],
         fate=[Fate.TRAINED] * 2)  # fmt: skip
    rows(learner, "syncs", start_s=[1.5], end_s=[2], version=[1])
    found = staleness(run_of(tmp_path, learner)).by_token
    assert (found.tokens, found.known_tokens) == (100, known)


def test_without_any_version_there_is_no_mean(tmp_path: Path) -> None:
    found = lags_of(tmp_path, (-1, -1, -1, 60))
    assert (found.tokens, found.known_tokens) == (60, 0)
    assert math.isnan(found.mean)


def test_the_truth_of_a_made_run_lies_within(synthetic: Any) -> None:
    run, truth = synthetic(placement="async", mixed=0.3, unknown_versions=0.1)
    found = staleness(run).by_token
    assert found.tokens == sum(truth.lag_tokens.values())
    assert found.known_tokens == found.tokens - truth.lag_tokens["unknown"]
    by_first = sum(int(k) * n for k, n in truth.lag_tokens.items() if k != "unknown")
    assert found.mean_high == pytest.approx(by_first / found.known_tokens)
    assert found.mean_low < found.mean < found.mean_high
