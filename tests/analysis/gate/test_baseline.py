"""A baseline on disk: small, whole, and refused where it is not one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rltrace.analysis.gate.baseline import (
    Baseline,
    differences,
    make_baseline,
    read_baseline,
    write_baseline,
)
from rltrace.testing.inside.analysis import MOST_STEPS, series_of
from rltrace.testing.inside.analysis import metrics as m
from rltrace.testing.inside.trace import CANNOT_TELL, UNREADABLE, WRONG_USAGE, RltraceError, Run
from rltrace.testing.made import process, run_of, turns
from tests.analysis.conftest import Made

Synthetic = Callable[..., Made]


@pytest.fixture(scope="module")
def baseline(synthetic: Synthetic) -> Baseline:
    return make_baseline([synthetic(placement="async", seed=n)[0] for n in (1, 2)])


def _of_file(path: Path, baseline: Baseline, **changed: Any) -> Path:
    write_baseline(baseline, path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    return path


def test_a_baseline_comes_back_as_it_was(baseline: Baseline, tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    write_baseline(baseline, path)
    again = read_baseline(path)
    assert again.created == baseline.created
    assert again.hardware == dict(baseline.hardware)
    assert again.settings == dict(baseline.settings)
    assert [run.run for run in again.runs] == [run.run for run in baseline.runs]
    for before, after in zip(baseline.runs, again.runs, strict=True):
        assert (before.steps == after.steps).all()
        assert before.columns.keys() == after.columns.keys()
        for name, column in before.columns.items():
            np.testing.assert_allclose(after.columns[name], column, rtol=1e-5)


def test_a_baseline_is_small(baseline: Baseline, tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    write_baseline(baseline, path)
    steps = sum(run.size for run in baseline.runs)
    assert path.stat().st_size < 2000 + 500 * steps


def test_the_series_are_the_truth_of_the_run(synthetic: Synthetic) -> None:
    run, truth = synthetic(placement="colocated")
    series = series_of(run)
    assert series.steps.tolist() == [step.step for step in truth.steps]
    busy = series.columns[m.BUSY + "train"]
    assert busy == pytest.approx([step.tau_s["train"] for step in truth.steps], rel=1e-3)
    parts = sum(c for name, c in series.columns.items() if name.startswith(m.EXPOSED))
    assert parts == pytest.approx(series.columns[m.LENGTH])
    lags = sum(c.sum() for name, c in series.columns.items() if name.startswith(m.LAG))
    assert lags > 0
    assert series.columns[m.SYNC_BYTES].sum() > 0


def test_of_a_long_run_the_last_steps_are_kept(tmp_path: Path) -> None:
    run = run_of(tmp_path, process("learner", *turns(*[6.0] * (MOST_STEPS + 5))))
    series = series_of(run)
    assert series.size == MOST_STEPS
    assert series.steps[-1] == MOST_STEPS + 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no JSON"),
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("\x00\x01", "no JSON"),
        ("[]", "no baseline"),
        ("3", "no baseline"),
        ('{"format": "coverage"}', "no baseline"),
        ('{"format": "rltrace-baseline"}', "schema version None"),
        ('{"format": "rltrace-baseline", "schema_version": 2}', "schema version 2"),
        ('{"format": "rltrace-baseline", "schema_version": 1}', "damaged"),
    ],
)
def test_what_is_no_baseline_is_told_in_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(text)
    with pytest.raises(RltraceError, match=says) as error:
        read_baseline(path)
    assert error.value.exit_code == UNREADABLE
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "changed",
    [
        {"runs": []},
        {"runs": 3},
        {"runs": [{}]},
        {"runs": [{"run": "a", "start_ns": 1, "steps": [], "columns": {}}]},
        {"runs": [{"run": "a", "start_ns": 1, "steps": [1], "columns": {}}]},
        {"runs": [{"run": "a", "start_ns": 1, "steps": [1], "columns": {"length_s": [1, 2]}}]},
        {"runs": [{"run": "a", "start_ns": 1, "steps": [1], "columns": {"length_s": ["x"]}}]},
        {"runs": [{"run": "a", "start_ns": 1, "steps": [1], "columns": {"length_s": [None]}}]},
        {"runs": [{"run": "a", "start_ns": 1, "steps": [1], "columns": {"length_s": [0]}}]},
        {"runs": [{"run": "a", "start_ns": 1, "steps": [1e99], "columns": {"length_s": [1]}}]},
        {"runs": [{"run": "a", "start_ns": 1, "steps": [1],
                   "columns": {"length_s": [1], "lag.x": [1]}}]},
        {"runs": [{"run": "a", "start_ns": 1, "steps": [1],
                   "columns": {"length_s": [1], "useful_tokens": [-5]}}]},
        *({"runs": [{"run": "a", "start_ns": 1, "steps": [1],
                     "columns": {"length_s": [1], name: [figure]}}]}
          for name in ("useful_tokens", "length_s", "reward") for figure in (1e308, -1e308)),
        {"runs": [{"run": "a", "start_ns": 1, "steps": [1], "columns": {"length_s": [1e-308]}}]},
        {"hardware": "large"},
        {"settings": None},
    ],
)  # fmt: skip
def test_a_damaged_baseline_is_told(
    baseline: Baseline, tmp_path: Path, changed: dict[str, Any]
) -> None:
    path = _of_file(tmp_path / "baseline.json", baseline, **changed)
    with pytest.raises(RltraceError, match="damaged") as error:
        read_baseline(path)
    assert error.value.exit_code == UNREADABLE
    assert "\n" not in str(error.value)


def test_a_file_that_cannot_be_read_or_written_is_told(baseline: Baseline, tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(RltraceError, match="cannot be read") as error:
            read_baseline(path)
        assert error.value.exit_code == UNREADABLE
    with pytest.raises(RltraceError, match="cannot be written"):
        write_baseline(baseline, tmp_path / "no" / "where.json")


def test_runs_of_other_work_or_hardware_make_no_baseline(synthetic: Synthetic) -> None:
    one = synthetic(placement="async", seed=1)[0]
    for knobs in ({"gpus": 4}, {"rollout_workers": 2}):
        other = synthetic(placement="async", **knobs)[0]
        with pytest.raises(RltraceError, match="no runs of one baseline") as error:
            make_baseline([one, other])
        assert error.value.exit_code == WRONG_USAGE


def test_a_run_counts_once(synthetic: Synthetic) -> None:
    one = synthetic(placement="async", seed=1)[0]
    with pytest.raises(RltraceError, match="counts once"):
        make_baseline([one, one])
    with pytest.raises(RltraceError, match="1 to"):
        make_baseline([])


def test_a_run_without_a_step_makes_no_baseline(tmp_path: Path) -> None:
    from rltrace.testing.inside.trace import Stage

    run = run_of(tmp_path, process("learner", (Stage.TRAIN, 0, 3)))
    with pytest.raises(RltraceError, match="no complete step") as error:
        make_baseline([run])
    assert error.value.exit_code == CANNOT_TELL


def test_what_differs_is_named(synthetic: Synthetic, baseline: Baseline) -> None:
    same: Run = synthetic(placement="async", seed=3)[0]
    assert differences(same, baseline) == ()
    other: Run = synthetic(placement="async", gpus=4)[0]
    assert "devices" in {one.name for one in differences(other, baseline)}
