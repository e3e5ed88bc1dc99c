"""A real asynchronous OpenRLHF job under `rltrace wrap --sync`: an update is two calls, and what
its engines generate with is what was sent. Held against the same job with OpenRLHF's own calls;
all that `test_runs` asks of the others is asked of it, too."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rltrace.testing.inside.analysis import find_steps, read_activity, syncs
from tests.openrlhf.jobs import SYNC_BYTES, TENSORS, Finished
from tests.sync.explaining import MOST, explained


@pytest.fixture
def job(finished: Callable[[str], Finished]) -> Finished:
    return finished("whole")


def test_an_update_is_two_calls_and_the_second_has_all_the_bytes(job: Finished) -> None:
    updates = job.stamps("update")
    assert [stamp["bytes"] for stamp in updates] == [0, SYNC_BYTES] * job.job.steps
    assert [stamp["last"] for stamp in updates] == [False, True] * job.job.steps


def test_the_trace_has_each_update_and_its_bytes(job: Finished) -> None:
    for name in ("fill a slot", "load"):
        moved = job.rows(f"SELECT bytes FROM spans WHERE name = '{name}' ORDER BY start_ns")
        assert moved == [SYNC_BYTES] * job.job.steps
    tensors = job.rows("SELECT DISTINCT items FROM spans WHERE name = 'load'")
    assert tensors == [TENSORS]


def test_the_time_of_updates_is_explained(job: Finished) -> None:
    activity = read_activity(job.run)
    found = syncs(job.run, find_steps(job.run, (activity.first_ns, activity.last_ns)))
    assert found is not None
    assert sum(spread.mean for _, spread in found.phases_s) >= MOST * found.update_s.mean
    assert explained(job.run, "ActorPPOTrainer.broadcast_to_vllm") >= MOST


def test_versions_and_bytes_are_those_of_openrlhfs_own_calls(
    job: Finished, finished: Callable[[str], Finished]
) -> None:
    own = finished("async")
    query = "SELECT role, version, bytes FROM syncs ORDER BY ALL"
    assert job.rows(query) == own.rows(query)
    lags = "SELECT step, min(lag), max(lag) FROM lags GROUP BY step ORDER BY step"
    assert [step for step, *_ in job.rows(lags)] == [step for step, *_ in own.rows(lags)]


def test_engines_generate_with_what_the_policy_has_learnt(job: Finished) -> None:
    """The policy's log-probabilities of its answers are those that the engine had: of a version
    that never arrived they would drift apart."""
    for metrics in job.metrics.values():
        assert abs(metrics["vllm_kl"]) < 0.01
