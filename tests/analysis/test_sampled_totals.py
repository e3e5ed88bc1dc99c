"""The interval of a total that is scaled from a share of the samples holds the true total."""

from __future__ import annotations

import math
import random
from pathlib import Path

import duckdb
import pytest

from rltrace.analysis.activity import read_activity
from rltrace.analysis.goodput import goodput
from rltrace.analysis.sampled_totals import interval, stands_for, variance
from rltrace.analysis.stages import break_down
from rltrace.analysis.step_figures import step_figures
from rltrace.analysis.step_goodput import step_goodput
from rltrace.analysis.steps import find_steps
from rltrace.hooks.identity import identify
from rltrace.trace.vocabulary import Stage
from tests.analysis.handmade import at, process, rows, run_of

DRAWS, SAMPLES = 400, 300


def _draws(share: float) -> list[tuple[float, float, float]]:
    """`(true total, its estimate, the estimate of its variance)` of tokens of samples of which each
    draw keeps those that `wrap --sample` would; responses are as uneven as real ones."""
    drawn = random.Random(20261124)
    below = share * 2**64
    kept, true = [], []
    for draw in range(DRAWS):
        tokens = [round(drawn.lognormvariate(6, 0.8)) for _ in range(SAMPLES)]
        true.append(sum(tokens))
        for i, n in enumerate(tokens):
            sample = identify(f"{draw}/{i}")
            if sample % 2**64 < below:
                kept.append((draw, sample, n))
    database = duckdb.connect()
    columns = list(zip(*kept, strict=True))
    database.execute(
        "create table kept as select unnest($1) as draw, unnest($2) as trajectory, "
        "unnest($3) as tokens",
        [list(column) for column in columns],
    )
    found = database.execute(
        f"with kept as (select *, {stands_for(share)} as stands_for from kept) "
        f"select draw, sum(tokens * stands_for), {variance(share, 'tokens')} from kept "
        "group by draw order by draw"
    ).fetchall()
    assert len(found) == DRAWS
    return [(true[draw], total, error) for draw, total, error in found]


@pytest.mark.parametrize("share", [0.1, 0.25, 0.8])
def test_the_interval_holds_the_true_total_as_often_as_it_says(share: float) -> None:
    draws = _draws(share)
    intervals = [interval(total, error) for _, total, error in draws]
    held = sum(i.low <= true <= i.high for i, (true, _, _) in zip(intervals, draws, strict=True))
    assert 0.90 <= held / DRAWS <= 0.99
    bias = sum(total / true - 1 for true, total, _ in draws) / DRAWS
    assert abs(bias) < 0.02


def test_rows_of_no_known_sample_are_all_there_and_add_no_error() -> None:
    database = duckdb.connect()
    total, error = database.execute(
        f"with kept as (select *, {stands_for(0.1)} as stands_for from "
        "(values (7, 100), (null, 40)) as t(trajectory, tokens)) "
        f"select sum(tokens * stands_for), {variance(0.1, 'tokens')} from kept"
    ).fetchall()[0]
    assert total == pytest.approx(1000 + 40)
    assert error == pytest.approx((1 - 0.1) / 0.1**2 * 100**2)


def test_no_total_is_less_than_what_was_recorded() -> None:
    found = interval(1000.0, 600.0**2, recorded=500.0)
    assert (found.value, found.low) == (1000.0, 500.0)
    alone = interval(1000.0, 600.0**2)
    assert alone.low < 500
    assert alone.high == found.high > 1000
    assert alone.low * alone.high == pytest.approx(1000.0**2)
    narrow = interval(1000.0, 10.0**2)
    assert narrow.high - narrow.value == pytest.approx(1.96 * 10, rel=0.02)


def test_without_a_sample_nothing_tells_the_error() -> None:
    found = interval(0.0, 0.0)
    assert found.value == 0
    assert math.isnan(found.low)
    assert math.isnan(found.high)


def test_samples_without_an_id_are_all_recorded_and_are_not_scaled(tmp_path: Path) -> None:
    learner = rows(
        process("learner", (("step", 0), 0, 10), (Stage.TRAIN, 0, 10)),
        "uses",
        time_s=[5.0] * 5,
        trajectory=[1, 2, 3, -1, -1],
        fate=[0, 0, 1, 0, 0],
        tokens=[100, 300, 70, 50, 50],
        version=[0] * 5,
    )
    run = run_of(tmp_path, learner, settings={"sampled": 0.25})
    steps = find_steps(run, (at(0), at(10)))
    found = goodput(run, steps, None)
    assert found is not None
    assert (found.trained.samples, found.trained.tokens) == (2 * 4 + 2, 400 * 4 + 100)
    assert [(one.reason, one.tokens) for one in found.losses] == [("stale", 70 * 4)]
    assert found.estimated is not None
    assert found.estimated.steady_trained_tokens.value == 1700
    assert [one.trained_tokens for one in step_goodput(run, steps)] == [1700]
    activity = read_activity(run)
    figures = step_figures(run, steps, break_down(activity, steps), None)
    assert figures is not None
    assert figures.trained_tokens.tolist() == [1700]
    assert figures.decided_tokens.tolist() == [1700 + 280]
