"""Actor classes as frameworks write them: bases in other modules, actors that create actors, hold
each other's handles, start processes of their own, and end in the middle of their work."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from textwrap import dedent

import pytest

import rltrace
from rltrace.hooks.patch import ray_ends
from rltrace.testing.inside.analysis import RunAnalysis
from rltrace.testing.inside.trace import End, read_ends
from tests.hooks.conftest import Job, RunJob, untraced
from tests.hooks.test_ray import ENVIRONMENT, PY

pytestmark = pytest.mark.slow

pytest.importorskip("ray", reason="Ray is of the [trainer] extra and is not installed")

FRAMEWORK = {
    "base.py": """
        class Root:
            def __init__(self, factor=1):
                self.factor = factor
            def step(self, n):
                return n * self.factor
            def save(self):
                return "root"
            async def ask(self, n):
                return n + 1
            def stream(self, n):
                for i in range(n):
                    yield i
            @staticmethod
            def static(n):
                return n
            @classmethod
            def made(cls, n):
                return cls.__name__, n

        class Middle(Root):
            def step(self, n):
                return super().step(n) + 1
    """,
    "engine.py": """
        import ray
        from fw.base import Middle

        @ray.remote(num_cpus=0)
        class Engine(Middle):
            async def ask(self, n):
                return await super().ask(n) * 10
    """,
    "trainer.py": """
        import ray
        from fw.base import Middle, Root
        from fw.engine import Engine

        @ray.remote(num_cpus=0)
        class Trainer(Middle):
            def __init__(self, factor):
                Root.__init__(self, factor)
                self.engine = Engine.remote(2)
            def step(self, n):
                return super().step(n) + ray.get(self.engine.ask.remote(n))
            def ask(self, n):
                return ray.get(self.engine.ask.remote(n))
            def local(self):
                return self.static(1), self.made(2), sum(self.stream(3))

        @ray.remote(num_cpus=0)
        class Reference(Middle):
            pass
    """,
    "child.py": """
        import multiprocessing, os, rltrace, subprocess, sys

        def core(method, queue):
            rltrace.span("rollout", name="core").end()
            worker = multiprocessing.get_context(method).Process(target=work, args=(queue,))
            worker.start()
            worker.join()

        def work(queue):
            rltrace.span("rollout", name="worker").end()
            queue.put(os.getpid())

        def engine(method):
            context = multiprocessing.get_context(method)
            queue = context.Queue()
            process = context.Process(target=core, args=(method, queue))
            process.start()
            queue.get()
            process.join()
            tool = "import rltrace; rltrace.span('env', name='tool').end()"
            subprocess.run([sys.executable, "-c", tool], check=True)
    """,
}

INIT = """
import os, ray
ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level="ERROR")
"""


@pytest.fixture
def framework(tmp_path: Path) -> None:
    """The package `fw`, importable in the job's script and in its workers."""
    (tmp_path / "fw").mkdir()
    for name, text in {"__init__.py": "", **FRAMEWORK}.items():
        (tmp_path / "fw" / name).write_text(dedent(text))


def run(job: RunJob, program: str, *hooks: str) -> Job:
    """The program's traced run."""
    done = job(PY, "{script}", program=INIT + program, hooks=hooks, **ENVIRONMENT)
    assert done.code == 0, done.err
    return done


def assert_as_untraced(done: Job) -> None:
    """The job printed what it prints without us."""
    folder = done.run_path.parent
    plain = untraced(PY, str(folder / "script.py"), cwd=folder, **ENVIRONMENT)
    assert done.out == plain.stdout


INHERITED = """
from fw.trainer import Reference, Trainer
trainer, reference = Trainer.remote(3), Reference.remote(5)
print(ray.get([trainer.step.remote(2), reference.step.remote(2), trainer.ask.remote(1)]))
print(ray.get([trainer.save.remote(), reference.save.remote(), reference.ask.remote(1)]))
print(ray.get([trainer.local.remote(), reference.made.remote(4)]))
"""


@pytest.mark.usefixtures("framework")
def test_methods_of_plain_base_classes_in_other_modules(job: RunJob) -> None:
    """Three levels; Ray copies the methods, but not generators, static and class methods."""
    done = run(
        job,
        INHERITED,
        *(f"fw.base:Root.{name}=other" for name in ("step", "save", "ask", "stream")),
        "fw.base:Middle.step=other",
        *(f"fw.trainer:Trainer.{name}=other" for name in ("step", "stream", "static", "made")),
        "fw.trainer:Reference.save=other",
        "fw.trainer:Reference.made=other",
        "fw.engine:Engine.ask=other",
        "fw.trainer:Reference.gone=train",
        "fw.trainer:Gone.step=train",
    )
    assert_as_untraced(done)
    assert Counter(done.spans("role || ': ' || name")) == {
        "Trainer: Trainer.step": 1,
        "Trainer: Middle.step": 1,  # by super()
        "Trainer: Root.step": 1,
        "Engine: Engine.ask": 2,  # by the actor that created it
        "Engine: Root.ask": 2,
        "Trainer: Root.save": 1,
        "Trainer: Trainer.stream": 3,
        "Trainer: Root.stream": 3,
        "Trainer: Trainer.static": 1,
        "Trainer: Trainer.made": 1,
        "Reference: Middle.step": 1,
        "Reference: Root.step": 1,
        "Reference: Root.save": 1,
        "Reference: Reference.save": 1,
        "Reference: Root.ask": 1,
        "Reference: Reference.made": 1,
    }
    assert {(problem["what"], problem["target"]) for problem in done.problems} == {
        ("hook-missing", "fw.trainer:Reference.gone"),
        ("hook-missing", "fw.trainer:Gone.step"),
    }


