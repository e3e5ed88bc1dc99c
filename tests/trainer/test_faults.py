"""Actors that are killed with SIGKILL while a run is under way: nothing is lost silently."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from rltrace.testing.inside.trainer import RunFailed, Trajectory
from rltrace.testing.inside.trainer import actor_pools as crew
from rltrace.trainer import Ledger, StepRecord, TrainerConfig, train
from tests.hooks.conftest import clean_environment
from tests.patience import PATIENCE_S
from tests.trainer.conftest import SMALL
from tests.trainer.local import accounted
from tests.trainer.test_on_ray import until_nothing_is_left

pytestmark = pytest.mark.slow

PY = sys.executable
EXAMPLE = str(Path(__file__).parents[2] / "examples" / "train.py")
SMALL_EXAMPLE = [EXAMPLE, "--prompts", "4", "--samples", "4", "--layers", "2", "--heads", "2",
                 "--model-size", "0.03"]  # fmt: skip
# Slow enough to be hit in the middle of something, and of a lag that must be held.
SLOW = dataclasses.replace(
    SMALL, steps=5, checkpoint_every=2, max_lag=2, decode_floor=0.02, update_floor=0.05
)
BOUND = {"colocated": 0, "disaggregated": 0, "one-step-off": 1, "async": SLOW.max_lag}
KINDS = {
    "rollout": "RolloutWorker",
    "reward": "RewardWorker",
    "reference": "Reference",
    "learner": "Learner",
}


def started(*options: str, until: str, **how: Any) -> subprocess.Popen[str]:
    """The example as a small job with these options, once it has said a line with those words."""
    environment = {"RAY_memory_monitor_refresh_ms": "0", "PYTHONUNBUFFERED": "1"}
    environment |= how.pop("env", {})
    job = subprocess.Popen(
        [PY, *SMALL_EXAMPLE, *options],
        env=clean_environment(**environment),
        text=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, **how},
    )
    assert job.stdout is not None
    assert any(until in line for line in job.stdout)
    return job


def children(job: int) -> dict[int, str]:
    """All processes below a job: pid and command line."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text()
            names[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue  # it has ended meanwhile
        parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])

    def is_of_job(pid: int) -> bool:
        while pid not in (0, job):
            pid = parents.get(pid, 0)
        return pid == job

    return {pid: name for pid, name in names.items() if pid != job and is_of_job(pid)}


def actors(job: int, role: str) -> list[int]:
    """Pids of the actors of a role that a job's own cluster runs."""
    wanted = re.compile(rf"ray::{KINDS[role]}\b")
    return sorted(pid for pid, name in children(job).items() if wanted.match(name))


def folders(job: int) -> set[Path]:
    """The folders that a job's own cluster keeps its things in."""
    found = re.findall(r"/tmp/rlt-\w+", " ".join(children(job).values()))
    return {Path(name) for name in found}


def kill(role: str, job: int | None = None) -> None:
    """SIGKILL to one actor of a role."""
    os.kill(actors(job or os.getpid(), role)[0], signal.SIGKILL)


def kill_at_start(roles: Iterable[str]) -> threading.Thread:
    """SIGKILL to a new actor of each role as soon as it is there."""
    old = {pid for role in KINDS for pid in actors(os.getpid(), role)}  # of the run before

    def work() -> None:
        until = time.monotonic() + PATIENCE_S
        for role in roles:
            new: set[int] = set()
            while not new and time.monotonic() < until:
                new = set(actors(os.getpid(), role)) - old
            os.kill(new.pop(), signal.SIGKILL)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def killing(plan: dict[int, tuple[str, ...]]) -> Callable[[StepRecord], None]:
    """Kills as soon as a step has ended: in the midst of the next one."""

    def after(record: StepRecord) -> None:
        for role in plan.get(record.step, ()):
            kill(role)

    return after


