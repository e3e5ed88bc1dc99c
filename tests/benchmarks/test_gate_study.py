"""The study of the gate counts right, on made pools; the runs themselves take most of an hour."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from click import ClickException

from benchmarks import gate_pools, gate_study
from benchmarks.gate_pools import BINDING, HIDDEN, IDLE, LOADS, PLANTED, UNCHANGED
from rltrace.testing.handmade_runs import process, run_of, turns
from rltrace.testing.inside.analysis import RunSeries, write_baseline
from rltrace.testing.inside.analysis import baseline_Baseline as Baseline
from rltrace.testing.inside.trace import RltraceError

STEPS, RUNS = gate_pools.STEPS, 8


def made(pool: str, number: int, sd: float) -> Baseline:
    """A run whose starts differ by `sd`, with its pool's slowdown in generation or training."""
    dice = np.random.default_rng([list(PLANTED).index(pool), number])
    rollout = np.full(STEPS, 0.5 * (1.05 if pool == BINDING else 1.0))
    train = np.full(STEPS, 0.2 * (1.05 if pool == HIDDEN else 1.0))
    start = np.exp(dice.normal(0, sd))
    length = start * (rollout + 0.01) * np.exp(dice.normal(0, 0.001, STEPS))
    tokens = dict.fromkeys(("useful_tokens", "trained_tokens", "generated_tokens"), 100.0)
    columns = {
        **{name: np.full(STEPS, value) for name, value in {"steps": 1.0, **tokens}.items()},
        "length_s": length,
        "exposed.rollout": length - 0.01,
        "busy.rollout": length - 0.01,
        "busy.train": start * train,
        "exposed.train": np.full(STEPS, 0.001),
    }
    series = RunSeries(f"{pool}-{number}", number, np.arange(STEPS), columns)
    return Baseline("2026-01-01", "0.1.0", {}, {}, {}, (series,))


def pools(sd: float, runs: int = RUNS) -> dict[tuple[str, str], list[Baseline]]:
    return {
        (load, pool): [made(pool, number, sd) for number in range(runs)]
        for load in LOADS
        for pool in PLANTED
    }


@pytest.fixture(autouse=True)
def _few_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_study, "PARTITIONS", 1)


def test_on_a_quiet_machine_all_rows_hold() -> None:
    rows = list(gate_study.evaluate(pools(0.001), 4))
    assert [row for row in rows if not row.holds] == []
    assert len(rows) == 2 * len(LOADS) * len(gate_study.QUESTIONS)
    for row in rows:  # a run is not judged by a baseline that it is in
        assert (row.gates, row.runs) == (RUNS if row.pool == UNCHANGED else 2 * RUNS, RUNS)
        assert row.trials == RUNS


def test_where_starts_differ_by_more_than_the_slowdown_it_says_so() -> None:
    rows = list(gate_study.evaluate(pools(0.1), 4))
    found = [row for row in rows if (row.pool, row.what) == (BINDING, "found")]
    assert not any(row.holds for row in found if row.checks > 1)
    assert all(math.isnan(row.limit) for row in found if row.checks == 1)
    assert all(row.low <= row.share <= row.high for row in rows)
    with pytest.raises(ClickException, match="too few runs"):
        list(gate_study.evaluate(pools(0.001, runs=7), 4))


@pytest.mark.parametrize(
    ("share", "trials", "low", "high"),
    [
        *[(0.0, 20, 0.0, 0.168), (1.0, 20, 0.832, 1.0), (0.9, 20, 0.683, 0.988)],
        *[(0.925, 20, 0.683, 0.999), (0.5, 1, 0.0, 1.0)],  # no whole count has the wider one
    ],
)
def test_the_interval_is_clopper_and_pearsons(
    share: float, trials: int, low: float, high: float
) -> None:
    assert gate_study.exact_interval(share, trials) == pytest.approx((low, high), abs=1e-3)


def test_gates_that_go_together_are_fewer_trials() -> None:
    """Four baselines of which one fails all runs: its gates say no more than one trial of four."""
    keys = [[(0, baseline) for baseline in range(4)] for _ in range(20)]
    by_baseline = [[baseline == 0 for baseline in range(4)]] * 20
    apart = [[(run + baseline) % 4 == 0 for baseline in range(4)] for run in range(20)]
    spreads = [gate_study.spread_of_share(said, keys) for said in (by_baseline, apart)]
    few, all_of_them = (gate_study.trials_of(0.25, spread, 20) for spread in spreads)
    assert few <= 4
    assert all_of_them == 20


def test_what_is_kept_is_not_run_again_and_a_failure_costs_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in list(gate_pools.places(1))[1:]:
        write_baseline(made(place.pool, 0, 0.0), place.file(tmp_path))
    asked = []

    def fails(pool: str, busy: bool, out: Path, address: str) -> Path:
        assert address == "a cluster"
        asked.append((pool, busy))
        raise RuntimeError("the job ended with exit code 1")

    monkeypatch.setattr(gate_pools, "cluster", lambda: nullcontext("a cluster"))
    monkeypatch.setattr(gate_pools, "run_once", fails)
    gate_pools.fill(tmp_path, 1, lambda said: None)
    assert asked == [(UNCHANGED, False)]
    counts = {key: len(runs) for key, runs in gate_pools.read(tmp_path).items()}
    assert counts == {
        (load, pool): int((load, pool) != (IDLE, UNCHANGED)) for load in LOADS for pool in PLANTED
    }


@pytest.mark.parametrize(
    ("steps", "ended", "says"),
    [(STEPS, {"exit_code": 1}, "no run to hold"), (STEPS - 1, {}, "not kept"), (STEPS, {}, "")],
)
def test_a_run_that_is_not_whole_is_not_kept(
    tmp_path: Path, steps: int, ended: dict[str, int], says: str
) -> None:
    run = run_of(tmp_path, process("learner", *turns(*[6.0] * steps)), **ended)
    kept = tmp_path / "idle-unchanged-00.json"
    refused = pytest.raises((RuntimeError, RltraceError), match=says) if says else nullcontext()
    with refused:
        gate_pools.keep(run.path, kept)
    assert kept.exists() == (not says)
    assert not list(tmp_path.glob("*.new"))
