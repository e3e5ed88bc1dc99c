"""How old the samples were: one that several versions train on grows older with each."""

from __future__ import annotations

from pathlib import Path

import pytest

from rltrace.analysis.staleness import LagBar, staleness
from rltrace.testing.inside.analysis import LiveState, find_steps, goodput, lag_history, summarize
from rltrace.testing.inside.report import staleness_section
from rltrace.testing.inside.trace import Fate, Run, Stage
from rltrace.testing.made import at, process, rows, run_of
from tests.analysis.asking import ask, columns

LAST = 100


@pytest.fixture
def reused(tmp_path: Path) -> Run:
    """Three steps. Samples 1 and 2 are of version 5, the versions 5, 6 and 7 train on them; sample
    3 is of a version that nobody recorded, and 7 trains on it in two passes."""
    spans = [(("step", n), 10 * n, 10 * n + 9) for n in range(3)]
    learner = process("learner", *spans, *[(Stage.TRAIN, 10 * n, 10 * n + 8) for n in range(3)])
    rows(
        learner,
        "trajectories",
        start_s=[0.0] * 3,
        end_s=[1.0] * 3,
        trajectory=[1, 2, 3],
        first_version=[5, 5, -1],
        last_version=[5, 5, -1],
        response_tokens=[10, 20, 40],
    )
    rows(
        learner,
        "uses",
        time_s=[2.0, 2.0, 12.0, 12.0, 22.0, 22.0, 22.0, 23.0],
        trajectory=[1, 2, 1, 2, 1, 2, 3, 3],
        version=[5, 5, 6, 6, 7, 7, 7, 7],
        fate=[Fate.TRAINED] * 8,
        tokens=[10, 20, 10, 20, 10, 20, 40, 40],
    )
    return run_of(tmp_path, learner)


def test_each_version_that_trains_on_a_sample_is_a_use_with_its_lag(reused: Run) -> None:
    found = staleness(reused)
    bars = (LagBar(0, 2, 30), LagBar(1, 2, 30), LagBar(2, 2, 30), LagBar(None, 1, 40))
    assert found.by_first_token == found.by_last_token == bars
    assert (found.trajectories, found.known) == (3, 2)
    assert (found.uses, found.known_uses) == (7, 6)
    assert (found.mean_lag, found.p95_lag, found.largest_lag) == (1.0, 2.0, 2)
    assert (found.by_token.tokens, found.by_token.mean) == (130, 1.0)


def test_a_reused_sample_is_worth_its_tokens_once(reused: Run) -> None:
    found = goodput(reused, find_steps(reused, (at(0), at(29))), None)
    assert found is not None
    assert (found.trained.samples, found.trained.tokens) == (3, 70)


def test_all_views_of_lag_tell_the_same(reused: Run) -> None:
    counts = [(0, 2), (1, 2), (2, 2), (None, 1)]
    assert columns(ask(reused, "lag_histogram"), "lag", "samples") == counts
    window = LiveState(reused.path, last=LAST).snapshot().window
    assert window is not None
    assert window.lags is not None
    assert list(window.lags.by_lag) == counts
    assert [step.mean_lag for step in window.recent] == [0.0, 1.0, 2.0]
    history = lag_history(reused, find_steps(reused, (at(0), at(29))), LAST, LAST)
    assert history is not None
    assert [(step.counts, step.unknown) for step in history.steps] == [
        ((2, 0, 0), 0),
        ((0, 2, 0), 0),
        ((0, 0, 2), 1),
    ]


def test_the_report_says_that_samples_were_reused(reused: Run) -> None:
    summary = summarize(reused, predict=False)
    section = staleness_section(summary.staleness, summary.freshness)
    assert section.grid is not None
    assert "uses" in [column.title for column in section.grid.columns]
    assert any("3 trajectories were trained on 7 times" in note for note in section.notes)
