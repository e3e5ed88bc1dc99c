"""What may go wrong in a job shows in its trace, and changes nothing of the job."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.openrlhf.jobs import JOBS, PLUGIN, TENSORS, Finished, Job, end_left_over, train
from tests.openrlhf.test_runs import BATCH, REQUESTS, trained

pytestmark = pytest.mark.skipif(
    bool(os.environ.get("QUICK")), reason="QUICK=1 asks for one kind of job"
)

BAD_REWARD = (f"--reward.remote_url={PLUGIN}/bad_reward.py",)
REFUSES = Job(BAD_REWARD, (("OPENRLHF_CPU_BAD", "refuses"),), steps=3)
HANGS = Job(BAD_REWARD, (("OPENRLHF_CPU_BAD", "hangs"),), steps=3)
FAILS = Job((), (("OPENRLHF_CPU_FAILS_AT", "3"),))
KILLED = Job((), (("OPENRLHF_CPU_TOKEN_SECONDS", "0.05"),))
WAIT_S = 600

Folder = Callable[[str], Path]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A new folder."""
    return tmp_path_factory.mktemp


def stamped(
    folder: Path, what: str, process: subprocess.Popen[bytes], count: int = 1
) -> dict[str, Any]:
    """Waits for that many stamps of a kind, and gives the last."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline and process.poll() is None:
        found = Finished(Job(), folder).stamps(what)
        if len(found) >= count:
            return found[-1]
        time.sleep(0.2)
    raise AssertionError(f"no stamp {what}: " + Finished(Job(), folder).log[-4000:])


# A reward function that raises or gives nothing. OpenRLHF swallows what it raises, and then fails
# where it finds samples without a reward.


@pytest.fixture(scope="module")
def refused(assets: Path, folder: Folder) -> Finished:
    """The job whose verdicts fail in its second step."""
    return train(REFUSES, assets, folder("refuses"), code=1)


def test_verdicts_that_fail_are_errors_and_belong_to_their_samples(refused: Finished) -> None:
    found = refused.rows(
        "SELECT outcome, count(*), count(DISTINCT trajectory), count(value) FROM rewards"
        " WHERE end_ns IS NOT NULL GROUP BY outcome ORDER BY outcome"
    )
    assert found == [("error", BATCH, BATCH, 0), ("ok", BATCH, BATCH, BATCH)]
    joined = "rewards JOIN trajectories USING (trajectory) WHERE finish IS NOT NULL"
    assert refused.rows(f"SELECT count(*) FROM {joined}") == [2 * BATCH]


def test_only_the_step_that_was_whole_is_one(refused: Finished) -> None:
    assert refused.rows("SELECT step FROM steps WHERE end_ns IS NOT NULL") == [1]
    assert len(trained(refused, 1, "trajectory")) == BATCH
    assert trained(refused, 2, "trajectory") == []


# A reward function that hangs, in a job that is ended from outside.


@pytest.fixture(scope="module")
def hung(assets: Path, folder: Folder) -> Finished:
    """The job that was ended while it waited for verdicts."""
    where = folder("hangs")

    def end(process: subprocess.Popen[bytes]) -> None:
        stamped(where, "bad", process)
        time.sleep(2)
        process.send_signal(signal.SIGTERM)

    return train(HANGS, assets, where, code=None, meanwhile=end)


def test_verdicts_that_never_came_are_there_and_open(hung: Finished) -> None:
    assert hung.code != 0
    assert hung.rows("SELECT count(*) FROM rewards WHERE end_ns IS NOT NULL") == [BATCH]
    count, distinct = hung.rows(
        "SELECT count(*), count(DISTINCT trajectory) FROM rewards WHERE end_ns IS NULL"
    )[0]
    # It is called in the threads of asyncio, which may be fewer than the samples.
    assert 0 < len(hung.stamps("bad")) <= count == distinct <= BATCH


def test_their_samples_were_generated(hung: Finished) -> None:
    tokens = hung.rows(
        "SELECT coalesce(response_tokens, 0) FROM trajectories JOIN rewards USING (trajectory)"
        " WHERE rewards.end_ns IS NULL AND trajectories.end_ns IS NOT NULL"
    )
    assert len(tokens) >= len(hung.stamps("bad"))
    assert min(tokens) > 0


# A request that raises in its engine, in the first step: the job dies of it.


@pytest.fixture(scope="module")
def failed(assets: Path, folder: Folder) -> Finished:
    """The job whose fourth request fails."""
    return train(FAILS, assets, folder("fails"), code=1)


def test_a_job_that_dies_in_its_first_step_says_why(failed: Finished) -> None:
    assert "an engine that cannot go on" in failed.log
    assert [problem for problem in failed.run.problems if problem["what"] != "no-gpu"] == []


def test_the_request_that_raised_is_not_lost(failed: Finished) -> None:
    assert failed.rows("SELECT count(*) FROM trajectories WHERE finish = 'error'") == [1]
    requests = failed.rows(f"SELECT count(*), count(tokens) FROM spans WHERE {REQUESTS}")[0]
    assert requests[0] > requests[1]


def test_what_it_did_until_then_is_there_and_no_step_is_reported(failed: Finished) -> None:
    assert set(failed.rows("SELECT DISTINCT stage FROM spans")) >= {"rollout", "wait"}
    assert failed.rows("SELECT step FROM steps WHERE end_ns IS NOT NULL") == []
    assert failed.rows("SELECT count(*) FROM uses") == [0]


# An engine's actor that is killed while it answers.


@pytest.fixture(scope="module")
def killed(assets: Path, folder: Folder) -> tuple[Finished, Finished]:
    """The job that lost its engine in its second step, traced and not."""

    def go(traced: bool) -> Finished:
        where = folder(f"killed-{traced}")

        def kill(process: subprocess.Popen[bytes]) -> None:
            engine = stamped(where, "update", process, TENSORS)["pid"]
            time.sleep(1)  # the next batch is under way; it takes three seconds
            os.kill(engine, signal.SIGKILL)

        job = train(KILLED, assets, where, traced, code=None, meanwhile=kill)
        end_left_over(job)
        return job

    return go(True), go(False)


def test_the_job_ends_as_it_would_have_ended(killed: tuple[Finished, Finished]) -> None:
    traced, plain = killed
    assert traced.code == plain.code != 0
    assert "ActorDiedError" in traced.log
    assert "ActorDiedError" in plain.log


def test_what_the_engine_did_and_had_begun_is_there(killed: tuple[Finished, Finished]) -> None:
    traced, _ = killed
    assert len(trained(traced, 1, "trajectory")) == BATCH
    assert traced.rows("SELECT version FROM syncs WHERE role = 'sink'") == [1]
    assert 0 < traced.rows("SELECT count(*) FROM trajectories WHERE end_ns IS NULL")[0] <= BATCH
    assert traced.rows("SELECT step FROM steps WHERE end_ns IS NOT NULL") == [1]


# Hooks of the user's own that throw.

USERS = {
    "users.py": """
        from rltrace.testing.inside.hooks import Adapter, Hook

        def throws(call):
            raise RuntimeError("a reader of the user's")

        ENGINE = "openrlhf.trainer.ray.vllm_engine:RolloutRayActor"

        class Users(Adapter):
            framework = "openrlhf_cpu"
            hooks = (
                Hook(f"{ENGINE}.generate", throws, before=throws, after=throws),
                Hook(f"{ENGINE}.nosuch", "rollout"),
            )
    """,
    "users-1.dist-info/METADATA": """
        Metadata-Version: 2.1
        Name: users
        Version: 1
    """,
    "users-1.dist-info/entry_points.txt": """
        [rltrace.adapters]
        openrlhf_cpu = users:Users
    """,
}
"""An adapter that throws, as an installed package."""


@pytest.fixture(scope="module")
def crowded(assets: Path, folder: Folder) -> Finished:
    """A job whose user brings it."""
    users = folder("users")
    for name, text in USERS.items():
        (users / name).parent.mkdir(exist_ok=True)
        (users / name).write_text(dedent(text).lstrip())
    job = Job(JOBS["sync"].flags, (("PYTHONPATH", str(users)),), steps=1)
    return train(job, assets, folder("crowded"))


def test_readers_that_throw_are_told_and_the_job_goes_on(crowded: Finished) -> None:
    assert list(crowded.metrics) == [1]
    threw = {
        problem["target"]
        for problem in crowded.run.problems
        if "RuntimeError at " in problem.get("detail", "")
    }
    engine = "openrlhf.trainer.ray.vllm_engine:RolloutRayActor"
    assert threw == {f"{engine}.generate"}
    missing = {p["target"] for p in crowded.run.problems if p["what"] == "hook-missing"}
    assert f"{engine}.nosuch" in missing


def test_what_the_others_read_is_whole(crowded: Finished) -> None:
    assert len(trained(crowded, 1, "value", "JOIN rewards USING (trajectory)")) == BATCH
    [tokens] = crowded.rows(f"SELECT sum(tokens) FROM spans WHERE {REQUESTS}")
    assert tokens == sum(stamp["tokens"] for stamp in crowded.stamps("request"))
