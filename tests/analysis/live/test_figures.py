"""The live figures are the report's: of all steps, of the last ones, and of rows of any kind."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rltrace
from rltrace.analysis.samples import TRAINED_USES
from rltrace.testing.inside.analysis import LiveState, Summary, Window, summarize, trained_in
from rltrace.testing.inside.trace import Run
from rltrace.testing.made import at, process, run_of, stating, turns
from tests.analysis.test_any_numbers import random_run
from tests.hooks.conftest import WRAP, clean_environment

ALL = 10_000
JOB = Path(__file__).with_name("job.py")


def near(value: float) -> Any:
    return pytest.approx(value, rel=1e-9, nan_ok=True)


def assert_agrees(window: Window, summary: Summary, run: Run) -> None:
    """Figures of all steady steps are those of the report."""
    steps = summary.steps
    assert window.steps == steps.steady
    assert window.step_s == near(steps.step_s.mean)
    assert window.unattributed_s == near(steps.unattributed_s.mean)
    rows = {row.name: row for row in summary.stages if row.tau_s.mean > 0}
    assert {row.stage for row in window.stages} == set(rows)
    for row in window.stages:
        assert row.tau_s == near(rows[row.stage].tau_s.mean)
        assert row.exposed_s == near(rows[row.stage].exposed_s.mean)
        assert row.share == near(rows[row.stage].share)
    assert [one.seconds for one in window.recent] == near([one.seconds for one in steps.times])
    for live, step in zip(window.recent, steps.times, strict=True):
        assert live.step == step.step
        assert live.tau_s == near({name: s for name, s in step.tau_s.items() if s > 0})
    if summary.goodput is not None:
        assert window.trained == summary.goodput.trained
        assert window.seconds == near(summary.goodput.window_s)
    if summary.syncs is not None:
        assert window.updates is not None
        assert window.updates.updates == summary.syncs.updates
        assert window.updates.seconds == near(summary.syncs.update_s.mean)
        assert window.updates.bytes == near(summary.syncs.bytes_per_update.mean)
        assert window.updates.gb_per_s == near(summary.syncs.gb_per_s)
    assert_samples_agree(window, run)


def assert_samples_agree(window: Window, run: Run) -> None:
    """What was generated and trained on in the window is what DuckDB finds in it."""
    since, until = window.since_ns, window.until_ns
    trained = trained_in(run, since, until, math.inf)
    if window.trained is not None:
        assert window.trained == trained
    samples, tokens = run.sql(f"""
        with ended as (
            select max(end_ns) as ended, max(greatest(response_tokens, 0)) as tokens
            from (select *, case when trajectory = -1 then -row_number() over () - 1
                            else trajectory end as id from raw_trajectories where start_ns > 0)
            group by id, trajectory)
        select count(*), coalesce(sum(tokens), 0) from ended where ended between {since} and {until}
    """).fetchall()[0]
    assert (window.generated_samples, window.generated_tokens) == (samples, tokens)
    bars = run.sql(f"""
        {TRAINED_USES}
        select case when version >= 0 then version - first_version end as lag, count(*)
        from trained where time_ns between {since} and {until} group by 1 order by 1 nulls last
    """).fetchall()
    assert (list(window.lags.by_lag) if window.lags else []) == bars


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"placement": "disaggregated", "reward_streamed": True, "gpus": 0},
        {"placement": "one-step-off", "nodes": 2},
        {"placement": "async", "env_s": 0.2, "mixed": 0.3, "unknown_versions": 0.1},
        {"placement": "async", "kill_step": 5},
        {"torn": True, "zero_groups": 0.5},
    ],
    ids=lambda knobs: "-".join(knobs) or "colocated",
)
def test_of_all_steps_they_are_the_reports(
    synthetic: Callable[..., Any], knobs: dict[str, Any]
) -> None:
    run, _ = synthetic(**knobs)
    summary = summarize(run, predict=False)
    shown = LiveState(run.path, last=ALL).snapshot()
    assert shown.window is not None
    assert_agrees(shown.window, summary, run)
    assert shown.totals.steps == summary.steps.complete
    goodput = summary.goodput
    assert goodput is not None
    assert shown.goodput == near(goodput.useful_tokens_per_device_s)
    assert shown.devices == goodput.devices
    ended = "from raw_trajectories where end_ns > 0"
    [(samples,)] = run.sql(f"select count(distinct trajectory) {ended}").fetchall()
    assert shown.totals.generated_samples == samples
    assert shown.totals.generated_tokens == goodput.generated_tokens
    lost = {loss.reason: loss.samples for loss in goodput.losses}
    assert shown.totals.lost == {
        reason: n for reason, n in lost.items() if not reason.startswith("never used")
    }


@pytest.mark.parametrize("last", [1, 3])
def test_of_the_last_steps_they_are_duckdbs(synthetic: Callable[..., Any], last: int) -> None:
    run, _ = synthetic(placement="async", mixed=0.3)
    window = LiveState(run.path, last=last).snapshot().window
    assert window is not None
    times = summarize(run, predict=False).steps.times[-last:]
    assert window.step_s == near(float(np.mean([step.seconds for step in times])))
    assert window.since_ns == times[0].start_ns
    for row in window.stages:
        assert row.tau_s == near(float(np.mean([step.tau_s[row.stage] for step in times])))
    assert_samples_agree(window, run)


@pytest.mark.parametrize("seed", range(8))
def test_rows_of_any_kind(tmp_path: Path, seed: int) -> None:
    """Ids that come twice, and in several processes; groups of one; no id, no group, no value;
    components with weights and without."""
    rng = np.random.default_rng(seed)
    n = 80

    def some(values: int, unknown: float = 0.1) -> Any:
        return np.where(rng.random(n) < unknown, -1, rng.integers(0, values, n))

    made = [process("learner", *turns(*[6.0] * 4))]
    for rank in range(2):
        actor = process("rollout", rank=rank)
        start = at(0) + rng.integers(0, 35 * 10**9, n)
        actor.rows(
            "trajectories",
            start_ns=start,
            end_ns=np.where(rng.random(n) < 0.1, -1, start + rng.integers(0, 5 * 10**9, n)),
            trajectory=some(60),
            group=some(12),
            first_version=some(4),
            last_version=some(4),
            response_tokens=some(100),
            finish=some(5),
        )
        actor.rows(
            "rewards",
            start_ns=start,
            end_ns=start + 5,
            trajectory=some(60),
            component=np.array(["a", "b"])[rng.integers(0, 2, n)],
            value=np.where(rng.random(n) < 0.1, np.nan, rng.integers(0, 2, n).astype(float)),
            outcome=some(3),
        )
        made.append(actor)
    made[0].rows(
        "uses",
        time_ns=at(0) + rng.integers(0, 45 * 10**9, n),
        trajectory=some(60),
        step=some(4),
        version=some(6),
        fate=some(6),
        tokens=some(100, 0.3),
    )
    run = run_of(tmp_path, *made)
    if seed % 2:
        run = stating(run, {"reward_weights": {"a": seed % 4 - 1.0, "b": 0.5}})
    window = LiveState(run.path, last=ALL).snapshot().window
    assert window is not None
    assert_samples_agree(window, run)


@pytest.mark.parametrize("seed", range(12))
def test_impossible_numbers_have_a_snapshot(tmp_path: Path, seed: int) -> None:
    from rltrace.testing.inside.report import frame, live_json

    shown = LiveState(random_run(tmp_path, seed).path).snapshot()
    assert live_json.render(shown)["schema"] == live_json.SCHEMA
    assert all(len(line) <= 80 for line in frame(shown, 80, 24))


def test_a_run_that_was_followed_from_its_begin_has_the_same_figures(tmp_path: Path) -> None:
    path = tmp_path / "run"
    command = [*WRAP, "--out", str(path), "--", sys.executable, str(JOB), "--steps", "12"]
    with subprocess.Popen(command, env=clean_environment(), stderr=subprocess.PIPE) as job:
        while not (path / "run.json").exists():
            assert job.poll() is None
        state = LiveState(path, last=ALL)
        looks = 0
        while job.poll() is None:
            state.poll()
            shown = state.snapshot()
            looks += shown.totals.steps > 0
        state.poll()
        state.poll()
    run = rltrace.open_run(path)
    shown = state.snapshot()
    assert looks > 3
    assert shown.job.state == "ended"
    assert shown.window is not None
    assert_agrees(shown.window, summarize(run, predict=False), run)
