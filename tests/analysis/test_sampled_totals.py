"""The interval of a total that is scaled from a share of the samples holds the true total."""

from __future__ import annotations

import math
import random

import duckdb
import pytest

from rltrace.analysis.sampled_totals import interval, stands_for, variance
from rltrace.hooks.identity import identify

DRAWS, SAMPLES = 400, 300


def _draws(share: float) -> list[tuple[float, float, float]]:
    """`(true total, its estimate, the estimate of its variance)` of tokens of samples of which each
    draw keeps those that `wrap --sample` would; responses are as uneven as real ones."""
    drawn = random.Random(20261124)
    below = share * 2**64
    rows, true = [], []
    for draw in range(DRAWS):
        tokens = [round(drawn.lognormvariate(6, 0.8)) for _ in range(SAMPLES)]
        true.append(sum(tokens))
        for i, n in enumerate(tokens):
            sample = identify(f"{draw}/{i}")
            if sample % 2**64 < below:
                rows.append((draw, sample, n))
    database = duckdb.connect()
    columns = list(zip(*rows, strict=True))
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
