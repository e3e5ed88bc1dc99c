"""A process of the job is killed. verl starts none of them again: the job ends, or waits for ever,
as it does untraced; the trace holds what was done until then; what goes on from its checkpoint is
traced as the run that it is."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from rltrace.testing.inside.analysis import find_steps, read_activity, summarize
from rltrace.testing.inside.report import warnings
from tests.framework_jobs import ended_when
from tests.verl.jobs import JOBS, SYNC_BYTES, Finished, Job, train
from tests.verl.test_runs import BATCH

pytestmark = pytest.mark.skipif(
    bool(os.environ.get("QUICK")), reason="QUICK=1 asks for one kind of job"
)

STEPS = 4
SILENT_S = 10  # how long a job may say nothing after a death until it counts as hanging


def dies(where: str, *settings: str) -> Job:
    """A job in which a process kills itself: `place:count` (`verl_cpu/dying.py`)."""
    return Job(settings, (("VERL_CPU_DIES", where),), steps=STEPS)


def steps_of(job: Finished) -> tuple[list[int], list[int]]:
    """The steps that a report measures, and those that have begun and not ended."""
    activity = read_activity(job.run)
    found = find_steps(job.run, (activity.first_ns, activity.last_ns))
    return [w.step for w in found.windows], [number for number, _ in found.in_progress]


def warnings_of(job: Finished) -> str:
    """What the report says is wrong."""
    return "\n".join(warnings(summarize(job.run)))


def problems_of(job: Finished) -> list[dict[str, object]]:
    """What rltrace could not do."""
    return [problem for problem in job.run.problems if problem["what"] != "no-gpu"]


def errors_of(job: Finished) -> list[str]:
    """The errors that Ray and verl name, in order, without what differs from run to run."""
    log = (job.folder / "log").read_text(errors="replace")
    lines = [line for line in log.splitlines() if re.match(r"[\w.]+(Error|Exception)\b", line)]
    return [re.sub(r"\(pid=.*\)|[0-9a-f]{16,}|\d+", "", line) for line in lines]


# --- a training worker: the step that it dies in is no step, and a new job goes on before it ------


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
    """Before it sends version 3, at the end of step 3."""
    return train(
        dies("trainer:3", *checkpoints), assets, tmp_path_factory.mktemp("trainer"), code=1
    )


def test_a_training_worker_dies_as_in_an_untraced_job(
    trainer_dies: Finished, assets: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    plain = train(dies("trainer:3"), assets, tmp_path_factory.mktemp("plain"), traced=False, code=1)
    assert list(trainer_dies.metrics) == list(plain.metrics) == [1, 2]
    assert errors_of(trainer_dies) == errors_of(plain)
    assert "ActorDiedError" in "\n".join(errors_of(plain))


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
    assert problems_of(trainer_dies) == []


def test_the_report_says_where_it_was_when_it_died(trainer_dies: Finished) -> None:
    said = warnings_of(trainer_dies)
    assert "the job failed (exit code 1)" in said
    assert "step 3 in progress" in said
    assert "ActorRolloutRefWorker.update_weights” (sync) in progress" in said
    assert "(1 learner)" in said


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
    assert problems_of(goes_on) == []


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


# --- a reward worker: verl trains on what it has, and fails at the next batch ---------------------


@pytest.fixture(scope="module")
def judge_dies(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """At the tenth verdict of the second step."""
    where = dies(f"reward:{BATCH + 10}")
    return train(where, assets, tmp_path_factory.mktemp("judge"), code=1)


def test_only_judged_trajectories_are_trained_on(judge_dies: Finished) -> None:
    judged = judge_dies.rows("SELECT count(*) FROM rewards WHERE outcome = 'ok'")[0]
    assert judged == len(judge_dies.stamps("reward")) == BATCH + 9
    assert list(judge_dies.metrics) == [1, 2]
    assert steps_of(judge_dies) == ([1, 2], [3])
    for step, count in ((1, BATCH), (2, 9)):
        joined = "FROM uses u JOIN rewards r USING (trajectory)"
        scores = judge_dies.rows(f"SELECT value {joined} WHERE u.step = {step}")
        assert len(scores) == count
        assert max(scores) == pytest.approx(judge_dies.metrics[step]["critic/score/max"])


def test_tokens_are_those_of_what_is_trained_on(judge_dies: Finished) -> None:
    """verl counts the rows with which it fills the batch up."""
    joined = "FROM uses JOIN trajectories USING (trajectory) WHERE step = 2"
    tokens = judge_dies.rows(f"SELECT sum(prompt_tokens + response_tokens) {joined}")
    trained = "name = 'ActorRolloutRefWorker.update_actor' AND version = 1"
    assert judge_dies.rows(f"SELECT tokens FROM spans WHERE {trained}") == tokens
    assert tokens[0] < judge_dies.metrics[2]["perf/total_num_tokens"]


def test_those_that_nobody_judged_end_in_an_error(judge_dies: Finished) -> None:
    verdicts = dict(judge_dies.rows("SELECT outcome, count(*) FROM rewards GROUP BY outcome"))
    finishes = "SELECT count(*) FROM trajectories WHERE finish = 'error'"
    assert verdicts["error"] == 3 * BATCH - verdicts["ok"]
    assert judge_dies.rows(finishes) == [verdicts["error"]]
    assert problems_of(judge_dies) == []


def test_the_report_says_which_verdict_had_no_end(judge_dies: Finished) -> None:
    said = warnings_of(judge_dies)
    assert "the job failed (exit code 1)" in said
    assert "“reward function” (reward) in progress" in said
    assert "no materializable trajectories" in "\n".join(errors_of(judge_dies))


# --- a rollout server: its requests fail, and so does the next weight update ----------------------


@pytest.fixture(scope="module")
def server_dies(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """At the tenth answer of the second step."""
    where = dies(f"server:{BATCH + 10}")
    return train(where, assets, tmp_path_factory.mktemp("server"), code=1)


def test_answers_until_the_death_are_there_and_no_more(server_dies: Finished) -> None:
    answered = server_dies.rows(
        "SELECT count(*) FROM spans WHERE name LIKE '%Client.generate' AND tokens IS NOT NULL"
    )[0]
    assert BATCH <= answered <= len(server_dies.stamps("generate")) == BATCH + 9
    assert server_dies.rows("SELECT count(*) FROM rewards") == [answered]
    failed = server_dies.rows("SELECT count(*) FROM trajectories WHERE finish = 'error'")
    assert failed == [2 * BATCH - answered]
    assert server_dies.rows("SELECT count(*) FROM uses") == [answered]


def test_the_step_whose_weights_no_server_takes_is_not_measured(server_dies: Finished) -> None:
    assert list(server_dies.metrics) == [1]
    assert steps_of(server_dies) == ([1], [2])
    assert server_dies.rows("SELECT version FROM syncs ORDER BY start_ns") == [0, 1]
    said = warnings_of(server_dies)
    assert "the job failed (exit code 1)" in said
    assert "step 2 in progress" in said
    assert problems_of(server_dies) == []


# --- an agent loop worker: verl waits for its trajectories for ever -------------------------------


@pytest.fixture(scope="module")
def hung(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Finished, str]:
    """The job, and what a report said of it while it hung."""
    folder = tmp_path_factory.mktemp("agent-loop")
    job = Job(JOBS["tools"].settings, (("VERL_CPU_DIES", "agent-loop:24"),), steps=STEPS)
    said: list[str] = []

    def hangs() -> bool:
        if not said and _is_dead("agent-loop", folder):
            time.sleep(SILENT_S)
            said.append(warnings_of(Finished(job, folder)))
        return bool(said)

    return train(job, assets, folder, code=None, meanwhile=ended_when(hangs)), said[0]


def _is_dead(role: str, folder: Path) -> bool:
    """Whether a process of this role has been and is no more."""
    if not (folder / "run/process").exists():
        return False
    found = [
        process.pid for process in Finished(Job(), folder).run.processes if process.role == role
    ]
    return any(not Path(f"/proc/{pid}").exists() for pid in found)


def test_a_report_of_a_job_that_hangs_says_who_waits_for_what(hung: tuple[Finished, str]) -> None:
    said = hung[1]
    assert "the run has no end: it is still going on" in said
    assert "“gen” (wait) in progress" in said
    assert "(env) in progress" in said
    assert "(1 agent-loop)" in said


def test_a_job_that_was_stopped_holds_what_it_did(hung: tuple[Finished, str]) -> None:
    job, _ = hung
    whole, open_ones = steps_of(job)
    assert whole == list(job.metrics)
    assert open_ones == [len(whole) + 1]
    answered = "name LIKE '%Client.generate' AND tokens IS NOT NULL"
    asked = job.rows(f"SELECT count(*) FROM spans WHERE {answered}")[0]
    assert BATCH < asked <= len(job.stamps("generate"))
    assert "the job was ended from outside (SIGTERM" in warnings_of(job)
    assert problems_of(job) == []
