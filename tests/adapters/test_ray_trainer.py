"""The adapter against the trainer's own ledger: a traced run and the same run untraced."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.adapters.ray_trainer import RayTrainer
from tests.hooks.conftest import WRAP, clean_environment

ROOT = Path(__file__).parents[2]
STEPS = 4
TRAIN = [
    sys.executable, str(ROOT / "examples/train.py"), "--steps", str(STEPS), "--prompts", "4",
    "--samples", "4", "--width", "32", "--layers", "1", "--symbols", "3", "--longest", "3",
]  # fmt: skip


@dataclass(frozen=True)
class Traced:
    """A traced job: its run, the trainer's ledger, and the ledger of the same job untraced."""

    run: Any
    steps: list[dict[str, Any]]
    untraced_steps: list[dict[str, Any]]

    def rows(self, query: str) -> list[Any]:
        """The rows of a query; bare values where it has one column."""
        found = self.run.sql(query).fetchall()
        return [row[0] if len(row) == 1 else row for row in found]


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Traced:
    folder = tmp_path_factory.mktemp("traced")
    environment = clean_environment(RAY_memory_monitor_refresh_ms="0")

    def steps(name: str, *wrap: str) -> list[dict[str, Any]]:
        command = [*wrap, *TRAIN, "--ledger", str(folder / name)]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        written: list[dict[str, Any]] = json.loads((folder / name).read_text())["steps"]
        return written

    recorded = steps("traced.json", *WRAP, "--out", str(folder / "run"), "--")
    return Traced(rltrace.open_run(folder / "run"), recorded, steps("untraced.json"))


