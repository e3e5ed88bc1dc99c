"""RLinf 0.3.0: its scheduler on Ray. Groups of workers are roles and ranks, its runners' timer is
steps and stages, and what goes through its channels are waits of those who put and get.
"""

from __future__ import annotations

from collections import Counter

from rltrace.testing.inside.hooks import identify
from rltrace.testing.inside.trace import REDACTED
from tests.framework_jobs import Ended

STEPS = 3
JOB = ("rlinf", "rlinf_loop.py", str(STEPS))


def test_workers_have_the_roles_and_ranks_of_their_groups(job: Ended[str]) -> None:
    workers = {(p.role, p.rank) for p in job.run.processes if p.role in ("rollout", "learner")}
    assert workers == {("rollout", 0), ("rollout", 1), ("learner", 0)}


def test_the_runner_s_timer_is_steps_and_their_stages(job: Ended[str]) -> None:
    assert job.rows("SELECT step FROM steps ORDER BY start_ns") == list(range(STEPS))
    labels = Counter(label for timed in job.stamps("timed") for label in timed["labels"])
    names = "'generate_rollouts', 'actor_training', 'sync_weights'"
    found = job.keyed(f"SELECT name, count(*) FROM spans WHERE name IN ({names}) GROUP BY name")
    assert found == {name: count for name, count in labels.items() if name != "step"}
    assert labels["step"] == STEPS


def test_what_goes_through_a_channel_is_counted_where_it_is_put_and_got(job: Ended[str]) -> None:
    found = job.keyed(
        "SELECT name || ' ' || role, sum(items) FROM spans"
        " WHERE stage = 'wait' AND name LIKE 'Channel.%' GROUP BY ALL"
    )
    put, got = len(job.stamps("put")), len(job.stamps("got"))
    assert found == {"Channel.put rollout": put, "Channel.get learner": got}


def test_versions_tokens_and_lags_meet_across_workers(job: Ended[str]) -> None:
    put = {identify(one["sample"]): (one["version"], one["tokens"]) for one in job.stamps("put")}
    assert job.keyed("SELECT trajectory, first_version, response_tokens FROM trajectories") == put
    got = {identify(one["sample"]): (one["step"], one["lag"]) for one in job.stamps("got")}
    assert job.keyed("SELECT trajectory, step, lag FROM lags") == got
    assert {lag for _, lag in got.values()} == {0, 1}


def test_the_runner_s_logger_is_told_all_settings(job: Ended[str]) -> None:
    """Those that stand for another are words that a run does not keep."""
    stated = [p.facts["settings"] for p in job.run.processes if "settings" in p.facts]
    assert stated == [
        {
            "runner.seq_length": 2048,
            "actor.training_backend": "megatron",
            "actor.megatron.use_hf_ckpt": None,
            "algorithm.group_size": 8,
            "algorithm.sampling_params.max_new_tokens": REDACTED,
        }
    ]
