"""What a user may state, and what is told to who states something else."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rltrace.analysis.gate.conditions import (
    ANTI_PATTERNS,
    ANY,
    FORBID,
    MAX_REGRESSION,
    MAXIMUM,
    MINIMUM,
    WALL,
    Condition,
    conditions_of,
    parse_condition,
)
from rltrace.testing.inside.analysis import find_metric, lint
from rltrace.testing.inside.trace import WRONG_USAGE, RltraceError


@pytest.mark.parametrize(
    ("kind", "text", "subject", "limit"),
    [
        (MAX_REGRESSION, "goodput=3%", "goodput", 0.03),
        (MAX_REGRESSION, "step.p95=10%", "step.p95", 0.1),
        (MAX_REGRESSION, " stage.rollout = 2.5 %".replace(" %", "%"), "stage.rollout", 0.025),
        (MINIMUM, "goodput_per_gpu=1200", "goodput_per_gpu", 1200),
        (MAXIMUM, "lag.p99=4", "lag.p99", 4),
        (MAXIMUM, "lag.max=4", "lag.max", 4),
        (MAXIMUM, "sync.gbytes=1.5", "sync.gbytes", 1.5),
    ],
)
def test_limits_are_read(kind: str, text: str, subject: str, limit: float) -> None:
    found = parse_condition(kind, text)
    assert (found.kind, found.subject) == (kind, subject)
    assert found.limit == pytest.approx(limit)


def test_walls_and_anti_patterns_are_read() -> None:
    assert parse_condition(WALL, "rollout").subject == "rollout decode"
    assert parse_condition(WALL, "Learner FLOPs + memory").subject == "learner FLOPs + memory"
    assert parse_condition(FORBID, "anti_pattern").subject == ANY
    assert parse_condition(FORBID, "silent-drops").subject == "silent-drops"
    assert math.isnan(parse_condition(WALL, "rollout").limit)


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        (MAX_REGRESSION, "goodput", "METRIC=LIMIT"),
        (MAX_REGRESSION, "goodput=3", "percentage"),
        (MAX_REGRESSION, "goodput=0%", "more than 0"),
        (MAX_REGRESSION, "goodput=100%", "less than 100"),
        (MAX_REGRESSION, "goodput=nan%", "no number"),
        (MAX_REGRESSION, "speed=3%", "no metric"),
        (MAX_REGRESSION, "stage.thinking=3%", "no metric"),
        (MAX_REGRESSION, "goodput.p95=3%", "no metric"),
        (MAXIMUM, "lag.p99=4%", "metric's unit"),
        (MINIMUM, "reward=high", "no number"),
        (WALL, "ceiling", "names no wall"),
        (WALL, "", "names no wall"),
        (FORBID, "fun", "no anti-pattern"),
    ],
)
def test_what_cannot_be_meant_is_told(kind: str, text: str, says: str) -> None:
    with pytest.raises(RltraceError, match=says) as error:
        parse_condition(kind, text)
    assert error.value.exit_code == WRONG_USAGE


def test_a_table_holds_all_kinds() -> None:
    found = conditions_of(
        {
            "max-regression": {"goodput": "3%"},
            "min": {"goodput_per_gpu": 100},
            "max": {"lag.p99": 4},
            "wall": "rollout",
            "forbid": ["silent-drops"],
        }
    )
    assert [one.text for one in found] == [
        "max-regression goodput=3%",
        "min goodput_per_gpu=100",
        "max lag.p99=4",
        "wall rollout decode",
        "forbid silent-drops",
    ]


@pytest.mark.parametrize(
    "table", [{"goodput": "3%"}, {"wall": 3}, {"forbid": [1]}, {"max": "lag=4"}]
)
def test_a_table_of_something_else_is_told(table: dict[str, Any]) -> None:
    with pytest.raises(RltraceError) as error:
        conditions_of(table)
    assert error.value.exit_code == WRONG_USAGE


def test_all_short_names_are_of_anti_patterns_that_are_looked_for() -> None:
    looked_for = {
        text
        for function in lint.__globals__.values()
        if getattr(function, "__module__", "") == lint.__module__ and callable(function)
        for text in getattr(getattr(function, "__code__", None), "co_consts", ())
    }
    assert set(ANTI_PATTERNS.values()) <= looked_for


def test_a_maximum_is_a_percentile_of_all() -> None:
    assert find_metric("lag.max").quantile == 1.0
    assert find_metric("step.p99.9").quantile == pytest.approx(0.999)
    assert Condition(MAXIMUM, "lag.max", 2.0).text == "max lag.max=2"
