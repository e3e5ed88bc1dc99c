"""What the tables read: timers of frameworks as spans, and functions that know a quantity."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rltrace.adapters.areal import AReaL, samples
from rltrace.adapters.prime_rl import PrimeRL
from rltrace.adapters.slime import Slime
from rltrace.adapters.table.timers import stage_of, start_stop, timed_block
from rltrace.adapters.torchforge import Torchforge
from rltrace.testing.inside.hooks import Adapter, Observer, Recorder, split_target, wrap
from tests.adapters.conftest import Rows, hooked_as
from tests.adapters.symbols import found_at


def doing_nothing(adapter: type[Adapter], version: str) -> dict[str, Any]:
    """Of the functions that an adapter hooks those that a recorded version has, hooked: they take
    what they take there, and do nothing. By name; methods are of their class."""
    made: dict[str, Any] = {}
    for hook in adapter.hooks:
        for kind, *names in found_at(hook, adapter.framework.split(".")[0], version)[:1]:
            owner, _, name = split_target(hook.target)[1].rpartition(".")
            of = {"function": "def", "coroutine function": "async def"}.get(kind)
            if of is not None:
                taken = ", ".join(f"{each}=None" for each in names)
                exec(f"{of} {name}({taken}): pass", here := {})
                function = wrap(here[name], Observer(hook))
                made.setdefault(owner or name, type(owner, (), {}) if owner else function)
                if owner:
                    setattr(made[owner], name, function)
    return made


def tensors(*sizes: int) -> list[tuple[str, Any]]:
    """Named ones, with two bytes an element."""
    return [(f"t{size}", torch.zeros(size, dtype=torch.bfloat16)) for size in sizes]


# --- slime

slime = partial(hooked_as, Slime)
SLIME = doing_nothing(Slime, "main")


@slime("slime.rollout.sglang_rollout:generate")
async def generate(args: Any, sample: Any, sampling_params: Any) -> None:
    sample.weight_versions += ["3", "4"]
    sample.response_length, sample.loss_mask = 9, [1] * 7 + [0] * 2
    sample.status = "completed"


@slime("slime.rollout.sglang_rollout:generate_and_rm")
async def generate_and_rm(args: Any, sample: Any, params: Any, evaluation: bool = False) -> Any:
    await generate(args, sample, params)
    await SLIME["async_rm"](args, sample)
    return sample


def slime_sample(index: int, evaluation: bool = False) -> None:
    made = SimpleNamespace(index=index, group_index=0, weight_versions=[], status="pending")
    asyncio.run(generate_and_rm(None, made, {}, evaluation=evaluation))


@slime("RolloutManager")
class Manager:
    def generate(self, rollout_id: int) -> None:
        slime_sample(rollout_id)

    def eval(self, rollout_id: int) -> None:
        slime_sample(9, evaluation=True)


@slime("UpdateWeightFromDistributed")
class Updater:
    weight_version = 0

    def update_weights(self, named: list[tuple[str, Any]]) -> None:
        self.weight_version += 1
        for _ in range(2):
            self._update_bucket_weights_from_distributed(list(named))

    def _update_bucket_weights_from_distributed(self, converted_named_tensors: Any) -> None:
        converted_named_tensors.clear()


@slime("MegatronTrainRayActor")
class Actor:
    def __init__(self) -> None:
        self.weight_updater = Updater()

    def update_weights(self, named: list[tuple[str, Any]]) -> None:
        self.weight_updater.update_weights(named)


def test_slime(rows: Rows) -> None:
    manager, actor, timer = Manager(), Actor(), SLIME["Timer"]()
    for step in (5, 6):
        manager.generate(step)
        SLIME["MegatronTrainRayActor"]().train(step)
        timer.start("train")
        timer.start("actor_train")
        timer.end("actor_train")
        timer.end("train")
        actor.update_weights(tensors(100, 50))
        timer.start("train_wait")
        SLIME["log"](None, {"perf/train_time": 2.5}, "rollout/step")
        timer.end("train_wait")
    manager.eval(6)
    assert rows("select step from spans where stage = 'step' order by 1") == [(5,), (6,)]
    labels = "name in ('train', 'actor_train', 'train_wait')"
    assert rows(f"select name, stage, step from spans where {labels} order by start_ns") == [
        (name, stage, step)
        for step in (5, 6)
        for name, stage in (("actor_train", "train"), ("train_wait", "wait"))
    ]
    # Evaluation, and what it generates with.
    made = {"eval": 3, "reward": 2, "rollout": 2}
    found = dict(rows("select stage, count(*) from spans group by 1"))
    assert {stage: found[stage] for stage in made} == made
    columns = "first_version, last_version, response_tokens, finish, end_ns is not null"
    assert rows(f"select {columns} from trajectories") == [(3, 4, 7, "stop", True)] * 2
    # Buckets are counted before slime empties them.
    sent = rows("select version, role, bytes from syncs order by version")
    assert sent == [(version, "source", 2 * 2 * 150) for version in (1, 2)]
    assert rows("select bytes from spans where phase = 'transfer'") == [(300,)] * 4
    figures = "select value from samples where counter = 'perf/train_time'"
    assert rows(figures) == [(2.5,), (2.5,)]


# --- AReaL

areal = partial(hooked_as, AReaL)
AREAL = doing_nothing(AReaL, "2.0.0")


class Tracker:
    @contextmanager
    def record_timing(self, key: str) -> Iterator[None]:
        yield


record_timing = areal("areal.utils.stats_tracker:record_timing")(Tracker().record_timing)
HookedTracker = areal("DistributedStatsTracker")(Tracker)


@areal("areal.infra.remote_inf_engine:RemoteInfEngine")
class Engine:
    """It answers each request with the same tokens, each of a version."""

    engine_id = "engine"

    def __init__(self, tokens: list[int], versions: list[int], max_age: int = 4) -> None:
        self.tokens, self.versions = tokens, versions
        self.config = SimpleNamespace(max_head_offpolicyness=max_age)

    def get_version(self) -> int:
        return self.versions[-1]

    async def agenerate(self, req: Any) -> Any:
        made = {"output_tokens": self.tokens, "output_versions": self.versions}
        more = {"stop_reason": "length", "output_logprobs": [-0.5] * len(self.tokens)}
        return SimpleNamespace(**made, **more)


@pytest.fixture
def in_task(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a task of AReaL's before 0.5.2: it says its number, and not whether it evaluates
    (`areal.core.workflow_context` came later)."""
    for name in ("areal.infra.workflow_context", "areal.core.workflow_context"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    tracer = SimpleNamespace(get_task_id=lambda: 5)
    monkeypatch.setitem(sys.modules, "areal.utils.perf_tracer", tracer)
    yield
    samples._answers.clear()
    samples._uses.clear()


@pytest.mark.usefixtures("in_task")
def test_areal(rows: Rows) -> None:
    """The trainer's timer of rollouts is waiting; requests are rollout."""
    engine, logger = Engine([1, 2, 3], [-1, 4, 6]), AREAL["StatsLogger"]()
    for step in (11, 12):
        with record_timing("rollout"):
            asyncio.run(engine.agenerate(SimpleNamespace(rid=f"r{step}", input_ids=[0] * 5)))
        with record_timing("train_step"), HookedTracker().record_timing("compute_advantage"):
            pass
        AREAL["RemoteInfEngine"]().set_version(step + 1)
        logger.commit(0, 0, step, {"timeperf/rollout": 1.5})
    found = rows("select name, stage from spans where stage <> 'step' order by start_ns")
    assert found == [
        ("rollout", "wait"),
        ("RemoteInfEngine.agenerate", "rollout"),
        ("train_step", "train"),
        ("compute_advantage", "other"),
    ] * 2  # fmt: skip
    # A step gets the number of its commit.
    steps = "select step, end_ns is not null from spans where stage = 'step' order by 1"
    assert rows(steps) == [(11, True), (12, True)]
    columns = "first_version, last_version, prompt_tokens, response_tokens, finish, logprobs"
    assert rows(f"select {columns} from trajectories") == [(4, 6, 5, 3, "length", 1)] * 2
    assert rows("select counter, value from samples") == [("timeperf/rollout", 1.5)] * 2


@pytest.mark.usefixtures("in_task")
@pytest.mark.parametrize(("max_age", "fates"), [(4, [("trained",)]), (10**12, [])])
def test_an_evaluation_of_areals_is_told_by_its_engine(
    rows: Rows, max_age: int, fates: list[Any]
) -> None:
    engine = Engine([2, 7], [3, 3], max_age)
    asyncio.run(engine.agenerate(SimpleNamespace(rid="one", input_ids=[4, 5])))
    ids, mask = torch.tensor([[4, 5, 2, 7]]), torch.tensor([[0, 0, 1, 1]])
    result = SimpleNamespace(task_id=5, trajectory={"input_ids": ids, "loss_mask": mask})
    wait = areal("BatchTaskDispatcher.wait_results")(lambda self: [result])
    wait(SimpleNamespace(staleness_manager=SimpleNamespace(version_provider=engine)))
    assert rows("select response_tokens from trajectories") == [(2,)]
    assert rows("select fate from uses join trajectories using (trajectory)") == fates
    assert not samples._answers


class Use:
    """A row; another one is made as its step is set, as by the executor's thread."""

    def __init__(self, meanwhile: Use | None = None) -> None:
        self.meanwhile, self.step = meanwhile, -1

    def set(self, step: int) -> None:
        self.step = step
        if self.meanwhile is not None:
            samples._uses.append(self.meanwhile)


@pytest.mark.parametrize("others", [0, 3])
def test_a_sample_that_areal_gives_up_meanwhile_is_of_the_next_step(others: int) -> None:
    late = Use()
    first = [Use(late), *(Use() for _ in range(others))]
    samples._uses.extend(first)
    recorder: Any = SimpleNamespace(step=5)
    samples.uses_are_of(recorder)
    assert [use.step for use in first] == [5] * len(first)
    assert late.step == -1
    recorder.step = 6
    samples.uses_are_of(recorder)
    assert late.step == 6
    assert not samples._uses


# --- torchforge

FORGE = doing_nothing(Torchforge, "main")


def test_torchforge(rows: Rows) -> None:
    """A lap is named by the call that ends it."""
    tracer = FORGE["Tracer"]()
    tracer.prefix = "main_perf/continuous_training"
    laps = {"waiting_for_buffer": "wait", "train_step": "train", "push_weights": "sync"}
    for _ in range(2):
        tracer.start()
        for lap in laps:
            tracer.step(lap)
        tracer.stop()
    FORGE["record_metric"]("buffer/sample/avg_sampled_policy_age", 1.5)
    found = rows("select name, stage from spans where stage <> 'step' order by start_ns")
    assert found == [(f"{tracer.prefix}/{lap}", stage) for lap, stage in laps.items()] * 2
    assert rows("select step from spans where stage = 'step' order by 1") == [(0,), (1,)]
    assert rows("select value from samples") == [(1.5,)]


# --- prime-rl

prime_rl = partial(hooked_as, PrimeRL)
PRIME_RL = doing_nothing(PrimeRL, "main")


@prime_rl("Env")
class Env:
    async def run(self, client: Any, model_name: str) -> Any:
        return SimpleNamespace(traces=[SimpleNamespace(id="t1")], start=2, end=3)


class EvalEnv(Env):
    pass


def train_work(episode: Any) -> Any:
    """A function beside the one that is hooked."""
    return SimpleNamespace(policy=SimpleNamespace(start=episode.start, end=episode.end))


@prime_rl("episode_staleness")
def episode_staleness(episode: Any, training_step: int) -> tuple[int, int, int]:
    return 2, 1, 1


def test_prime_rl(rows: Rows) -> None:
    """A step begins with the wait and takes the number that it sends."""
    episode = asyncio.run(Env().run(None, "m"))
    asyncio.run(EvalEnv().run(None, "m"))
    for _ in range(3):  # asked for each figure
        episode_staleness(episode, 5)
    PRIME_RL["DataLoader"]().wait_for_batch()
    model = SimpleNamespace(parameters=lambda: [tensor for _, tensor in tensors(1000, 24)])
    PRIME_RL["NCCLWeightBroadcast"]().broadcast_weights(model, step=5)
    assert rows("select first_version, last_version from trajectories") == [(2, 3)]
    assert rows("select step, version, fate from uses") == [(5, 4, "trained")]
    episodes = rows("select stage from spans where name = 'Env.run' order by start_ns")
    assert episodes == [("rollout",), ("eval",)]
    steps = "select step, stage from spans where stage in ('step', 'sync') order by start_ns"
    assert rows(steps) == [(5, "step"), (5, "sync")]
    assert rows("select version, role, bytes from syncs") == [(5, "source", 2 * 1024)]


LABELS = {"total": "step", "gen": "rollout", "idle/": "wait", "quiet": ""}


@contextmanager
def timed(label: str) -> Iterator[str]:
    """A framework's timer, which gives its label."""
    yield label


@asynccontextmanager
async def timed_async(label: str) -> AsyncIterator[str]:
    """An asynchronous one."""
    yield label


class Timer:
    """One with two methods."""

    def start(self, label: str) -> None: ...

    def stop(self, label: str) -> None: ...


def hooked(function: Any) -> Any:
    """The timer with the hook for it."""
    return wrap(function, Observer(timed_block("a:b", LABELS, "label")))


SPANS = "select name, stage, coalesce(end_ns > start_ns, false) from spans order by start_ns"
"""Whether it is known how long they took."""


@pytest.mark.parametrize(
    ("label", "stage"),
    [("gen", "rollout"), ("idle/queue", "wait"), ("quiet", ""), ("new", "other"), ("a/b", "other")],
)
def test_a_label_has_its_stage_or_that_of_its_part(label: str, stage: str) -> None:
    assert stage_of(LABELS, label) == stage


def test_a_block_lasts_as_long_as_its_body_and_gives_what_it_gave(rows: Rows) -> None:
    block = hooked(timed)
    with block("total"), block("gen") as given, block("quiet"), block("idle/x"):
        assert given == "gen"
    assert rows(SPANS) == [
        ("step", "step", True), ("gen", "rollout", True), ("idle/x", "wait", True)
    ]  # fmt: skip


def test_what_a_body_raises_comes_out_and_its_step_has_no_end(
    recorder: Recorder, rows: Rows
) -> None:
    block = hooked(timed)
    with pytest.raises(KeyError, match="theirs"), block("total"), block("gen"):
        raise KeyError("theirs")
    assert recorder.open_step is None
    assert rows(SPANS) == [("step", "step", False), ("gen", "rollout", True)]


def test_a_block_is_a_decorator_still(rows: Rows) -> None:
    decorated = hooked(timed)("gen")(lambda number: number + 1)
    assert [decorated(1), decorated(2)] == [2, 3]
    assert rows(SPANS) == [("gen", "rollout", True)] * 2


def test_an_asynchronous_block_is_one_span(rows: Rows) -> None:
    async def job() -> str:
        async with hooked(timed_async)("gen") as given:
            await asyncio.sleep(0)
            return str(given)

    assert asyncio.run(job()) == "gen"
    assert rows(SPANS) == [("gen", "rollout", True)]


def test_timers_of_two_objects_do_not_meet(rows: Rows) -> None:
    start, stop = start_stop("a:T.start", "a:T.stop", LABELS, lambda c: str(c.argument("label")))
    begins, ends = wrap(Timer.start, Observer(start)), wrap(Timer.stop, Observer(stop))
    one, other = Timer(), Timer()
    begins(one, "gen")
    begins(other, "gen")
    ends(one, "gen")
    ends(other, "never started")
    assert rows(SPANS) == [("gen", "rollout", True), ("gen", "rollout", False)]
