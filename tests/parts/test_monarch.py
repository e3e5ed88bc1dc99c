"""Monarch 0.7.0: actors in processes that a mesh starts are traced as any others, their endpoints
can be hooked, and what they record meets across processes.
"""

from __future__ import annotations

from collections import Counter

from rltrace.testing.inside.hooks import identify
from tests.framework_jobs import Ended

STEPS = 4
JOB = ("monarch", "monarch_loop.py", str(STEPS))
BATCH = 4
HOOKS = {
    "Generator.generate": "rollout",
    "Verifier.judge": "reward",
    "Buffer.take": "data",
    "Trainer.train": "train",
    "Generator.load": "sync",
}
WRAP = [f"--hook=monarch_actors:{target}={stage}" for target, stage in HOOKS.items()]


def test_every_actor_s_process_is_traced(job: Ended[str]) -> None:
    pids = {line["pid"] for what in ("made", "judged", "trained") for line in job.stamps(what)}
    assert len(pids) == 3
    assert pids <= {process.pid for process in job.run.processes}


def test_endpoints_are_spans_of_the_stage_that_a_hook_says(job: Ended[str]) -> None:
    found = Counter(job.rows("SELECT name, stage FROM spans WHERE stage <> 'step'"))
    times = [*(len(job.stamps(what)) for what in ("made", "judged", "asked")), STEPS, STEPS]
    assert found == dict(zip(HOOKS.items(), times, strict=True))


def test_versions_and_tokens_are_the_generator_s(job: Ended[str]) -> None:
    noted = {
        identify(made["sample"]): (made["tokens"], made["first"], made["last"])
        for made in job.stamps("made")
    }
    columns = "trajectory, response_tokens, first_version, last_version"
    assert job.keyed(f"SELECT {columns} FROM trajectories") == noted


def test_lags_meet_across_processes(job: Ended[str]) -> None:
    noted = {
        identify(line["sample"]): (line["step"], line["lag"]) for line in job.stamps("trained")
    }
    assert job.keyed("SELECT trajectory, step, lag FROM lags") == noted
    assert len(noted) == STEPS * BATCH


def test_weights_are_counted_to_the_byte(job: Ended[str]) -> None:
    noted = [(line["version"], line["bytes"]) for line in job.stamps("loaded")]
    assert job.rows("SELECT version, bytes FROM syncs ORDER BY version") == noted
    assert len(noted) == STEPS
