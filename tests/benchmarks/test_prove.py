"""The proof judges rows as it says; the jobs themselves take minutes each."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from benchmarks.prove import EXACTLY, Evidence, Row, recommended
from rltrace.testing.handmade_runs import process, run_of, turns
from rltrace.testing.inside.analysis import Pace, summarize, trial
from rltrace.testing.inside.analysis import predict_Estimate as Estimate
from tests.run.test_experiment import GAIN, FakeFix


def found(after_s: tuple[float, ...], predicted: Estimate) -> Any:
    def pace(step_s: float) -> Pace:
        return Pace(step_s, step_s)

    return trial(tuple((pace(2.0), pace(s)) for s in after_s), "step", predicted)


RIGHT = Row(
    "weights",
    "weight sync",
    "weight sync",
    Evidence("0.9 ± 0.1", True),
    "a change",
    found((1.0, 1.01, 0.99), Estimate(1.8, 2.0, 2.2)),
    "",
)


@pytest.mark.parametrize(
    ("change", "holds"),
    [
        ({}, True),
        ({"named": "staleness"}, False),
        ({"named": ""}, False),
        ({"evidence": Evidence("", False)}, False),
        ({"found": None}, False),
        ({"found": found((1.0, 1.01, 0.99), Estimate(1.2, 2.0, 3.0))}, False),  # too wide
        ({"found": found((1.5, 1.51, 1.49), Estimate(1.8, 2.0, 2.2))}, False),
    ],
)
def test_a_row_holds_where_all_of_it_does(change: dict[str, Any], holds: bool) -> None:
    assert dataclasses.replace(RIGHT, **change).holds is holds


def test_the_fix_that_takes_the_cause_away_comes_first() -> None:
    fixes: Any = [
        FakeFix("", None, GAIN, GAIN),
        FakeFix("placement", "async", GAIN, GAIN),
        FakeFix("rollout_workers", 2, GAIN, GAIN),
        FakeFix("max_running", 16),
    ]
    assert recommended(fixes, {"rollout_workers": 2}) is fixes[2]
    assert recommended(fixes, {"rollout_workers": 3}) is fixes[1]
    assert recommended(fixes, {"max_running": 16}) is fixes[1]  # which nothing predicts
    assert recommended(fixes[:1], {}) is None


def test_ids_that_the_ledger_does_not_confirm_are_no_proof(tmp_path: Path) -> None:
    summary = summarize(run_of(tmp_path, process("driver", *turns(4, 5, 4, 5))))
    assert not EXACTLY["observability"](summary, {"config": {"retokenize": True}}).holds
    books = {"steps": [{"groups": 4, "groups_with_signal": 1, "ratios": {}}]}
    assert not EXACTLY["sparse-reward"](summary, books).holds
