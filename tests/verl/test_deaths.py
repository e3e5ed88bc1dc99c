"""A training worker is killed. verl starts none again, and the job ends. The step that it dies in
is no step; the trace holds what was done until then, and a new job goes on before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rltrace.testing.inside.analysis import find_steps, read_activity, summarize
from rltrace.testing.inside.report import warnings
from tests.framework_jobs import FULL_FORM
from tests.verl.jobs import SYNC_BYTES, Finished, Job, train
from tests.verl.test_runs import BATCH

pytestmark = FULL_FORM

STEPS = 4


def dies(*settings: str) -> Job:
    """A job in which a training worker kills itself before it sends version 3, at the end of step
    3."""
    return Job(settings, (("VERL_CPU_DIES_AT", "3"),), steps=STEPS)


def steps_of(job: Finished) -> tuple[list[int], list[int]]:
    """The steps that a report measures, and those that have begun and not ended."""
    activity = read_activity(job.run)
    found = find_steps(job.run, (activity.first_ns, activity.last_ns))
    return [w.step for w in found.windows], [number for number, _ in found.in_progress]


def warnings_of(job: Finished) -> str:
    return "\n".join(warnings(summarize(job.run)))


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Settings: a checkpoint every second step, from which a job goes on if there is one."""
    folder = tmp_path_factory.mktemp("checkpoints")
    return (
        f"trainer.default_local_dir={folder}",
        "trainer.save_freq=2",
        "trainer.resume_mode=auto",
    )


@pytest.fixture(scope="module")
def trainer_dies(
    assets: Path, checkpoints: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Finished:
    return train(dies(*checkpoints), assets, tmp_path_factory.mktemp("trainer"), code=1)


def test_a_training_worker_dies_of_its_own_error(trainer_dies: Finished) -> None:
    assert list(trainer_dies.metrics) == [1, 2]
    assert "ActorDiedError" in trainer_dies.log


def test_the_step_that_it_cuts_short_is_not_measured(trainer_dies: Finished) -> None:
    assert steps_of(trainer_dies) == ([1, 2], [3])
    assert trainer_dies.rows("SELECT step FROM steps WHERE seconds IS NOT NULL") == [1, 2]


def test_what_it_did_is_there_to_the_last_row(trainer_dies: Finished) -> None:
    counts = trainer_dies.rows("SELECT step, count(*) FROM uses GROUP BY step ORDER BY step")
    assert counts == [(1, BATCH), (2, BATCH), (3, BATCH)]
    trained = "SELECT version FROM spans WHERE name = 'ActorRolloutRefWorker.update_actor'"
    assert trainer_dies.rows(f"{trained} AND end_ns IS NOT NULL ORDER BY start_ns") == [0, 1, 2]
    sent = trainer_dies.rows("SELECT version, bytes FROM syncs ORDER BY start_ns")
    assert sent == [(version, SYNC_BYTES) for version in range(3)]
    told = {(one["what"], one["target"]) for one in trainer_dies.problems}
    assert {one for one in told if one[0] != "process-failed"} == {("step-failed", "3")}


def test_the_report_says_where_it_was_when_it_died(trainer_dies: Finished) -> None:
    said = warnings_of(trainer_dies)
    for told in ("exit code 1", "step 3", "ActorRolloutRefWorker.update_weights", "1 learner"):
        assert told in said


@pytest.fixture(scope="module")
def goes_on(
    trainer_dies: Finished,
    assets: Path,
    checkpoints: tuple[str, ...],
    tmp_path_factory: pytest.TempPathFactory,
) -> Finished:
    """The same job, started again: it has the checkpoint of step 2."""
    return train(Job(checkpoints, steps=STEPS), assets, tmp_path_factory.mktemp("goes-on"))


def test_a_job_that_goes_on_counts_on(goes_on: Finished) -> None:
    assert list(goes_on.metrics) == [3, 4]
    assert steps_of(goes_on) == ([3, 4], [])
    assert warnings_of(goes_on) == ""
    assert goes_on.problems == []


def test_its_versions_are_those_of_the_job_before(goes_on: Finished) -> None:
    uses = "SELECT DISTINCT u.step, version, first_version, last_version, fate"
    assert goes_on.rows(f"{uses} FROM uses u JOIN trajectories USING (trajectory) ORDER BY 1") == [
        (3, 2, 2, 2, "trained"),
        (4, 3, 3, 3, "trained"),
    ]
    sent = goes_on.rows("SELECT version, bytes FROM syncs ORDER BY start_ns")
    assert sent == [(version, SYNC_BYTES) for version in (2, 3, 4)]
    for metrics in goes_on.metrics.values():
        assert metrics["training/off_policy/trajectory_staleness/max"] == 0
