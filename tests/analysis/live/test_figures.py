"""The live figures are the report's: of all steps, of the last ones, of rows of any kind, and in
whatever order they are stored and read."""

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
from rltrace.testing import process, rows, run_of, turns
from rltrace.testing.clocks import up_for_days
from rltrace.testing.inside.analysis import LiveState, Summary, Window, summarize, trained_in
from rltrace.testing.inside.hooks import Recorder
from rltrace.testing.inside.report import frame, to_json
from rltrace.testing.inside.trace import Fate, Stage, create_run, segment
from rltrace.testing.inside.trace import OpenedRun as Run
from rltrace.trace.read.trajectory_lifecycle import TRAINED_USES
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
    assert window.untraced_s == near(steps.untraced_s.mean)
    rows = {row.name: row for row in summary.stages if row.tau_s.mean > 0}
    assert {row.stage for row in window.stages} == set(rows)
    for row in window.stages:
        assert row.tau_s == near(rows[row.stage].tau_s.mean)
        assert row.exposed_s == near(rows[row.stage].exposed_s.mean)
        assert row.share == near(rows[row.stage].share)
    assert [one.step_s for one in window.recent] == near([one.step_s for one in steps.times])
    for live, step in zip(window.recent, steps.times, strict=True):
        assert live.step == step.step
        assert live.tau_s == near({name: s for name, s in step.tau_s.items() if s > 0})
    if summary.goodput is not None:
        assert window.trained == summary.goodput.trained
        assert window.window_s == near(summary.goodput.window_s)
    if summary.syncs is not None:
        assert window.updates is not None
        assert window.updates.updates == summary.syncs.updates
        assert window.updates.update_s == near(summary.syncs.update_s.mean)
        assert window.updates.bytes == near(summary.syncs.bytes_per_update.mean)
        assert window.updates.bytes_per_s == near(summary.syncs.bytes_per_s)
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


def test_what_engines_do_in_an_evaluation_is_its_own_here_too(tmp_path: Path) -> None:
    evals = [("eval", 10 * n + 7, 10 * n + 9) for n in range(4)]
    driver = process("driver", *turns(5, 5, 5, 5), *evals)
    begins = [10.0 * n + at for n in range(4) for at in (1, 7)]
    engine = process("rollout", *(("rollout", s, s + 2) for s in begins))
    rows(engine, "trajectories", start_s=begins, end_s=[s + 2 for s in begins],
         trajectory=list(range(8)), response_tokens=7)  # fmt: skip
    rows(driver, "uses", time_s=[10.0 * n + 6 for n in range(4)], trajectory=list(range(0, 8, 2)),
         tokens=7, fate=Fate.TRAINED)  # fmt: skip
    run = run_of(tmp_path, driver, engine)
    window = LiveState(run.path, last=ALL).snapshot().window
    assert window is not None
    assert {one.stage: one.tau_s for one in window.stages}["rollout"] == near(5.0)
    assert_agrees(window, summarize(run, predict=False), run)


@pytest.mark.parametrize("seed", range(12))
def test_impossible_numbers_have_a_snapshot(tmp_path: Path, seed: int) -> None:
    shown = LiveState(random_run(tmp_path, seed).path).snapshot()
    assert to_json.of_snapshot(shown)["schema"] == "rltrace-live"
    assert all(len(line) <= 80 for line in frame(shown, 80, 24))


def test_a_run_that_was_followed_from_its_begin_has_the_same_figures(tmp_path: Path) -> None:
    path = tmp_path / "run"
    command = [*WRAP, "--out", str(path), "--", sys.executable, str(JOB)]
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
    assert looks > 0
    assert shown.job.state == "ended"
    assert shown.window is not None
    assert_agrees(shown.window, summarize(run, predict=False), run)


SECOND = 10**9
STEPS = 8
STEP_S = 30
SAMPLES = 4  # a step
HOUR_S = 3600  # longer than anything that is looked back over without steps


def rows_of_steps(begin_ns: int) -> list[tuple[str, dict[str, Any]]]:
    """Rows of steps from a moment on, in the order of time: `(table, columns)`."""
    rows: list[tuple[str, dict[str, Any]]] = []

    def interval(step: int, start_s: float, end_s: float) -> dict[str, Any]:
        origin = begin_ns + STEP_S * step * SECOND
        return {
            "start_ns": origin + int(start_s * SECOND),
            "end_ns": origin + int(end_s * SECOND),
        }

    for step in range(STEPS):
        whole = interval(step, 0, STEP_S - step / 10)
        rows.append(("spans", {"stage": Stage.STEP, "step": step, **whole}))
        for i in range(SAMPLES):
            sample = step * SAMPLES + i
            made = interval(step, i, i + 5 + step / 20)
            rows.append(("spans", {"stage": Stage.ROLLOUT, **made}))
            said = {"trajectory": sample, "group": step, "first_version": step, **made}
            rows.append(("trajectories", {"response_tokens": 7 + i, **said}))
            judged = interval(step, 10 + i, 10.5 + i)
            rows.append(("spans", {"stage": Stage.REWARD, **judged}))
            rows.append(("rewards", {"trajectory": sample, "value": float(i % 2), **judged}))
            met = {"trajectory": sample, "version": step + i % 2, "fate": Fate.TRAINED}
            rows.append(("uses", {**met, "time_ns": interval(step, 20, 20)["start_ns"] + i}))
        rows.append(("spans", {"stage": Stage.TRAIN, **interval(step, 16, 24 + step / 20)}))
    return rows


