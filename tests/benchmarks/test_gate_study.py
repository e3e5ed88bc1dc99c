"""The study of the gate counts right, on made pools; the runs themselves take most of an hour."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click import ClickException

from benchmarks import gate_pools, gate_study
from benchmarks.gate_pools import BINDING, BUSY, HIDDEN, IDLE, LOADS, PLANTED, UNCHANGED
from rltrace.analysis.gate.baseline import Baseline, write_baseline
from rltrace.analysis.gate.series import RunSeries
from rltrace.trainer import load_job

STEPS, RUNS = 30, 6


def made(pool: str, number: int, sd: float, settings: dict[str, int] | None = None) -> Baseline:
    """A run whose starts differ by `sd`, with its pool's slowdown in generation or training."""
    dice = np.random.default_rng([list(PLANTED).index(pool), number])
    rollout = np.full(STEPS, 0.5 * (1.05 if pool == BINDING else 1.0))
    train = np.full(STEPS, 0.2 * (1.05 if pool == HIDDEN else 1.0))
    start = np.exp(dice.normal(0, sd))
    length = start * (rollout + 0.01) * np.exp(dice.normal(0, 0.001, STEPS))
    columns = {
        "length_s": length,
        "steps": np.ones(STEPS),
        "useful_tokens": np.full(STEPS, 100.0),
        "trained_tokens": np.full(STEPS, 100.0),
        "generated_tokens": np.full(STEPS, 100.0),
        "exposed.rollout": length - 0.01,
        "busy.rollout": length - 0.01,
        "busy.train": start * train,
        "exposed.train": np.full(STEPS, 0.001),
    }
    series = RunSeries(f"{pool}-{number}", number, np.arange(STEPS), columns)
    return Baseline("2026-01-01", "0.1.0", {}, {}, settings or {}, (series,))


def pools(sd: float, runs: int = RUNS) -> dict[tuple[str, str], list[Baseline]]:
    return {
        (load, pool): [made(pool, number, sd) for number in range(runs)]
        for load in LOADS
        for pool in PLANTED
    }


@pytest.fixture(autouse=True)
def _few_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_study, "BASELINES_A_RUN", 1)


def test_on_a_quiet_machine_all_rows_hold() -> None:
    rows = list(gate_study.evaluate(pools(0.001), 4))
    assert [row for row in rows if not row.holds] == []
    assert len(rows) == len(LOADS) * len(gate_study.QUESTIONS)
    assert {(row.gates, row.runs) for row in rows} == {(RUNS, RUNS)}


def test_where_starts_differ_by_more_than_the_slowdown_it_says_so() -> None:
    rows = list(gate_study.evaluate(pools(0.1), 4))
    found = [row for row in rows if (row.pool, row.what) == (BINDING, "found")]
    assert not any(row.holds for row in found)
    assert all(row.low <= row.share <= row.high for row in rows)


def test_pools_too_small_for_their_baselines_are_refused() -> None:
    with pytest.raises(ClickException, match="too few runs"):
        list(gate_study.evaluate(pools(0.001, runs=4), 4))


@pytest.mark.parametrize(
    ("share", "trials", "low", "high"),
    [(0.0, 20, 0.0, 0.161), (1.0, 20, 0.839, 1.0), (0.5, 100, 0.404, 0.596)],
)
def test_the_interval_is_wilsons(share: float, trials: int, low: float, high: float) -> None:
    assert gate_study.wilson(share, trials) == pytest.approx((low, high), abs=1e-3)


def test_pools_take_turns_and_each_load_meets_all_of_them() -> None:
    order = list(gate_pools.places(3))
    assert len(order) == len(set(order)) == 3 * len(LOADS) * len(PLANTED)
    firsts = {order[place].pool for place in range(0, len(order), len(LOADS) * len(PLANTED))}
    assert firsts == set(PLANTED)
    assert {place.load for place in order[:6]} == {IDLE, BUSY}


def test_what_is_kept_is_not_run_again_and_a_failure_costs_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in list(gate_pools.places(1))[1:]:
        write_baseline(made(place.pool, 0, 0.0), place.file(tmp_path))
    asked = []

    def fails(pool: str, busy: bool, out: Path) -> Path:
        asked.append((pool, busy))
        raise RuntimeError("the job ended with exit code 1")

    monkeypatch.setattr(gate_pools, "run_once", fails)
    said: list[str] = []
    gate_pools.fill(tmp_path, 1, said.append)
    assert asked == [(UNCHANGED, False)]
    assert any("exit code 1" in line for line in said)
    counts = {key: len(runs) for key, runs in gate_pools.read(tmp_path).items()}
    assert counts == {
        (load, pool): int((load, pool) != (IDLE, UNCHANGED)) for load in LOADS for pool in PLANTED
    }


def test_runs_of_different_jobs_make_no_pool(tmp_path: Path) -> None:
    for number in range(2):
        place = gate_pools.Place(IDLE, UNCHANGED, number)
        write_baseline(made(UNCHANGED, number, 0.0, {"steps": number}), place.file(tmp_path))
    with pytest.raises(ClickException, match="different jobs"):
        gate_pools.read(tmp_path)


def test_the_planted_settings_are_those_of_the_job() -> None:
    job = load_job(gate_pools.JOB)
    assert all(job[setting] > 0 for setting in PLANTED.values() if setting)