def test_the_job_does_the_same_with_and_without_a_trace(traced: Traced) -> None:
    def without_times(step: dict[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in step.items() if k not in ("seconds", "stage_seconds")}

    assert list(map(without_times, traced.steps)) == list(map(without_times, traced.untraced_steps))


def test_every_hook_found_its_target(traced: Traced) -> None:
    assert [p for p in traced.run.problems if p["what"] != "no-gpu"] == []
    assert len({hook.target for hook in RayTrainer.hooks}) == len(RayTrainer.hooks)


def test_processes_carry_their_roles(traced: Traced) -> None:
    roles = traced.rows("SELECT role FROM processes WHERE role != 'agent' ORDER BY role")
    assert roles == ["controller", "learner", "reference", "reward", "rollout", "rollout"]
    assert traced.rows("SELECT rank FROM processes WHERE role = 'rollout' ORDER BY 1") == [0, 1]


def test_steps_have_their_numbers_and_durations(traced: Traced) -> None:
    rows = traced.rows("SELECT step, (end_ns - start_ns) / 1e9 FROM steps ORDER BY step")
    assert [number for number, _ in rows] == list(range(STEPS))
    for (_, seconds), step in zip(rows, traced.steps, strict=True):
        assert seconds >= step["seconds"]  # the ledger's clock runs inside of the hooked call


@pytest.mark.parametrize(
    ("stage", "processes"),
    [("rollout", 2), ("reward", 1), ("reference", 1), ("train", 1)],
)
def test_each_stage_is_a_span_of_its_step_in_each_of_its_processes(
    traced: Traced, stage: str, processes: int
) -> None:
    rows = traced.rows(
        "SELECT step, count(DISTINCT process), sum(items), sum(tokens) FROM spans"
        f" WHERE stage = '{stage}' GROUP BY step ORDER BY step"
    )
    tokens = "tokens_trained" if stage == "train" else "tokens_generated"
    assert rows == [
        (number, processes, step["samples"], step[tokens])
        for number, step in enumerate(traced.steps)
    ]


def test_trajectories_are_all_there_and_complete(traced: Traced) -> None:
    rows = traced.rows(
        "SELECT count(DISTINCT trajectory), sum(response_tokens), sum(prompt_tokens),"
        " count(DISTINCT \"group\"), count(*) FILTER (finish = 'stop') FROM trajectories"
        " GROUP BY first_version ORDER BY first_version"
    )
    assert rows == [
        (s["samples"], s["tokens_generated"], s["prompt_tokens"], 4, s["finish"].get("stop", 0))
        for s in traced.steps
    ]
    assert traced.rows(
        "SELECT count(*) FROM trajectories WHERE NOT (start_ns <= first_token_ns AND"
        " first_token_ns <= end_ns AND first_version = last_version AND reference_version = 0)"
    ) == [0]


def test_a_trajectory_begins_and_ends_inside_its_workers_rollout_span(traced: Traced) -> None:
    assert traced.rows(
        "SELECT count(*) FROM trajectories t JOIN spans s ON s.process = t.process"
        " AND s.stage = 'rollout' AND s.start_ns <= t.start_ns AND t.end_ns <= s.end_ns"
    ) == [sum(step["samples"] for step in traced.steps)]


def test_each_trajectory_has_one_verdict_and_one_use(traced: Traced) -> None:
    joined = traced.rows(
        "SELECT u.step, avg(r.value), count(*) FILTER (u.fate = 'trained'),"
        " count(*) FILTER (u.fate = 'zero-advantage'),"
        " sum(u.tokens) FILTER (u.fate = 'trained'), sum(u.tokens)"
        " FROM trajectories t JOIN rewards r USING (trajectory) JOIN uses u USING (trajectory)"
        " GROUP BY u.step ORDER BY u.step"
    )
    for row, step in zip(joined, traced.steps, strict=True):
        assert row[1] == pytest.approx(step["reward"])
        drops = step["drops"].get("zero-advantage", 0)
        trained, generated = step["tokens_trained"], step["tokens_generated"]
        assert row[2:] == (step["samples"] - drops, drops, trained, generated)
    assert sum(row[3] for row in joined) > 0
    assert traced.rows("SELECT DISTINCT component, outcome FROM rewards") == [("sort", "ok")]
    assert traced.rows("SELECT DISTINCT lag FROM lags") == [0]


def test_ratios_of_trained_samples_are_near_one_on_policy(traced: Traced) -> None:
    rows = traced.rows(
        "SELECT sum_w / tokens, sum_w_squared / tokens, clip_share, mean_log_ratio FROM uses"
        " WHERE fate = 'trained'"
    )
    assert rows
    for mean_w, mean_w_squared, clip_share, mean_log_ratio in rows:
        assert mean_w_squared >= mean_w**2 * 0.999  # by Cauchy and Schwarz
        assert 0 <= clip_share <= 1
        assert abs(mean_log_ratio) < 1
    assert traced.rows("SELECT count(*) FROM uses WHERE fate != 'trained' AND sum_w IS NULL") == [
        sum(sum(step["drops"].values()) for step in traced.steps)
    ]


def test_weights_are_seen_at_both_ends_with_versions_and_bytes(traced: Traced) -> None:
    rows = traced.rows(
        "SELECT version, role, count(*), sum(bytes) FROM syncs GROUP BY ALL ORDER BY version, role"
    )
    expected: list[tuple[int, str, int, int]] = []
    for version, step in enumerate(traced.steps, start=1):
        expected += [
            (version, "sink", 2, step["sync_bytes"]),
            (version, "source", 1, step["sync_bytes"] // 2),
        ]
    assert rows == expected
    phases = traced.rows(
        "SELECT p.role, s.phase, count(*) FROM spans s JOIN processes p USING (process)"
        " WHERE s.stage = 'sync' AND s.phase IS NOT NULL GROUP BY ALL ORDER BY ALL"
    )
    assert phases == [
        ("learner", "gather", STEPS),
        ("learner", "transfer", STEPS),
        ("rollout", "load", 2 * STEPS),
        ("rollout", "transfer", 2 * STEPS),
    ]