def check(ledger: Ledger, config: TrainerConfig) -> None:
    """All is in the books, and no sample is older than it may be."""
    records = accounted(ledger)
    versions = [record.version for record in ledger.steps]
    assert versions == sorted(set(versions))
    assert max(lag for record in records for lag in record.lags) <= BOUND[config.placement]


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of all samples that end, in any run of the test."""
    ids: list[str] = []
    write_down = Ledger.generated

    def also(ledger: Ledger, trajectories: Iterable[Trajectory]) -> None:
        known = list(trajectories)
        ids.extend(t.id for t in known)
        write_down(ledger, known)

    monkeypatch.setattr(Ledger, "generated", also)
    return ids


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("placement", BOUND)
def test_any_actor_may_be_killed(placement: str, generated: list[str]) -> None:
    config = dataclasses.replace(SLOW, placement=placement, checkpoint_every=3)
    plan = {0: ("rollout",), 1: ("learner",), 2: ("reward", "reference")}
    # step 4 is the last one
    ledger = train(config, on_step=killing({**plan, 3: ("rollout", "learner")}))
    check(ledger, config)
    for role, deaths in {"rollout": 1, "reward": 1, "reference": 1, "learner": 2}.items():
        died = [event for event in ledger.events if event.startswith(f"{role} worker")]
        assert len(died) >= deaths, ledger.events
        assert all("another is started in its place" in event for event in died)
    assert [event for event in ledger.events if "is made again" in event] == [
        "step 2 is made again, from the weights before step 0: the learning of steps 0 and 1 is"
        " lost",
        "step 4 is made again, from the weights before step 3: the learning of step 3 is lost",
    ]
    # what a dying worker took along was asked for again, under ids that nobody had before
    assert len(generated) == len(set(generated))
    lost = sum(record.lost for record in accounted(ledger))
    retried = [name for name in generated if "~" in name]
    assert lost >= len(retried)
    assert bool(lost) == bool(retried)


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("sync", ["bucketed", "delta"])
def test_a_learner_may_be_killed_however_weights_travel(sync: str) -> None:
    """Another one takes over its slots, and serves them where it is asked to."""
    config = dataclasses.replace(SLOW, placement="async", sync=sync)
    ledger = train(config, on_step=killing({1: ("learner",)}))
    check(ledger, config)
    assert [event for event in ledger.events if event.startswith("learner worker 0 died")]
    assert "step 2 is made again, from the weights before step 2" in ledger.events
    until_nothing_is_left()


@pytest.mark.usefixtures("cluster")
def test_actors_that_are_killed_as_they_start() -> None:
    config = dataclasses.replace(SLOW, steps=3, placement="async")
    killer = kill_at_start(["learner", "rollout"])
    ledger = train(config)
    killer.join()
    check(ledger, config)
    assert [event for event in ledger.events if event.startswith("learner worker 0 died")]
    assert [event for event in ledger.events if event.startswith("rollout worker")]


@pytest.mark.usefixtures("cluster")
def test_a_role_that_never_starts_ends_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def breaks(*_: Any) -> None:
        raise OSError("no such device")

    monkeypatch.setattr(crew, "RewardWorker", type("Broken", (), {"__init__": breaks}))
    with pytest.raises(RunFailed, match="no reward worker is left"):
        train(SLOW)


@pytest.mark.parametrize("to_all", [False, True])
@pytest.mark.parametrize(
    ("number", "code", "sentence"),
    [(signal.SIGINT, 1, "Aborted!"), (signal.SIGTERM, 143, "the run is ended by SIGTERM")],
)
def test_a_run_that_is_ended_by_a_signal_leaves_nothing(
    number: signal.Signals, code: int, sentence: str, to_all: bool, tmp_path: Path
) -> None:
    """A signal to the job, or to its process group as from a terminal or a scheduler."""
    ledger = tmp_path / "ledger.json"
    job = started(
        *("--steps", "1000", "--decode-floor", "0.02", "--placement", "async"),
        *("--ledger", str(ledger)),
        until="step   0",
        stderr=subprocess.PIPE,
        start_new_session=True,  # a process group that is not pytest's
    )
    assert sum(len(actors(job.pid, role)) for role in KINDS) == 5
    known, kept = children(job.pid), folders(job.pid)
    (os.killpg if to_all else os.kill)(job.pid, number)
    _, err = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == code, err
    said = [line for line in err.splitlines() if line and "WARNING auth" not in line]
    assert said[1:] == [sentence]  # after Ray's own, that it has started
    assert not left(known)
    assert kept
    assert not any(folder.exists() for folder in kept)
    assert json.loads(ledger.read_text())["steps"]


def left(known: dict[int, str]) -> list[str]:
    """Processes that do not go away; a busy machine takes a while to bury the others."""
    give_up = time.monotonic() + PATIENCE_S
    names = list(known.values())
    while names and time.monotonic() < give_up:
        names = [name for pid, name in known.items() if Path(f"/proc/{pid}").exists()]
        time.sleep(0.1 if names else 0)
    return names
