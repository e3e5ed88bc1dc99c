"""Real Ray: clusters that the job starts, that it joins, jobs submitted to one, several nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from tests.hooks.clusters import (
    ENVIRONMENT,
    PY,
    RAY,
    can_submit,
    started_cluster,
    submit_environment,
)
from tests.hooks.conftest import RunJob, untraced
from tests.patience import until

pytest.importorskip("ray", reason="Ray is of the [trainer] extra and is not installed")

EVERY_KIND = """
    import inspect, os, ray
    ray.init(
        address="local", num_cpus=2, num_gpus=4, include_dashboard=False, logging_level="ERROR"
    )

    class Base:
        def inherited(self):
            return "inherited"
        def overridden(self):
            return "base"
        def reached_by_super(self):
            return "base"

    @ray.remote(num_gpus=2)
    class Engine(Base):
        def __init__(self, factor):
            self.factor = factor
        def overridden(self):
            return "own"
        def reached_by_super(self):
            return "own, " + super().reached_by_super()
        def generate(self, n):
            return n * self.factor
        def fail(self):
            raise ValueError("theirs")
        def stream(self, n):
            for i in range(n):
                yield i
        def signature(self):
            return str(inspect.signature(type(self).generate))

    @ray.remote
    class AsyncEngine:
        async def generate(self, n):
            return n * 3
        async def stream(self, n):
            for i in range(n):
                yield i

    @ray.remote
    def reward(x):
        return x + 1

    # what no worker loads by name comes along in somebody's closure
    def gen(n):
        return n + 1
    async def agen(n):
        return n + 1
    def items(n):
        yield from range(n)
    class Sampler:
        def sample(self, n):
            return gen(n)
    @ray.remote
    class Helped:
        def __init__(self, sampler):
            self.sampler = sampler
        async def generate(self, n):
            return await agen(gen(n)) + sum(items(2)) + self.sampler.sample(n)
    @ray.remote
    def score(n):
        return gen(n)

    engine, asynchronous = Engine.remote(2), AsyncEngine.remote()
    print(ray.get([engine.inherited.remote(), engine.overridden.remote()]))
    print(ray.get(engine.reached_by_super.remote()))
    print(ray.get([engine.generate.remote(5), asynchronous.generate.remote(5), reward.remote(5)]))
    for actor in (engine, asynchronous):
        streamed = actor.stream.options(num_returns="streaming").remote(3)
        print([ray.get(item) for item in streamed])
    try:
        ray.get(engine.fail.remote())
    except ValueError as error:
        print("ValueError", error.cause.args if hasattr(error, "cause") else error.args)
    print(ray.get(engine.signature.remote()))
    helped = Helped.remote(Sampler())
    print(gen(0), ray.get([helped.generate.remote(1), score.remote(2)]))
"""

HOOKED = (
    *(f"Base.{name}" for name in ("inherited", "overridden", "reached_by_super")),
    *(f"Engine.{name}" for name in ("__init__", "generate", "fail", "stream", "gone")),
    *("AsyncEngine.generate", "AsyncEngine.stream", "reward"),
    *("gen", "agen", "items", "Sampler.sample", "Helped.generate"),
)
HOOKS = tuple(f"__main__:{name}=rollout" for name in HOOKED)


@pytest.mark.slow
def test_a_cluster_that_the_job_starts_with_every_kind_of_method(job: RunJob) -> None:
    done = job(PY, "{script}", program=EVERY_KIND, hooks=HOOKS, **ENVIRONMENT)
    folder = done.run_path.parent
    plain = untraced(PY, str(folder / "script.py"), cwd=folder, **ENVIRONMENT)
    assert done.code == 0, done.err
    assert done.out == plain.stdout  # the same results, errors and signatures
    assert Counter(done.spans("coalesce(role, 'task') || ': ' || name")) == {
        "Engine: Base.inherited": 1,
        "Engine: Base.reached_by_super": 1,
        "Engine: Engine.__init__": 1,
        "Engine: Engine.generate": 1,
        "Engine: Engine.fail": 1,
        "Engine: Engine.stream": 3,  # one an item
        "AsyncEngine: AsyncEngine.generate": 1,
        "AsyncEngine: AsyncEngine.stream": 3,
        "task: reward": 1,
        "task: gen": 2,  # the driver's own and the task's
        "Helped: Helped.generate": 1,
        "Helped: gen": 2,
        "Helped: agen": 1,
        "Helped: items": 2,
        "Helped: Sampler.sample": 1,
    }
    assert "1 [6, 3]\n" in done.out
    assert len(set(done.spans("CASE WHEN name = 'gen' THEN pid END"))) == 4  # and none
    assert {p["target"] for p in done.problems} == {"__main__:Engine.gone"}
    devices = {p.get("role"): p.get("devices") for p in done.processes}
    assert devices["Engine"] in (["0", "1"], ["2", "3"])
    assert devices["AsyncEngine"] is None
    helpers = [p["argv"] for p in done.processes if "/ray/" in " ".join(p["argv"])]
    assert all(any(word.endswith("default_worker.py") for word in argv) for argv in helpers)


ENGINE = ("__main__:Engine.generate=rollout",)
ON_EVERY_NODE = """
    import ray
    from ray.cluster_utils import Cluster
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

    class Engine:
        def generate(self):
            return ray.get_runtime_context().get_node_id()

    if __name__ == "__main__":
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, logging_level="ERROR")
        Actor = ray.remote(Engine)  # made an actor class at run time
        actors = [
            Actor.options(scheduling_strategy=On(node["NodeID"], soft=False)).remote()
            for node in ray.nodes()
        ]
        print(len(set(ray.get([actor.generate.remote() for actor in actors]))), "nodes")
        ray.shutdown()
        cluster.shutdown()
