"""The right wall: runs of known truth, as they are."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings

from benchmarks.synthetic.truth import known_job
from benchmarks.synthetic.workload import Workload
from tests.analysis.less_seen import NEAR, UNHURRIED, true_costs, verdict, workloads


@pytest.mark.parametrize("count", [12, pytest.param(500, marks=pytest.mark.slow)])
def test_the_wall_of_a_whole_run_is_the_one_that_truly_costs_the_most(count: int) -> None:
    right, wrong = 0, []

    @settings(UNHURRIED, max_examples=count)
    @given(workloads())
    def look(load: Workload) -> None:
        nonlocal right
        with tempfile.TemporaryDirectory() as folder:
            known_job(Path(folder, "run"), **vars(load))
            found = verdict(Path(folder, "run"))
        costs = true_costs(load)
        most = max(costs.values())
        if found.first is None:
            is_right = found.balanced and most < 0.1 + NEAR
        else:
            is_right = costs.get(found.first.name, 0.0) >= most - NEAR
        right += is_right
        if not is_right:
            wrong.append((load, found.first and found.first.name, costs))

    look()
    assert right >= 0.95 * (right + len(wrong)), wrong
