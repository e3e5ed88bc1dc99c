"""What verl's agent loops, their requests and their verdicts leave."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from rltrace.testing.inside.hooks import recorder as recording
from rltrace.testing.inside.trace import GIVEN_NAN, Outcome
from tests.adapters.verl_shapes import Worker, answer, rows


def test_a_trajectory_is_what_its_requests_and_its_output_say(
    recorder: recording.Recorder, run_path: Path
) -> None:
    answers = [answer(3, "aborted", global_steps=4), answer(4, global_steps=6)]
    fields = {"uid": "u", "session_id": 1, "data_source": "task"}
    asyncio.run(Worker(answers).run({"validate": False}, **fields))
    assert rows(
        run_path,
        "select first_version, last_version, prompt_tokens, response_tokens, turns, env_ns, finish "
        "from trajectories",
    ) == [(4, 6, 5, 7, 2, 500_000_000, "stop")]
    assert rows(run_path, "select component, value, outcome from rewards") == [("task", 1.5, "ok")]
    requests = "from spans where stage <> 'other'"
    assert rows(run_path, f"select stage, tokens, version {requests} order by start_ns") == [
        ("rollout", 3, 4),
        ("rollout", 4, 6),
    ]
    waits = "select min(start_ns) from spans where stage = 'other'"
    assert rows(run_path, f"select min(start_ns) - ({waits}) >= 2000000 {requests}") == [(True,)]
    joined = "select count(*) from rewards join trajectories using (trajectory)"
    assert rows(run_path, joined) == [(1,)]


def test_a_response_as_long_as_allowed_was_cut(
    recorder: recording.Recorder, run_path: Path
) -> None:
    worker = Worker([answer(10)])
    asyncio.run(worker.run({"validate": False}, uid="u", session_id=0))
    assert rows(run_path, "select finish, first_version from trajectories") == [("length", None)]


def test_a_validation_is_no_rollout(recorder: recording.Recorder, run_path: Path) -> None:
    asyncio.run(Worker([answer(3)]).run({"validate": True}, uid="u", session_id=0))
    assert rows(run_path, "select distinct stage from spans where stage <> 'other'") == [("eval",)]
    assert rows(run_path, "select count(*) from trajectories") == [(0,)]
    assert rows(run_path, "select count(*) from rewards") == [(0,)]


def test_a_loop_that_raises_ends_in_error(recorder: recording.Recorder, run_path: Path) -> None:
    worker = Worker(None)
    with pytest.raises(TypeError):
        asyncio.run(worker.run({"validate": False}, uid="u", session_id=0))
    found = rows(run_path, "select finish, end_ns > start_ns from trajectories")
    assert found == [("error", True)]


def test_a_verdict_that_is_no_number_is_one_and_no_error(
    recorder: recording.Recorder, run_path: Path
) -> None:
    worker = Worker([answer(3)])
    worker.score = math.nan
    asyncio.run(worker.run({"validate": False}, uid="u", session_id=0))
    found = rows(run_path, f"select outcome, {GIVEN_NAN} from raw_rewards")
    assert found == [(int(Outcome.OK), True)]
