"""A real verl job, trainer and rollout apart, whose weights go through rltrace.sync: what is asked
for is one setting, `checkpoint_engine.backend=rltrace`.

Its updates are held against those of the same job with the test plug-in's engine over gloo, where
that one is run (not with QUICK=1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rltrace.testing.inside.analysis import find_steps, read_activity, syncs, updates_of
from tests.sync.explaining import explained
from tests.verl.conftest import ASKED
from tests.verl.jobs import JOBS, SYNC_BYTES, Finished, by_rltrace_sync, train

SEPARATE = JOBS["separate"]
VERSIONS = range(SEPARATE.steps + 1)


@pytest.fixture(scope="module")
def job(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The job, traced."""
    return train(by_rltrace_sync(SEPARATE), assets, tmp_path_factory.mktemp("rltrace"))


def test_every_hook_found_its_target_and_could_read(job: Finished) -> None:
    assert [problem for problem in job.run.problems if problem["what"] != "no-gpu"] == []


def test_the_plug_in_hides_no_hook(job: Finished) -> None:
    """Both wait for the same module of verl's."""
    updates = "SELECT version FROM spans WHERE name = 'CheckpointEngineManager.update_weights'"
    assert sorted(job.rows(updates)) == list(VERSIONS)


def test_each_version_is_sent_and_taken_once_by_everyone_to_the_byte(job: Finished) -> None:
    rows = job.rows(
        "SELECT role, version, bytes, wire_bytes, transport FROM syncs ORDER BY role DESC, version"
    )
    assert rows == [
        (role, version, SYNC_BYTES, SYNC_BYTES, "shared-memory")
        for role in ("source", "sink")
        for version in VERSIONS
    ]
    sent, taken = (
        dict(job.rows(f"SELECT version, checksum FROM syncs WHERE role = '{role}'"))
        for role in ("source", "sink")
    )
    assert sent == taken
    assert len(set(sent.values())) == len(sent)


def test_servers_are_given_every_tensor_under_every_name(job: Finished) -> None:
    given = Counter((stamp["version"], stamp["bytes"]) for stamp in job.stamps("weights"))
    assert given == Counter((version, SYNC_BYTES) for version in VERSIONS)


def test_answers_come_from_the_versions_that_were_sent(job: Finished) -> None:
    versions = {stamp["version"] for stamp in job.stamps("generate")}
    assert versions <= set(VERSIONS)
    assert len(versions) > 1


def test_verl_logs_what_was_sent(job: Finished) -> None:
    for metrics in job.metrics.values():
        assert metrics["checkpoint_engine/payload_mbytes"] == SYNC_BYTES / (1 << 20)


def test_the_time_of_updates_is_explained(job: Finished) -> None:
    activity = read_activity(job.run)
    found = syncs(job.run, find_steps(job.run, (activity.first_ns, activity.last_ns)))
    assert found is not None
    assert sum(spread.mean for _, spread in found.phases) >= 0.99 * found.update_s.mean
    assert explained(job.run, "ActorRolloutRefWorker.update_weights") >= 0.99


def test_spans_carry_every_byte_of_an_update(job: Finished) -> None:
    for name in ("fill a slot", "hand over"):
        moved = job.rows(
            f"SELECT version, sum(bytes) FROM spans WHERE name = '{name}' GROUP BY ALL ORDER BY ALL"
        )
        assert moved == [(version, SYNC_BYTES) for version in VERSIONS]


def test_updates_are_those_of_the_engine_over_gloo(
    job: Finished, finished: Callable[..., Finished]
) -> None:
    if "separate" not in ASKED:
        pytest.skip("QUICK=1 asks for one kind of job")
    other = finished("separate")
    assert [update.version for update in updates_of(job.run)] == [
        update.version for update in updates_of(other.run)
    ]