HANDLES = """
@ray.remote(num_cpus=0)
class Store:
    def get(self, other=None):
        return os.getpid()

@ray.remote(num_cpus=1)
def task(handles):
    return ray.get(handles[0].get.remote()) and os.getpid()

@ray.remote(num_cpus=1)
class Engine:
    def __init__(self, handles):
        self.handles = handles
    def work(self):
        return ray.get([h.get.remote() for h in (store, *self.handles)]) and os.getpid()

@ray.remote(num_cpus=0)
class Late:
    def work(self, handles):
        return ray.get(handles[0].get.remote()) and os.getpid()

store, other = Store.remote(), Store.remote()
tasks = set(ray.get([task.remote([store]) for _ in range(4)]))
engine, late = Engine.remote([other]), Late.remote()
pids = ray.get([store.get.remote(other), other.get.remote(), engine.work.remote()])
pids += ray.get([late.work.remote([store])])
print(pids, "/", list(tasks))
"""
SAME_CLASS = """
@ray.remote(num_cpus=1)
class Engine:
    def pid(self):
        return os.getpid()

@ray.remote(num_cpus=1)
def task(handles):
    return ray.get(handles[0].pid.remote()) and os.getpid()

first = Engine.options(num_cpus=0).remote()
tasks = {ray.get(task.remote([first])) for _ in range(2)}
second = Engine.remote()
ray.get(second.pid.remote())
"""


def test_a_process_is_the_actor_that_it_runs_not_one_that_it_has_a_handle_of(job: RunJob) -> None:
    """Handles load other classes: in a task, in a class's own closure, in arguments."""
    done = run(job, HANDLES)
    pids, tasks = (json.loads(part) for part in done.out.split("/"))
    roles = {process["pid"]: process.get("role") for process in done.processes}
    assert [roles[pid] for pid in pids] == ["Store", "Store", "Engine", "Late"]
    assert {roles[pid] for pid in set(tasks) - set(pids)} <= {None}


def test_the_class_of_a_handle_may_become_a_processes_own(job: RunJob) -> None:
    """Ray may have a worker run an actor whose class it has loaded already."""
    done = run(job, SAME_CLASS, "__main__:Engine.pid=other")
    assert sum(process.get("role") == "Engine" for process in done.processes) == 2
    assert set(done.spans("role")) == {"Engine"}


CHILDREN = """
@ray.remote(num_cpus=0)
class Engine:
    def __init__(self, method):
        from fw.child import engine
        engine(method)
    def ready(self):
        return True

print(ray.get([Engine.remote(method).ready.remote() for method in ("spawn", "fork")]))
"""


@pytest.mark.usefixtures("framework")
def test_processes_that_an_actor_starts_are_known_as_its_children(job: RunJob) -> None:
    """As inference engines do it: a core beside the actor, and that one's workers."""
    done = run(job, CHILDREN, "fw.child:work=other")
    assert_as_untraced(done)
    query = "SELECT name, p.role, child_of FROM spans JOIN processes p USING (process)"
    found = done.rows(query)
    names = ("core", "worker", "work", "tool")  # one is recorded by a hook
    assert Counter(found) == {(name, None, "Engine"): 2 for name in names}


JOB = dedent("""
    import json, os, sys, time
    import ray, rltrace
    local = dict(address="local", num_cpus=1, include_dashboard=False)
    ray.init(**local, logging_level="ERROR", log_to_driver=False)

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

    def outcome(result):
        try:
            return ray.get(result)
        except ray.exceptions.RayError as error:
            return type(error).__name__

    said = {}
    pids = {}
    for how in ("asked", "dies", "goes on"):
        actor = Rollout.remote()
        pids[how] = ray.get(actor.pid.remote())
        result = actor.generate.remote(how)
        if how == "asked":
            while not os.path.exists(how):
                time.sleep(0.05)
            ray.kill(actor)
        said[how] = outcome(result)
        said[how + " again"] = outcome(actor.generate.remote(how))
    again = Rollout.options(max_restarts=1).remote()
    pids["first"] = ray.get(again.pid.remote())
    ray.kill(again, no_restart=False)
    while not isinstance(pids.get("second"), int) or pids["second"] == pids["first"]:
        pids["second"] = outcome(again.pid.remote())
        time.sleep(0.1)
    for n in range(8):
        with rltrace.step(n), rltrace.span("train"):
            pass
    print(json.dumps([said, pids]))
    ray.shutdown()
""")
SAID = {
    **dict.fromkeys(("asked", "asked again", "dies", "dies again"), "ActorDiedError"),
    **dict.fromkeys(("goes on", "goes on again"), "goes on"),
}


def test_who_ended_an_actor_is_known_and_errors_are_rays_own(job: RunJob) -> None:
    done = job(PY, "{script}", program=JOB, **ENVIRONMENT)
    assert done.code == 0, done.err
    said, pids = json.loads(done.out.splitlines()[-1])
    assert said == SAID
    assert done.problems == []
    run = rltrace.open_run(done.run_path)
    of_pid = {process.pid: process for process in run.processes}
    found = read_ends(run.path, run.processes)
    ends = {how: found.get(of_pid[pid].number) for how, pid in pids.items()}
    # Ray ends those that live as it shuts down, and may still say so
    living = [ends.pop(how) for how in ("goes on", "second")]
    assert {*living} <= {None, End(0, True)}
    killed_by_job = End(9, True)
    died = End(0, False, "process")
    assert ends == {"asked": killed_by_job, "dies": died, "first": killed_by_job}
    alarms = {one.kind: one.says for one in RunAnalysis(run).health.alarms}
    assert "Rollout" in alarms["lost process"]
    assert f"(pid {pids['dies']} on " in alarms["failed process"]


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
