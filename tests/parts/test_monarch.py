"""Monarch 0.7.0: actors in processes that a mesh starts are traced as any others, their endpoints
can be hooked, and what they record meets across processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from rltrace.testing.inside.hooks import identify
from tests.parts.jobs import Finished

STEPS = 4
BATCH = 4
HOOKS = {
    "monarch_actors:Generator.generate": "rollout",
    "monarch_actors:Verifier.judge": "reward",
    "monarch_actors:Buffer.take": "data",
    "monarch_actors:Trainer.train": "train",
    "monarch_actors:Generator.load": "sync",
}


@pytest.fixture(scope="module")
def job(part: Callable[..., Finished]) -> Finished:
    """Four steps, the endpoints hooked from outside."""
    hooks = [f"--hook={target}={stage}" for target, stage in HOOKS.items()]
    return part("monarch", "monarch_loop.py", str(STEPS), wrap=hooks)


def test_every_actor_s_process_is_traced(job: Finished) -> None:
    pids = {line["pid"] for what in ("made", "judged", "trained") for line in job.noted(what)}
    assert len(pids) == 3
    assert pids <= {process.pid for process in job.run.processes}


def test_endpoints_are_spans_of_the_stage_that_a_hook_says(job: Finished) -> None:
    found = Counter(job.rows("SELECT name, stage FROM spans WHERE stage <> 'step'"))
    made, judged = len(job.noted("made")), len(job.noted("judged"))
    assert found == {
        ("Generator.generate", "rollout"): made,
        ("Verifier.judge", "reward"): judged,
        ("Buffer.take", "data"): len(job.noted("asked")),
        ("Trainer.train", "train"): STEPS,
        ("Generator.load", "sync"): STEPS,
    }


def test_versions_and_tokens_are_the_generator_s(job: Finished) -> None:
    noted = {
        identify(made["sample"]): (made["tokens"], made["first"], made["last"])
        for made in job.noted("made")
    }
    columns = "trajectory, response_tokens, first_version, last_version"
    assert job.keyed(f"SELECT {columns} FROM trajectories") == noted


def test_lags_meet_across_processes(job: Finished) -> None:
    noted = {identify(line["sample"]): (line["step"], line["lag"]) for line in job.noted("trained")}
    assert job.keyed("SELECT trajectory, step, lag FROM lags") == noted
    assert len(noted) == STEPS * BATCH


def test_weights_are_counted_to_the_byte(job: Finished) -> None:
    noted = [(line["version"], line["bytes"]) for line in job.noted("loaded")]
    assert job.rows("SELECT version, bytes FROM syncs ORDER BY version") == noted
    assert len(noted) == STEPS
