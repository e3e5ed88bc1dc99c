"""The cases of `make prove-levers`: what is changed is what was predicted."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import fields

import pytest

from benchmarks.prove_levers import Case, Row, cases, settings_of, summary
from rltrace.testing.inside.trainer import TrainerConfig

CASES = cases()


def test_each_lever_has_three_and_a_third_computes() -> None:
    assert len(CASES) >= 40
    assert len({case.name for case in CASES}) == len(CASES)
    assert min(Counter(case.moved for case in CASES).values()) >= 3
    assert sum(case.computes for case in CASES) >= len(CASES) / 3


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_is_a_job_and_another(case: Case) -> None:
    job = settings_of(case.job)
    assert {*job, *case.settings} <= {field.name for field in fields(TrainerConfig)}
    assert TrainerConfig(**job) != TrainerConfig(**{**job, **case.settings})


def test_the_summary_counts_what_was_measured() -> None:
    inside = Row(CASES[0], 1.0, 1.25, 1.6, 1.25)
    outside = Row(CASES[0], 1.0, 1.25, 1.6, 2.0)
    refused = Row(CASES[0], math.nan, math.nan, math.nan, math.nan, "cannot be predicted")
    found = summary([inside, outside, refused])
    assert (found["measured"], found["refused"], found["inside_share"]) == (2, 1, 0.5)
    assert found["median_error_points"] == pytest.approx(15)  # 80 % of a step, not 50 %: 30 points
    assert found["median_width"] == pytest.approx(1.6)
