"""A real verl job, trainer and rollout apart, whose weights go through rltrace.sync: what is asked
for is one setting, `checkpoint_engine.backend=rltrace`. All that `test_runs` asks of the others is
asked of it, too. Its updates are held against those of the same job with the test plug-in's engine
over gloo, where that one is run (not with QUICK=1)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rltrace.testing.inside.analysis import find_steps, read_activity, syncs, updates_of
from tests.sync.explaining import MOST, explained
from tests.verl.jobs import JOBS, SYNC_BYTES, Finished

VERSIONS = range(JOBS["rltrace"].steps + 1)


@pytest.fixture
def job(finished: Callable[..., Finished]) -> Finished:
    return finished("rltrace")


def test_the_plug_in_hides_no_hook(job: Finished) -> None:
    """Both wait for the same module of verl's."""
    updates = "SELECT version FROM spans WHERE name = 'CheckpointEngineManager.update_weights'"
    assert sorted(job.rows(updates)) == list(VERSIONS)


def test_each_version_is_taken_as_it_was_sent(job: Finished) -> None:
    sent, taken = (
        job.rows(
            "SELECT version, bytes, wire_bytes, checksum FROM syncs"
            f" WHERE role = '{role}' ORDER BY version"
        )
        for role in ("source", "sink")
    )
    assert sent == taken
    assert [row[:3] for row in sent] == [(version, SYNC_BYTES, SYNC_BYTES) for version in VERSIONS]
    assert len({checksum for *_, checksum in sent}) == len(sent)


def test_the_time_of_updates_is_explained(job: Finished) -> None:
    activity = read_activity(job.run)
    found = syncs(job.run, find_steps(job.run, (activity.first_ns, activity.last_ns)))
    assert found is not None
    assert sum(spread.mean for _, spread in found.phases_s) >= MOST * found.update_s.mean
    assert explained(job.run, "ActorRolloutRefWorker.update_weights") >= MOST


@pytest.mark.parametrize("name", ["fill a slot", "hand over"])
def test_spans_carry_every_byte_of_an_update(job: Finished, name: str) -> None:
    moved = job.rows(
        f"SELECT version, sum(bytes) FROM spans WHERE name = '{name}' GROUP BY ALL ORDER BY ALL"
    )
    assert moved == [(version, SYNC_BYTES) for version in VERSIONS]


def test_updates_are_those_of_the_engine_over_gloo(
    job: Finished, finished: Callable[..., Finished]
) -> None:
    ours, others = (updates_of(run) for run in (job.run, finished("separate").run))
    assert [update.version for update in ours] == [update.version for update in others]