"""


@pytest.mark.slow
def test_three_nodes_in_one_run(job: RunJob) -> None:
    done = job(PY, "{script}", program=ON_EVERY_NODE, hooks=ENGINE, **ENVIRONMENT)
    assert done.code == 0, done.err
    assert done.out.endswith("3 nodes\n")
    assert len(set(done.spans("pid"))) == 3


# --- a cluster that was there before --------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    """A cluster that knows nothing of rltrace: its address, and its dashboard's."""
    with started_cluster("--num-cpus=3") as found:
        yield found


JOINING = """
    import os, sys, ray
    ray.init(logging_level="ERROR", {arguments})

    @ray.remote
    class Engine:
        def generate(self):
            return os.environ.get("MINE"), [p for p in sys.path if not p.endswith("hooks/site")]
    mine = Engine.options(runtime_env={{"env_vars": {{"MINE": "own", "PYTHONPATH": "/own"}}}})
    print(ray.get([actor.generate.remote() for actor in (Engine.remote(), mine.remote())]))
"""
THEIRS: dict[str, tuple[str, dict[str, str]]] = {
    "None": ("", {}),
    "'job'": ("runtime_env={'env_vars': {'MINE': 'job', 'PYTHONPATH': '/theirs'}}", {}),
    "'config'": (
        "job_config=ray.job_config.JobConfig(runtime_env={'env_vars': {'MINE': 'config'}})", {}
    ),
    "'hook'": ("", {"RAY_RUNTIME_ENV_HOOK": "theirs.hook"}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mine", THEIRS)
def test_a_cluster_that_the_job_joins(
    job: RunJob, cluster: dict[str, str], tmp_path: Path, mine: str
) -> None:
    """What the job asks for of its workers' environment, in each way that there is, is kept."""
    (tmp_path / "theirs.py").write_text("def hook(env): return {'env_vars': {'MINE': 'hook'}}")
    arguments, more = THEIRS[mine]
    program = JOINING.format(arguments=f"address={cluster['address']!r}, {arguments}")
    done = job(PY, "{script}", program=program, hooks=ENGINE, **ENVIRONMENT, **more)
    assert done.code == 0, done.err
    assert done.spans() == ["Engine.generate"] * 2
    assert not done.problems
    plain = untraced(PY, str(tmp_path / "script.py"), cwd=tmp_path, **ENVIRONMENT, **more)
    assert done.out.startswith(f"[({mine}, ")
    assert done.out == plain.stdout  # the same variables and sys.path in the workers


NESTED = """
    import multiprocessing, ray
    ray.init({address!r}, logging_level="ERROR")

    @ray.remote(num_cpus=0)
    class Engine:
        def generate(self):
            queue = multiprocessing.get_context("spawn").Queue()
            process = multiprocessing.get_context("spawn").Process(target=queue.put, args=(3,))
            process.start()
            process.join()
            return queue.get()

    @ray.remote(num_cpus=0)
    class Trainer:
        def fit(self):
            return ray.get(Engine.remote().generate.remote())
    print(ray.get(Trainer.remote().fit.remote()))
"""


@pytest.mark.slow
def test_actors_of_actors_and_their_processes_on_a_cluster_that_was_there_before(
    job: RunJob, cluster: dict[str, str]
) -> None:
    program = NESTED.format(address=cluster["address"])
    hooks = ("__main__:Engine.generate=rollout", "__main__:Trainer.fit=other")
    done = job(PY, "{script}", program=program, hooks=hooks, **ENVIRONMENT)
    assert (done.code, done.out) == (0, "3\n"), done.err
    assert done.spans("role") == ["Trainer", "Engine"]
    (engine,) = (p for p in done.processes if p.get("role") == "Engine")
    (child,) = (p for p in done.processes if p["ppid"] == engine["pid"])
    assert "spawn_main" in " ".join(child["argv"])
    assert not done.problems


@pytest.mark.slow
@pytest.mark.parametrize("waits", [True, False])
def test_a_submitted_job(job: RunJob, cluster: dict[str, str], waits: bool) -> None:
    """Where nobody waits for it, it starts, and is traced, after the command has ended."""
    if not can_submit():
        pytest.skip("`ray job submit` needs the packages of ray[default], which are not installed")
    options = ["--address", cluster["dashboard"], *([] if waits else ["--no-wait"])]
    submit = [RAY, "job", "submit", *options, "--", PY, "{script}"]
    program = dedent(JOINING.format(arguments=""))
    environment = {**ENVIRONMENT, **submit_environment()}
    late = "" if waits else "import time\ntime.sleep(2)\n"
    done = job(*submit, program=late + program, hooks=ENGINE, **environment)
    assert done.code == 0, done.out + done.err
    assert ("succeeded" in done.out + done.err) == waits
    until(lambda: waits or done.spans("end_ns > 0") == [True, True])
    assert done.spans() == ["Engine.generate"] * 2
    assert not done.problems
    scripts = [p["argv"] for p in done.processes if p["argv"][-1].endswith("script.py")]
    assert scripts == [[PY, str(done.run_path.parent / "script.py")]]
