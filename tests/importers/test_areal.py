"""What AReaL's own tracer has written (`make_areal_fixtures`): totals are the files' own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.importers.areal import NAMES
from rltrace.testing.inside.analysis import is_laid_out
from rltrace.testing.inside.run import import_log
from rltrace.testing.inside.trace import Stage
from tests.importers.logs import FIXTURES

AREAL = FIXTURES / "areal"


def objects(name: str) -> list[dict[str, Any]]:
    """The lines of a file."""
    return [json.loads(line) for line in (AREAL / name).read_text("utf-8").splitlines()]


def test_sessions_have_the_seconds_that_areal_adds_up(tmp_path: Path) -> None:
    sessions = objects("sessions-r0.jsonl")
    run = rltrace.open_run(import_log("areal", AREAL, tmp_path / "run").path)
    assert not is_laid_out(run)
    by_stage = "SELECT stage, sum(end_ns - start_ns) / 1e9 FROM spans GROUP BY 1"
    assert dict(run.sql(by_stage).fetchall()) == pytest.approx(
        {
            stage: sum(session[name] for session in sessions)
            for stage, name in (
                ("rollout", "generate_s"), ("reward", "reward_s"), ("env", "toolcall_s")
            )
        },
        rel=1e-5,
    )  # fmt: skip
    found = "SELECT sum(end_ns - start_ns) / 1e9, sum(env_ns) / 1e9, count(*) FROM trajectories"
    [(total_s, tools_s, count)] = run.sql(found).fetchall()
    assert count == len(sessions)
    assert total_s == pytest.approx(sum(session["total_s"] for session in sessions), rel=1e-5)
    assert tools_s == pytest.approx(sum(session["toolcall_s"] for session in sessions), rel=1e-5)
    rejected = sum(session["status"] == "rejected" for session in sessions)
    fates = "SELECT fate, count(*) FROM uses GROUP BY 1"
    assert run.sql(fates).fetchall() == [("filtered", rejected)]


def test_events_have_the_microseconds_that_areal_wrote(tmp_path: Path) -> None:
    events = [event for event in objects("traces-r0.jsonl") if event["ph"] == "X"]
    done = import_log("areal", AREAL / "traces-r0.jsonl", tmp_path / "run")
    assert done.steps == len({event["args"]["global_step"] for event in events})
    run = rltrace.open_run(done.path)
    by_name = "SELECT name, sum(end_ns - start_ns) / 1000 FROM spans GROUP BY 1"
    expected = dict.fromkeys((event["name"] for event in events), 0)
    for event in events:
        expected[event["name"]] += event["dur"]
    found = dict(run.sql(by_name).fetchall())
    assert found.pop("step") >= sum(expected.values())
    assert found == expected
    assert all(NAMES.stage_of(name) is not None for name in expected)


@pytest.mark.parametrize(
    ("event", "stage"),
    [
        ("train.compute_values", Stage.VALUE),
        ("train.critic_ppo_update", Stage.TRAIN),
        ("train.actor_offload", Stage.SWITCH),
        ("train.rollout_pause_generation", Stage.SWITCH),
        ("train.checkpoint", Stage.CHECKPOINT),
    ],
)
def test_what_its_trainers_name_has_a_stage(event: str, stage: Stage) -> None:
    assert NAMES.stage_of(event) == stage
