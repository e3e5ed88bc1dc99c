"""The jobs of examples/walls/ are valid, one for each wall; some are run for a few steps."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.walls import FILES, VARIANTS, Finding, Wall, write
from rltrace.testing.inside.analysis import NAMES
from rltrace.testing.inside.trainer import ray_session, task_of
from rltrace.trainer import TrainerConfig, load_job, train
from tests.trainer.forked_workers import forked_workers

pytestmark = pytest.mark.slow

PATHS = sorted(FILES.glob("*.toml"))


def test_there_is_a_job_for_each_wall() -> None:
    assert {Wall.of(path).wall for path in PATHS} == set(NAMES)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_job_can_run_with_and_without_its_cause(path: Path, variant: str) -> None:
    wall = Wall.of(path)
    config = TrainerConfig.of(wall.settings(variant))
    task_of(config)
    assert wall.warm_up < config.steps
    assert wall.metric in ("step", "goodput")
    changes = wall.settings(variant).items() - wall.job.items()
    assert bool(changes) == (variant != "with its cause")


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_command_line_runs_what_is_measured(path: Path) -> None:
    wall = Wall.of(path)
    assert load_job(path) == wall.settings("with its cause")
    assert load_job(path, without_cause=True) == wall.settings("without")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
    with forked_workers(), ray_session(TrainerConfig(rollout_workers=1)):
        yield


def run(name: str, variant: str, **fewer: Any) -> list[dict[str, Any]]:
    settings = Wall.of(FILES / f"{name}.toml").settings(variant)
    ledger = train(TrainerConfig.of(settings | fewer))
    return list(json.loads(ledger.to_json())["steps"])


@pytest.mark.usefixtures("cluster")
def test_a_graded_reward_gives_a_signal_where_a_sparse_one_gave_none() -> None:
    sparse, graded = (run("sparse-reward", variant, steps=2) for variant in VARIANTS[:2])
    assert [s["tokens_generated"] for s in sparse][:1] == [s["tokens_generated"] for s in graded][
        :1
    ]  # the same answers
    assert sum(s["drops"]["zero-advantage"] for s in sparse) > sum(s["samples"] for s in sparse) / 2
    assert sum(s["drops"].get("zero-advantage", 0) for s in graded) == 0


@pytest.mark.usefixtures("cluster")
def test_a_lag_bound_takes_old_samples_away() -> None:
    late, fresh = (run("freshness", variant, steps=8) for variant in VARIANTS[:2])
    assert max(int(lag) for step in late for lag in step["lags"]) > 1
    assert max(int(lag) for step in fresh for lag in step["lags"]) <= 1


@pytest.mark.usefixtures("cluster")
def test_without_log_probs_nobody_sees_that_the_policy_has_moved() -> None:
    small = {"steps": 3, "model_size": 0.1, "prompts": 4}
    text, ids = (run("observability", variant, **small)[-1] for variant in VARIANTS[:2])
    assert text["lags"] == ids["lags"] == {"1": sum(ids["lags"].values())}
    assert text["ess"] == pytest.approx(1, abs=1e-4)
    assert ids["ess"] < 1 - 1e-4


def ledger(*steps: tuple[float, int, float]) -> dict[str, Any]:
    """Steps of so many seconds, tokens trained on, and effective sample size."""
    names = ("seconds", "tokens_trained", "ess")
    return {"steps": [dict(zip(names, step, strict=True)) for step in steps]}


def test_figures_leave_the_warm_up_out() -> None:
    steps = ledger((9.0, 9, 1.0), (1.0, 100, 0.5), (3.0, 100, 1.0))
    wall = dataclasses.replace(Wall.of(PATHS[0]), warm_up=1, metric="goodput")
    assert wall.figure(steps) == (50 + 100) / 4
    assert wall.gain(30, 10) == 3
    in_time = dataclasses.replace(wall, metric="step")
    assert in_time.figure(steps) == 2000
    assert in_time.gain(10, 30) == 3


def test_figures_are_written_into_the_header_and_nowhere_else(tmp_path: Path) -> None:
    path = tmp_path / "some.toml"
    path.write_text(PATHS[0].read_text())
    wall = Wall.of(path)
    figures = {name: [value, value] for name, value in zip(VARIANTS, (8.0, 2.0, 7.0), strict=True)}
    gain = 4 if wall.metric == "step" else 0.25
    for _ in range(2):  # a second time replaces the first
        write(Finding(wall, figures, {}), pairs=2)
    assert Wall.of(path) == wall
    lines = path.read_text().splitlines()
    [first] = [i for i, line in enumerate(lines) if line.startswith("# Measured")]
    assert lines[first] == "# Measured by `python -m benchmarks.walls some --pairs 2`:"
    assert f"without the cause 2: {gain:.2f} times better" in lines[first + 1]
    assert lines[first + 3].startswith("wall = ")
