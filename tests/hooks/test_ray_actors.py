"""Actor classes as frameworks write them: bases in other modules, actors that create actors, hold
each other's handles, and start processes of their own. Real Ray, and a small framework of ours."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from textwrap import dedent

import pytest

import rltrace
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
    assert done.problems == []


@pytest.mark.usefixtures("framework")
def test_a_method_that_an_imported_actor_class_lacks_is_told(job: RunJob) -> None:
    program = "from fw.trainer import Reference\nprint(ray.get(Reference.remote().save.remote()))"
    done = run(job, program, "fw.trainer:Reference.gone=train", "fw.trainer:Gone.step=train")
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


def test_a_process_is_the_actor_that_it_runs_not_one_that_it_has_a_handle_of(job: RunJob) -> None:
    """Handles load other classes: in a task, in a class's own closure, in arguments."""
    done = run(job, HANDLES)
    pids, tasks = (json.loads(part) for part in done.out.split("/"))
    roles = {process["pid"]: process.get("role") for process in done.processes}
    assert [roles[pid] for pid in pids] == ["Store", "Store", "Engine", "Late"]
    assert {roles[pid] for pid in set(tasks) - set(pids)} <= {None}


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
    found = rltrace.open_run(done.run_path).sql(query).fetchall()
    names = ("core", "worker", "work", "tool")  # one is recorded by a hook
    assert Counter(found) == {(name, None, "Engine"): 2 for name in names}
