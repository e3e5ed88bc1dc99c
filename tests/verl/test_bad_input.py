"""What may go wrong in a job, or stand in its way, changes nothing of the job."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import dedent

import pytest

from tests.verl.jobs import Finished, Job, train
from tests.verl.test_runs import BATCH

pytestmark = pytest.mark.skipif(
    bool(os.environ.get("QUICK")), reason="QUICK=1 asks for one kind of job"
)

DIES = Job(("algorithm.adv_estimator=nosuch",))
"""verl looks for it only when the first batch has been generated, judged and gone forward."""


@pytest.fixture(scope="module")
def died(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The job that dies in its first step."""
    return train(DIES, assets, tmp_path_factory.mktemp("dies"), code=1)


def test_a_job_that_dies_in_its_first_step_says_why(died: Finished) -> None:
    assert "nosuch" in (died.folder / "log").read_text(errors="replace")


def test_what_it_did_until_then_is_there(died: Finished) -> None:
    assert died.rows("SELECT DISTINCT response_tokens > 0 FROM trajectories") == [True]
    joined = "SELECT count(*) FROM uses JOIN trajectories USING (trajectory) JOIN rewards"
    assert died.rows(f"{joined} USING (trajectory) WHERE step = 1") == [BATCH]
    stages = set(died.rows("SELECT DISTINCT stage FROM spans"))
    assert {"rollout", "reward", "logprob", "reference", "sync"} <= stages
    assert "train" not in stages


def test_it_has_no_step_to_report(died: Finished) -> None:
    assert len(died.rows("SELECT step FROM steps")) <= 1
    assert [problem for problem in died.run.problems if problem["what"] != "no-gpu"] == []


USERS = {
    "sitecustomize.py": """
        import os

        with open(f"{os.path.dirname(__file__)}/started", "a") as file:
            file.write(f"{os.getpid()}\\n")
    """,
    "users.py": """
        import os

        from rltrace.testing.inside.hooks import Adapter, Hook

        FOLDER = os.path.dirname(__file__)

        def set_up():
            with open(f"{FOLDER}/set-up", "a") as file:
                file.write(f"{os.getpid()} {os.environ.get('USERS_OWN')}\\n")

        def throws(call):
            raise RuntimeError("a reader of the user's")

        class Users(Adapter):
            framework = "verl_cpu"
            hooks = (
                Hook("verl_cpu.server:CpuServer.generate", "rollout", before=throws, after=throws),
                Hook("verl_cpu.rollout:CpuRollout.update_weights", throws, after=throws),
                Hook("verl_cpu.server:CpuServer.nosuch", "rollout"),
            )
    """,
    "users-1.dist-info/METADATA": """
        Metadata-Version: 2.1
        Name: users
        Version: 1
    """,
    "users-1.dist-info/entry_points.txt": """
        [rltrace.adapters]
        verl_cpu = users:Users
    """,
}
"""What a user may have on their path: code for every process, and an adapter that throws."""

RUNTIME_ENV = "+ray_kwargs.ray_init.runtime_env"


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the user's files."""
    folder = tmp_path_factory.mktemp("users")
    for name, text in USERS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(dedent(text).lstrip())
    return folder


@pytest.fixture(scope="module")
def crowded(assets: Path, users: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A job that brings all of it."""
    settings = (
        f"{RUNTIME_ENV}.worker_process_setup_hook=users.set_up",
        f"{RUNTIME_ENV}.env_vars.USERS_OWN=kept",
    )
    job = Job(settings, (("PYTHONPATH", str(users)),), steps=1)
    return train(job, assets, tmp_path_factory.mktemp("crowded"))


def test_the_users_set_up_of_workers_runs_in_each_that_is_traced(
    crowded: Finished, users: Path
) -> None:
    set_up = dict(line.split() for line in (users / "set-up").read_text().splitlines())
    assert set(set_up.values()) == {"kept"}
    started = set((users / "started").read_text().split())
    roles = {process.role: str(process.pid) for process in crowded.run.processes}
    for role in ("controller", "learner", "agent-loop", "reward"):
        assert roles[role] in started & set_up.keys()


def test_readers_that_throw_are_told_and_the_job_goes_on(crowded: Finished) -> None:
    assert list(crowded.metrics) == [1]
    threw = {
        problem["target"]
        for problem in crowded.run.problems
        if "RuntimeError at " in problem.get("detail", "")
    }
    assert threw == {
        "verl_cpu.server:CpuServer.generate",
        "verl_cpu.rollout:CpuRollout.update_weights",
    }
    assert "verl_cpu.server:CpuServer.nosuch" in {
        problem["target"] for problem in crowded.run.problems if problem["what"] == "hook-missing"
    }


def test_what_the_others_read_is_whole(crowded: Finished) -> None:
    joined = "SELECT count(*) FROM uses JOIN trajectories USING (trajectory) JOIN rewards"
    assert crowded.rows(f"{joined} USING (trajectory) WHERE step = 1") == [BATCH]
