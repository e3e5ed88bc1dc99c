"""Ray actors that end in the middle of their work: who ended them is known, and the job's errors
are Ray's own."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest

import rltrace
from rltrace.hooks import ray_ends
from rltrace.testing.inside.analysis import killed, lost, read_activity
from rltrace.testing.inside.trace import End, read_ends
from tests.hooks.conftest import Job, untraced
from tests.hooks.test_ray import ENVIRONMENT, PY
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.slow

pytest.importorskip("ray", reason="Ray is of the [trainer] extra and is not installed")

JOB = dedent("""
    import json, os, sys, time
    import ray
    try:
        import rltrace
    except ImportError:
        sys.exit("rltrace is to be importable")

    ray.init(
        address="local",
        num_cpus=1,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
    )

    here = os.getcwd()

    @ray.remote(num_cpus=0)
    class Rollout:
        def pid(self):
            return os.getpid()
        def generate(self, how):
            with rltrace.span("rollout", "generate"):
                open(f"{here}/{how}", "w").close()
                if how == "dies":
                    os.kill(os.getpid(), 9)
                if how != "goes on":
                    time.sleep(600)
                return how

    def generate(actor, how):
        try:
            return ray.get(actor.generate.remote(how))
        except ray.exceptions.RayError as error:
            return type(error).__name__

    said = {}
    pids = {}
    for how in ("asked", "dies", "goes on"):
        actor = Rollout.remote()
        pids[how] = ray.get(actor.pid.remote())
        if how == "asked":
            waited = actor.generate.remote(how)
            while not os.path.exists(how):
                time.sleep(0.05)
            ray.kill(actor)
            try:
                ray.get(waited)
            except ray.exceptions.RayError as error:
                said[how] = type(error).__name__
        else:
            said[how] = generate(actor, how)
            said[how + " again"] = generate(actor, how)
    again = Rollout.options(max_restarts=1).remote()
    pids["first"] = ray.get(again.pid.remote())
    ray.kill(again, no_restart=False)
    for _ in range(600):
        try:
            pids["second"] = ray.get(again.pid.remote())
        except ray.exceptions.RayError:
            pass
        if pids.get("second", pids["first"]) != pids["first"]:
            break
        time.sleep(0.1)
    for n in range(4):
        with rltrace.step(n), rltrace.span("train"):
            pass
    print(json.dumps([said, pids]))
    ray.shutdown()
""")
SAID = {
    **dict.fromkeys(("asked", "dies", "dies again"), "ActorDiedError"),
    **dict.fromkeys(("goes on", "goes on again"), "goes on"),
}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("ends")
    (folder / "job.py").write_text(JOB)
    command = ("-c", "from rltrace.cli import main; main()", "wrap", "--out", "run", "--", PY)
    ran = untraced(PY, *command, "job.py", cwd=folder, timeout_s=PATIENCE_S, **ENVIRONMENT)
    return Job(ran.returncode, ran.stdout, ran.stderr, folder / "run")


def test_the_jobs_errors_are_rays_own(done: Job) -> None:
    assert done.code == 0, done.err
    said, _ = json.loads(done.out.splitlines()[-1])
    assert said == SAID
    assert done.problems == []


def test_who_ended_an_actor_is_known(done: Job) -> None:
    _, pids = json.loads(done.out.splitlines()[-1])
    run = rltrace.open_run(done.run_path)
    of_pid = {process.pid: process for process in run.processes}
    found = read_ends(run.path, run.processes)
    ends = {how: found.get(of_pid[pid].number) for how, pid in pids.items()}
    assert ends == {
        "asked": End(9, True),
        "dies": End(0, False, "process"),
        "goes on": None,
        "first": End(9, True),
        "second": None,
    }
    activity = read_activity(run)
    (alarm,) = lost(run, activity, usual_s=1e-9, until_ns=activity.last_ns)
    assert alarm.says.startswith("1 process of role Rollout fell silent in “generate”")
    (note,) = killed(run, activity)
    who = f"Rollout (pid {pids['dies']} on {of_pid[pids['dies']].host})"
    assert note.says.endswith(f"was killed: {who} (Ray does not say by whom) in “generate”")


OUT_OF_MEMORY = """1 worker(s) were killed due to the node running low on memory. Memory on the node
Considered workers: [
(Actor(11111111111111111111111111000000): job ID=01000000, task name=A.__init__, pid=5)
]
Selected to kill: (Actor(f4e2b7432dd2a53e3e53a0d801000000): job ID=01000000, pid=27423)
]
"""
EARLIER = """Task was killed due to the node running low on memory.
Memory on the node (IP: 1.2.3.4, ID: 3274) where the task (actor ID: f4e2b7432dd2a53e3e53a0d8\
01000000, name=A.__init__, pid=27423, memory used=0.07GB) was running was 9GB / 10GB. Ray killed
"""


@pytest.mark.parametrize("text", [OUT_OF_MEMORY, EARLIER], ids=["2.56", "earlier"])
def test_whom_ray_ended_as_memory_ran_out(
    run_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """What Ray says then is by its versions; a real one is brought about by hand only, since its
    monitor ends workers of whoever is on the machine."""
    from ray.exceptions import OutOfMemoryError

    told: list[tuple[str, int, int, bool, str]] = []

    def tell(actor: str, pid: int, number: int, asked: bool = False, why: str = "") -> None:
        told.append((actor, pid, number, asked, why))

    monkeypatch.setattr(ray_ends, "_tell", tell)
    monkeypatch.setattr(OutOfMemoryError, "__init__", OutOfMemoryError.__init__)
    exceptions = type("module", (), {"OutOfMemoryError": OutOfMemoryError})
    ray_ends.watch_errors(exceptions)
    assert str(OutOfMemoryError(text)) == text
    assert told == [("f4e2b7432dd2a53e3e53a0d801000000", 0, 9, False, "memory")]