def store(recorder: Recorder, table: str, columns: dict[str, Any]) -> None:
    if table == "spans":
        stage = columns["stage"]
        recorder.begin(recorder.name(stage.name.lower()), stage).set(**columns)
    else:
        row = recorder.append(table, **columns)
        assert row is not None


def assert_is_the_reports(state: LiveState, last: int) -> None:
    run = rltrace.open_run(state.snapshot().job.path)
    summary = summarize(run, predict=False)
    window = state.snapshot().window
    assert window is not None
    if last == ALL:
        assert_agrees(window, summary, run)
        return
    times = summary.steps.times[-last:]
    assert window.step_s == near(float(np.mean([step.step_s for step in times])))
    assert window.since_ns == times[0].start_ns
    assert window.stages
    for row in window.stages:
        assert row.tau_s == near(float(np.mean([step.tau_s[row.stage] for step in times])))
    assert [one.step for one in window.recent] == [one.step for one in times]
    for live, step in zip(window.recent, times, strict=True):
        assert live.tau_s == near({name: s for name, s in step.tau_s.items() if s > 0})
        assert live.trained_samples == SAMPLES
        assert live.mean_lag == 1 / 2
    assert_samples_agree(window, run)


@pytest.fixture(
    params=[0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))],
    ids=lambda seed: f"seed{seed}",
)
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    return np.random.default_rng(request.param)


@pytest.fixture
def recorder(tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """It stores rows in batches, and files, of any size."""
    monkeypatch.setattr(segment, "FIRST_BATCH_ROWS", int(rng.choice([8, 64, 256])))
    monkeypatch.setattr(segment, "GROWTH", int(rng.choice([1, 2, 4])))
    monkeypatch.setattr(segment, "SEGMENT_BYTES", int(rng.choice([4096, 64 << 20])))
    create_run(str(tmp_path / "run"), ["python", "train.py"], {}, "0")
    return Recorder(str(tmp_path / "run"), role="learner", rank=0, cores=4)


@pytest.mark.parametrize("last", [2, ALL])
@pytest.mark.parametrize("looks", [0, 1, 9], ids=lambda n: f"{n} looks")
def test_rows_in_any_order(
    recorder: Recorder, tmp_path: Path, rng: np.random.Generator, looks: int, last: int
) -> None:
    """Read when all are there, or while they are stored: the steps may be known last of all."""
    rows = rows_of_steps(up_for_days(recorder) - HOUR_S * SECOND)
    kind = rng.integers(0, 3)
    order = rng.permutation(len(rows))
    if kind:  # in the order of time, but for a few that are late
        order = np.argsort(np.arange(len(rows)) + rng.integers(0, 60, len(rows)) * (kind - 1))
    looked_at = {int(place) for place in rng.integers(0, len(rows), looks)}
    state = None
    for place, which in enumerate(order):
        store(recorder, *rows[which])
        if place in looked_at:
            if state is None:
                state = LiveState(tmp_path / "run", last)
            state.poll()
    if state is None:
        state = LiveState(tmp_path / "run", last)
    for _ in range(3):
        state.poll()
    assert_is_the_reports(state, last)


def test_a_first_step_that_takes_long_is_whole(recorder: Recorder, tmp_path: Path) -> None:
    """Nothing of a step that has not ended is forgotten, however long ago it was."""
    now = up_for_days(recorder)
    step = recorder.begin(recorder.name("step"), Stage.STEP, step=0)
    step.set(start_ns=now - HOUR_S * SECOND)
    span = recorder.begin(recorder.name("rollout"), Stage.ROLLOUT)
    span.set(start_ns=now - HOUR_S * SECOND, end_ns=now - (HOUR_S - 600) * SECOND)
    state = LiveState(tmp_path / "run")
    state.poll()
    step.set(end_ns=now)
    for _ in range(4):
        state.poll()
    window = state.snapshot().window
    assert window is not None
    [done] = window.recent
    assert done.tau_s == {"rollout": 600.0}
