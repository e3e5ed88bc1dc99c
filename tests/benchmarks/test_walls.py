"""The jobs of examples/walls/ are valid, one for each wall; one is run for a few steps."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.walls import FILES, VARIANTS, Wall
from rltrace.testing.inside.analysis import wall_names
from rltrace.testing.inside.trainer import ray_session, task_of
from rltrace.trainer import TrainerConfig, load_job, train
from tests.trainer.forked_workers import forked_workers

pytestmark = pytest.mark.slow

PATHS = sorted(FILES.glob("*.toml"))


def test_there_is_a_job_for_each_wall() -> None:
    assert {Wall.of(path).wall for path in PATHS} <= set(wall_names())


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_job_can_run_with_and_without_its_cause(path: Path) -> None:
    wall = Wall.of(path)
    for variant in VARIANTS:
        config = TrainerConfig.of(wall.settings(variant))
        task_of(config)
        assert wall.warm_up < config.steps
        changes = wall.settings(variant).items() - wall.job.items()
        assert bool(changes) == (variant != "with its cause")
    assert wall.metric in ("step", "goodput")
    assert load_job(path) == wall.settings("with its cause")
    assert load_job(path, without_cause=True) == wall.settings("without")


def test_a_graded_reward_gives_a_signal_where_a_sparse_one_gave_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "0")
    wall = Wall.of(FILES / "sparse-reward.toml")
    settings = [wall.settings(variant) | {"steps": 2} for variant in VARIANTS[:2]]
    with forked_workers(), ray_session(TrainerConfig(rollout_workers=1)):
        ledgers = [train(TrainerConfig.of(one)) for one in settings]
    sparse, graded = (json.loads(ledger.to_json())["steps"] for ledger in ledgers)
    assert sparse[0]["tokens_generated"] == graded[0]["tokens_generated"]  # the same answers
    assert sum(s["drops"]["zero-advantage"] for s in sparse) > sum(s["samples"] for s in sparse) / 2
    assert sum(s["drops"].get("zero-advantage", 0) for s in graded) == 0


def test_figures_leave_the_warm_up_out() -> None:
    names = ("seconds", "tokens_trained", "ess")
    took = [(9.0, 9, 1.0), (1.0, 100, 0.5), (3.0, 100, 1.0)]
    steps: dict[str, Any] = {"steps": [dict(zip(names, step, strict=True)) for step in took]}
    wall = dataclasses.replace(Wall.of(PATHS[0]), warm_up=1, metric="goodput")
    assert wall.figure(steps) == (50 + 100) / 4
    assert wall.gain(30, 10) == 3
    in_time = dataclasses.replace(wall, metric="step")
    assert in_time.figure(steps) == 2000
    assert in_time.gain(10, 30) == 3
