"""Whatever the order in which rows are stored and read, the live figures are the report's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rltrace
from rltrace.testing.clocks import up_for_days
from rltrace.testing.inside.analysis import LiveState, summarize
from rltrace.testing.inside.hooks import Recorder
from rltrace.testing.inside.trace import Fate, Stage, create_run, segment
from tests.analysis.live.test_figures import ALL, assert_agrees, assert_samples_agree, near

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
    assert [one.step for one in window.recent] == [one.step for one in times]
    for live, step in zip(window.recent, times, strict=True):
        assert live.tau_s == near({name: s for name, s in step.tau_s.items() if s > 0})
        assert live.trained_samples == SAMPLES
        assert live.mean_lag == 1 / 2
    assert_samples_agree(window, run)


@pytest.fixture(params=range(4), ids=lambda seed: f"seed{seed}")
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
