"""What the OpenRLHF adapter reads, on objects shaped like its own; `tests/openrlhf` has those."""

from __future__ import annotations

import asyncio
import math
import pickle
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rltrace
from rltrace.adapters.openrlhf import agents, controller, engine, fates, rollout, training, verdicts
from rltrace.hooks import recorder as recording
from rltrace.hooks.hook import Hook
from rltrace.hooks.observing import Observer
from rltrace.hooks.wrapping import wrap


def hooked(function: Any, stage: Any = None, **readers: Any) -> Any:
    """A function with a hook on it."""
    return wrap(function, Observer(Hook("openrlhf:function", stage, **readers)))


def rows(run_path: Path, query: str) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = rltrace.open_run(run_path).sql(query).fetchall()
    return found


def problems(run_path: Path) -> list[str]:
    """What readers could not read."""
    return [problem["detail"] for problem in rltrace.open_run(run_path).problems]


@pytest.fixture(autouse=True)
def fresh_process() -> Iterator[None]:
    """The state that each process begins with."""
    engine._update.clear()
    engine._done.clear()
    engine._spent_ns.update(dict.fromkeys(engine._spent_ns, 0))
    controller._loop.__dict__.clear()
    fates._filtering.clear()
    training._models.clear()
    agents._watched.clear()
    yield
    controller._loop.__dict__.clear()


class Tensor:
    """As much of a tensor of numbers as readers may look at."""

    device = SimpleNamespace(type="cpu")

    def __init__(self, *values: float) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, place: int) -> float:
        return self.values[place]

    def sum(self) -> float:
        return sum(self.values)


# Rollout actors.


@dataclass
class Answer:
    """What vLLM does with one request."""

    tokens: int
    reason: str = "stop"
    queued_s: float = 0.0
    stamped: bool = True
    updates: tuple[str, ...] = ()  # tensors that arrive meanwhile, the last one of them at the end


class Engine:
    """A rollout actor: executors ask it, weights come to it."""

    def __init__(self, executor: Any = None, answers: tuple[Answer, ...] = ()) -> None:
        self.executor = executor
        self.answers = list(answers)

    async def _generate(self, prompt_token_ids: list[int], sampling_params: Any = None) -> Any:
        answer = self.answers.pop(0)
        queued = time.monotonic()
        await asyncio.sleep(answer.queued_s)
        scheduled = first = time.monotonic()
        for name in answer.updates:
            await self.update_weight(name, empty_cache=name == answer.updates[-1])
        stamps = (queued, scheduled, first, time.monotonic())
        names = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
        metrics = SimpleNamespace(**dict(zip(names, stamps, strict=True)))
        completion = SimpleNamespace(
            token_ids=[0] * answer.tokens, finish_reason=answer.reason, logprobs=None
        )
        return SimpleNamespace(outputs=[completion], metrics=metrics if answer.stamped else None)

    async def _update_weight(
        self, name: str, dtype: Any = None, shape: Any = (2, 3), empty_cache: bool = False
    ) -> None:
        if name == "broken":
            raise OSError(name)

    async def _generate_responses(self, prompt: str, num_samples: int = 1) -> Any:
        samples = [self.executor.execute(prompt, llm_engine=self) for _ in range(num_samples)]
        return await asyncio.gather(*samples)

    generate = hooked(_generate, "rollout", before=rollout.asking, after=rollout.requested)
    generate_responses = hooked(_generate_responses, before=agents.group_begins)

    async def update_weight(self, name: str, **given: Any) -> None:
        """One tensor of 6 elements of 2 bytes."""
        await self.load(name, dtype=SimpleNamespace(itemsize=2), **given)

    load = hooked(
        _update_weight,
        engine.tensor_stage,
        phase="load",
        before=engine.tensor_comes,
        after=engine.tensor_loaded,
    )


class SingleTurn:
    """OpenRLHF's executor with a reward function."""

    reward_func = None

    def __init__(self, reward: Any = None) -> None:
        self.reward = reward

    async def _fetch(self, queries_list: list[str]) -> Any:
        if isinstance(self.reward, Exception):
            raise self.reward
        return [self.reward]

    async def _execute(self, prompt: str, llm_engine: Any) -> Any:
        output = await llm_engine.generate([1, 2, 3])
        response = {"observation_tokens": [], "truncated": False, "reward": None}
        try:
            response["reward"] = (await self.fetch(["query"]))[0]["rewards"]
        except Exception:
            pass  # so does OpenRLHF
        response["truncated"] = output.outputs[0].finish_reason == "length"
        return response

    fetch = hooked(_fetch, "reward", before=verdicts.judging, after=verdicts.judged)
    execute = hooked(_execute, before=rollout.begins, after=agents.sample_ends)


def generate(executor: Any, *answers: Answer, samples: int = 1, prompt: str = "p") -> list[Any]:
    """The responses of one prompt."""
    actor = Engine(executor, answers)
    return list(asyncio.run(actor.generate_responses(prompt, num_samples=samples)))


def test_a_sample_is_a_trajectory_and_its_response_carries_its_id(
    recorder: recording.Recorder, run_path: Path
) -> None:
    recorder.version = 0
    answers = (Answer(4, queued_s=0.02), Answer(7, "length"))
    responses = generate(SingleTurn({"rewards": 0.5}), *answers, samples=2)
    found = rows(
        run_path,
        'select trajectory, "group", prompt_tokens, response_tokens, turns, finish, '
        "first_version, last_version, first_token_ns between start_ns and end_ns "
        "from trajectories order by response_tokens",
    )
    assert [row[2:] for row in found] == [
        (3, 4, 1, "stop", 0, 0, True),
        (3, 7, 1, "length", 0, 0, True),
    ]
    assert {response[rollout.TAG] for response in responses} == {row[:2] for row in found}
    assert len({row[1] for row in found}) == 1
    assert rows(run_path, "select distinct component, value, outcome from rewards") == [
        ("reward server", 0.5, "ok")
    ]
    assert not problems(run_path)


class JudgedInThreads(SingleTurn):
    """OpenRLHF's executor with a reward function of the user's, which it calls in a thread."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[tuple[int, int]] = []

        def judge(queries: list[str]) -> dict[str, float]:
            began = time.monotonic_ns()
            time.sleep(0.02)
            self.ran.append((began, time.monotonic_ns()))
            return {"rewards": 0.5}

        self.reward_func = judge

    async def _fetch(self, queries_list: list[str]) -> Any:
        return [await asyncio.to_thread(self.reward_func, queries_list)]

    fetch = hooked(_fetch, "reward", before=agents.verdict_wanted, after=verdicts.judged)


def test_a_verdict_lasts_as_long_as_the_users_function_and_not_its_wait_for_a_thread(
    recorder: recording.Recorder, run_path: Path
) -> None:
    recorder.version = 0
    executor = JudgedInThreads()

    async def all_of_them() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        await Engine(executor, [Answer(4)] * 3).generate_responses("p", num_samples=3)

    asyncio.run(all_of_them())
    found = rows(run_path, "select start_ns, end_ns from raw_rewards order by start_ns")
    assert len(found) == len(executor.ran) == 3
    assert all(end_ns <= start_ns for (_, end_ns), (start_ns, _) in pairwise(found))
    assert rows(run_path, "select distinct component, value, outcome from rewards") == [
        ("judge", 0.5, "ok")
    ]
    [calls] = rows(run_path, "select count(*) from spans where stage = 'reward'")
    assert calls == (3,)
    assert not problems(run_path)


def test_a_request_generates_from_when_vllm_has_scheduled_it(
    recorder: recording.Recorder, run_path: Path
) -> None:
    recorder.version = 0
    generate(SingleTurn(), Answer(4, queued_s=0.05))
    [(request, queue)] = rows(
        run_path,
        "select r.start_ns - q.end_ns, (q.end_ns - q.start_ns) / 1e9 from spans r, spans q "
        "where r.stage = 'rollout' and q.name = 'vLLM''s queue'",
    )
    assert request == 0
    assert queue >= 0.05
    assert rows(run_path, "select tokens, items from spans where stage = 'rollout'") == [(4, 1)]


def test_without_stamps_a_request_is_as_long_as_its_call(
    recorder: recording.Recorder, run_path: Path
) -> None:
    recorder.version = 0
    generate(SingleTurn(), Answer(4, queued_s=0.02, stamped=False))
    assert rows(run_path, "select distinct stage from spans order by 1") == [
        ("reward",),
        ("rollout",),
    ]
    assert rows(run_path, "select first_token_ns, first_version from trajectories") == [(None, 0)]


def test_weights_that_arrive_during_a_request_make_a_trajectory_of_two_versions(
    recorder: recording.Recorder, run_path: Path
) -> None:
    recorder.version = 0
    generate(SingleTurn(), Answer(4, updates=("a", "b")))
    generate(SingleTurn(), Answer(5, updates=("a", "b"), stamped=False))
    found = rows(
        run_path, "select response_tokens, first_version, last_version from trajectories order by 1"
    )
    assert found == [(4, 0, 1), (5, 1, 2)]


def test_a_request_that_waited_for_new_weights_is_of_them_alone(
    recorder: recording.Recorder, run_path: Path
) -> None:
    """It was sent before the update, and not scheduled until it was over."""
    recorder.version = 0
    actor = Engine(SingleTurn(), (Answer(4, queued_s=0.05),))

    async def both() -> None:
        waiting = asyncio.create_task(actor.generate_responses("p"))
        await asyncio.sleep(0.01)
        await actor.update_weight("a", empty_cache=True)
        await waiting

    asyncio.run(both())
    assert rows(run_path, "select first_version, last_version from trajectories") == [(1, 1)]
    assert rows(run_path, "select version from spans where stage = 'rollout'") == [(1,)]


@pytest.mark.parametrize(
    ("reward", "outcome"),
    [
        (ValueError("theirs"), "error"),
        (TimeoutError(), "timeout"),
        (None, "error"),
        ({"rewards": None}, "error"),
        ({"rewards": float("nan")}, "error"),
    ],
)
def test_a_verdict_that_fails_is_told_and_the_sample_stays(
    recorder: recording.Recorder, run_path: Path, reward: Any, outcome: str
) -> None:
    generate(SingleTurn(reward), Answer(4))
    assert rows(run_path, "select value, outcome, end_ns >= start_ns from rewards") == [
        (None, outcome, True)
    ]
    assert rows(run_path, "select finish, end_ns is not null from trajectories") == [("stop", True)]


def test_a_verdict_that_never_comes_leaves_a_row_and_the_generation_before_it(
    recorder: recording.Recorder, run_path: Path
) -> None:
    class Hangs(SingleTurn):
        async def _fetch(self, queries_list: list[str]) -> Any:
            await asyncio.sleep(60)

        fetch = hooked(_fetch, "reward", before=verdicts.judging, after=verdicts.judged)

    async def give_up() -> None:
        actor = Engine(Hangs(), (Answer(4),))
        task = asyncio.create_task(actor.generate_responses("p"))
        await asyncio.sleep(0.05)
        assert rows(run_path, "select end_ns, outcome from rewards") == [(None, None)]
        assert rows(run_path, "select finish from trajectories") == [("stop",)]
        task.cancel()

    asyncio.run(give_up())


def test_a_request_that_fails_ends_its_trajectory_with_an_error(
    recorder: recording.Recorder, run_path: Path
) -> None:
    with pytest.raises(IndexError):
        generate(SingleTurn())
    assert rows(run_path, "select finish, end_ns is not null from trajectories") == [
        ("error", True)
    ]


class Environment:
    """An environment of the user's."""

    async def step(self, states: Any) -> float:
        await asyncio.sleep(0.02)
        return 1.0


class UsersExecutor:
    """An executor of the user's that overrides `execute` and asks twice."""

    def __init__(self, environment: type) -> None:
        self.take(environment)

    def _take(self, agent_instance_cls: type) -> None:
        self.environment = agent_instance_cls

    take = hooked(_take, agents.no_span, before=agents.environment_known)

    async def execute(self, prompt: str, llm_engine: Any) -> Any:
        environment = self.environment()
        for turn in range(2):
            await llm_engine.generate([0] * (10 * turn + 2))
            reward = await environment.step({})
        return {"reward": reward, "truncated": False}


def test_a_users_executor_and_its_environment_are_seen(
    recorder: recording.Recorder, run_path: Path
) -> None:
    [response] = generate(UsersExecutor(Environment), Answer(4), Answer(5))
    generate(UsersExecutor(Environment), Answer(6), Answer(7))  # watched once
    assert rows(
        run_path,
        "select prompt_tokens, response_tokens, turns, env_ns >= 40000000 from trajectories",
    ) == [(2, 9, 2, True), (2, 13, 2, True)]
    assert rows(run_path, "select name, count(*) from spans where stage = 'env' group by 1") == [
        ("Environment.step", 4)
    ]
    assert rows(run_path, "select component, value, end_ns - start_ns from rewards limit 1") == [
        ("agent", 1.0, 0)
    ]
    assert response[rollout.TAG]
    assert not problems(run_path)


def test_requests_made_elsewhere_leave_what_the_response_says(
    recorder: recording.Recorder, run_path: Path
) -> None:
    """An executor that serves an API to its agent is asked in other tasks."""

    class Serves:
        async def execute(self, prompt: str, llm_engine: Any) -> Any:
            return {"action_ranges": [(3, 8), (10, 12)], "rollout_log_probs": [0.0] * 12}

    recorder.version = 2
    generate(Serves())
    assert rows(
        run_path,
        "select prompt_tokens, response_tokens, turns, logprobs, first_version, last_version "
        "from trajectories",
    ) == [(3, 7, 2, 1, 2, 2)]


# Weights.


def test_an_update_is_one_span_and_one_row_with_its_tensors(
    recorder: recording.Recorder, run_path: Path
) -> None:
    async def update() -> None:
        actor = Engine()
        recorder.version = 0
        for names in (("a", "b", "c"), ("a", "b", "c")):
            for name in names:
                await actor.update_weight(name, empty_cache=name == "c")

    asyncio.run(update())
    assert rows(
        run_path, "select version, role, bytes, wire_bytes, buckets from syncs order by version"
    ) == [(1, "sink", 36, 36, 3), (2, "sink", 36, 36, 3)]
    assert rows(
        run_path,
        "select p.version, p.items, p.start_ns >= y.start_ns, p.end_ns - y.end_ns, phase "
        "from spans p join syncs y using (version) order by 1",
    ) == [(1, 3, True, 0, "load"), (2, 3, True, 0, "load")]
    counted = rows(run_path, "select counter, value from samples order by value")
    assert [name for name, _ in counted] == ["weights/rpc_seconds"] * 2
    assert 0 < counted[0][1] <= counted[1][1]


def test_an_update_that_was_broken_off_is_no_version(
    recorder: recording.Recorder, run_path: Path
) -> None:
    async def update() -> None:
        actor = Engine()
        recorder.version = 0
        await actor.update_weight("a")
        with pytest.raises(OSError, match="broken"):
            await actor.update_weight("broken")
        for name in ("a", "b"):
            await actor.update_weight(name, empty_cache=name == "b")

    asyncio.run(update())
    assert rows(run_path, "select version, bytes, buckets from syncs") == [(1, 24, 2)]


class Parameter(Tensor):
    """A parameter of a model; under ZeRO-3 with a part of its elements only."""

    requires_grad = True

    def __init__(self, elements: int, whole: int | None = None) -> None:
        super().__init__(*[0.0] * elements)
        if whole is not None:
            self.ds_numel = whole

    def numel(self) -> int:
        return len(self)

    def element_size(self) -> int:
        return 2


class NcclLike:
    """Stands for vLLM's PyNcclCommunicator."""


def policy(first_rank: bool, group: Any, *parameters: Parameter) -> Any:
    module = SimpleNamespace(parameters=lambda: iter(parameters))
    args = SimpleNamespace(vllm=SimpleNamespace(sync_backend="gloo"))
    strategy = SimpleNamespace(is_rank_0=lambda: first_rank, args=args)
    actor = SimpleNamespace(model=SimpleNamespace(module=module))
    return SimpleNamespace(
        actor=actor, strategy=strategy, use_cuda_ipc=False, _model_update_group=group
    )


@pytest.mark.parametrize(
    ("group", "transport"), [(NcclLike(), "nccl"), ("openrlhf", "gloo"), (object(), None)]
)
def test_the_first_rank_sends_the_whole_model(
    recorder: recording.Recorder, run_path: Path, group: Any, transport: str | None
) -> None:
    send = hooked(lambda self: None, "sync", after=training.sent)
    parameters = Parameter(5), Parameter(2, whole=7)
    for first_rank in (True, False):
        recorder.version = 0
        send(policy(first_rank, group, *parameters))
    assert rows(run_path, "select version, role, bytes, buckets, transport from syncs") == [
        (1, "source", 24, 2, transport)
    ]
    assert rows(run_path, "select version from spans") == [(1,), (1,)]


# The models' processes.


def test_forwards_and_training_say_how_much_they_did(
    recorder: recording.Recorder, run_path: Path
) -> None:
    def execute_batch(
        self: Any, method_name: str, all_data: Any, start_idx: int, end_idx: int
    ) -> None:
        pass

    forward = hooked(execute_batch, training.forward("reference"), before=training.batch_given)
    masks = [Batch(Tensor(1, 1), Tensor(1, 0)), Batch(Tensor(1, 1))]
    forward(None, "forward", {"attention_mask": masks}, 0, 2)
    forward(None, "forward", {"attention_mask": masks}, 1, 2)
    forward(None, "append", {"experience": masks}, 0, 2)
    train = hooked(lambda self, kl_ctl: None, "train", before=training.training)
    items = [SimpleNamespace(attention_mask=Tensor(1, 1, 1)) for _ in range(5)]
    for size in (5, 2):  # of two in a batch, the fifth is left out
        buffer = SimpleNamespace(items=items, sample_batch_size=size, dynamic_batch=False)
        train(SimpleNamespace(replay_buffer=buffer), 0.0)
    assert rows(run_path, "select stage, items, tokens from spans order by start_ns") == [
        ("reference", 3, 5),
        ("reference", 1, 2),
        ("train", 5, 15),
        ("train", 4, None),
    ]
    assert not problems(run_path)


class Batch(Tensor):
    """A tensor of rows."""

    def __init__(self, *mask: Tensor) -> None:
        super().__init__(*mask)  # type: ignore[arg-type]

    def sum(self) -> float:
        return sum(row.sum() for row in self.values)  # type: ignore[attr-defined]


# The controller.


@dataclass
class Experience:
    """OpenRLHF's, as far as it is looked at."""

    action_mask: Any = field(default_factory=lambda: Tensor(1, 1, 0))
    rewards: Any = None
    scores: Any = None
    index: Any = None
    action_log_probs: Any = None
    rollout_log_probs: Any = None


class Trainer:
    """The loop of OpenRLHF's controller, with its functions hooked."""

    args = SimpleNamespace(
        ckpt=SimpleNamespace(save_steps=2),
        train=SimpleNamespace(colocate_all=True),
        algo=SimpleNamespace(dynamic_filtering_range=(0.0, 1.0)),
    )

    def __init__(self, batches: list[list[Any]], resumed_at: int = 0) -> None:
        self.batches = batches
        self.resumed_at = resumed_at

    def _fit(self, global_step: int = 0) -> None:
        global_step = self.init_checkpoint_states()["global_step"]
        if global_step:
            self.broadcast_to_vllm()
        while True:
            samples = self.generate_samples()
            if samples is None:
                return
            if samples:
                global_step = self.train_step(samples, global_step)
                figures = {"timing/broadcast": 0.5, "generated_samples": ["text"], "kl": 1}
                self.save_logs_and_checkpoints(global_step, figures)

    def _train_step(self, rollout_samples: list[Any], global_step: int) -> int:
        if rollout_samples == ["broken"]:
            raise ValueError("theirs")
        self.make_experience(rollout_samples)
        self.broadcast_to_vllm()
        return global_step + 1

    def _make_experience(self, samples: list[Any]) -> list[Any]:
        """In micro-batches of other places."""
        places = list(reversed(range(len(samples))))
        return [Experience(index=places, rewards=Tensor(*(float(place) for place in places)))]

    fit = hooked(_fit, before=controller.fit_begins, after=controller.fit_ends)
    train_step = hooked(_train_step, before=controller.train_begins, after=controller.train_ends)
    make_experience = hooked(_make_experience, after=controller.experience_made)
    init_checkpoint_states = hooked(
        lambda self: {"global_step": self.resumed_at}, after=controller.resumed
    )
    broadcast_to_vllm = hooked(lambda self: None, "sync", after=controller.weights_brought)
    generate_samples = hooked(
        lambda self: self.batches.pop(0) if self.batches else None, controller.next_batch
    )
    save_logs_and_checkpoints = hooked(
        lambda self, global_step, logs_dict: None,
        controller.saving,
        before=controller.logged,
        after=controller.step_did_more,
    )


def sample(tag: tuple[int, int] | None, rewards: Any = None) -> Experience:
    """A sample as it arrives in the controller: through pickling, which keeps what it carries."""
    process = hooked(lambda self, response: Experience(rewards=rewards), after=fates.arrived)
    experience = process(None, {} if tag is None else {rollout.TAG: tag})
    copied: Experience = pickle.loads(pickle.dumps(experience, protocol=5))
    return copied


Experience.__module__ = __name__
Tensor.__module__ = __name__


def test_steps_tile_the_loop_and_waiting_for_a_batch_is_of_the_step_that_trains_on_it(
    recorder: recording.Recorder, run_path: Path
) -> None:
    Trainer([[sample((7, 1))], [], [sample((8, 2)), sample(None)]]).fit()
    steps = rows(run_path, "select step, start_ns, end_ns from steps")
    assert [step for step, *_ in steps] == [1, 2]
    assert steps[0][2] == steps[1][1]
    waits = rows(run_path, "select step, count(*) from spans where stage = 'wait' group by 1")
    assert sorted(waits) == [(1, 1), (2, 2), (3, 1)]  # the third time for nothing
    assert rows(run_path, "select trajectory, step, version, fate, tokens from uses") == [
        (7, 1, 0, "trained", 2),
        (8, 2, 1, "trained", 2),
        (None, 2, 1, "trained", 2),
    ]
    stages = rows(run_path, "select stage from spans where name not in ('step') order by start_ns")
    assert [stage for (stage,) in stages] == [
        *("wait", "sync", "other"),
        *("wait", "wait", "sync", "checkpoint"),
        "wait",
    ]
    assert recorder.step == -1
    assert rltrace.open_run(run_path).processes[0].facts["placement"] == "colocated"
    assert not problems(run_path)


def test_a_resumed_loop_counts_on_and_its_first_broadcast_is_a_version(
    recorder: recording.Recorder, run_path: Path
) -> None:
    Trainer([[sample((7, 1))]], resumed_at=5).fit()
    assert rows(run_path, "select step from spans where stage = 'step'") == [(6,)]
    assert rows(run_path, "select step, version from uses") == [(6, 1)]


def test_a_step_that_an_exception_cuts_short_stays_open_and_trains_on_nothing(
    recorder: recording.Recorder, run_path: Path
) -> None:
    with pytest.raises(ValueError, match="theirs"):
        Trainer([[sample((7, 1))], ["broken"]]).fit()
    assert rows(
        run_path, "select step, end_ns is null from spans where stage = 'step' order by 1"
    ) == [(1, False), (2, True)]
    assert rows(run_path, "select trajectory from uses") == [(7,)]


def test_openrlhfs_own_figures_are_counters_within_their_step(
    recorder: recording.Recorder, run_path: Path
) -> None:
    Trainer([[sample((7, 1))]]).fit()
    assert rows(
        run_path,
        "select counter, value from samples join steps "
        "on time_ns between steps.start_ns and steps.end_ns order by 1",
    ) == [("kl", 1.0), ("timing/broadcast", 0.5)]


@pytest.mark.parametrize("judged", [True, False])
def test_a_reward_models_verdicts_find_their_trajectories(
    recorder: recording.Recorder, run_path: Path, judged: bool
) -> None:
    """A sample that came with a reward is not judged again."""
    rewards = Tensor(0.5) if judged else None
    Trainer([[sample((7, 1), rewards), sample((8, 1), rewards)]]).fit()
    expected = [] if judged else [(7, 0.0, "reward model"), (8, 1.0, "reward model")]
    assert rows(run_path, "select trajectory, value, component from rewards order by 1") == expected


def test_ratios_of_both_policies_are_told_by_sample(
    recorder: recording.Recorder, run_path: Path
) -> None:
    """Two samples in a micro-batch, in another order than they came; the second is shorter, and
    what pads it counts for nothing."""
    torch = pytest.importorskip("torch", reason="a tensor's own arithmetic is used")

    class Compares(Trainer):
        def _make_experience(self, samples: list[Any]) -> list[Any]:
            now = torch.tensor([[-1.0, -1.0, -1.0], [-2.0, float("nan"), 0.0]])
            then = torch.tensor([[-1.0, -2.0, -0.5], [-1.0, 0.0, 0.0]])
            mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
            return [
                Experience(
                    action_mask=mask, index=[1, 0], action_log_probs=now, rollout_log_probs=then
                )
            ]

        make_experience = hooked(_make_experience, after=controller.experience_made)

    Compares([[sample((7, 1), Tensor(1)), sample((8, 1), Tensor(1))]]).fit()
    found = rows(
        run_path,
        "select trajectory, mean_log_ratio, sum_w, sum_w_squared from uses order by trajectory",
    )
    w = [1.0, math.exp(1.0), math.exp(-0.5)]
    assert found == [
        (7, pytest.approx(-1.0), pytest.approx(math.exp(-1)), pytest.approx(math.exp(-2))),
        (8, pytest.approx(0.5 / 3), pytest.approx(sum(w)), pytest.approx(sum(x * x for x in w))),
    ]
    assert not problems(run_path)


def test_a_batch_without_tags_is_trained_on_by_nobody_knows_whom(
    recorder: recording.Recorder, run_path: Path
) -> None:
    Trainer([[sample(None)]]).fit()
    assert rows(run_path, "select trajectory, fate from uses") == [(None, "trained")]
    assert rows(run_path, "select * from rewards") == []


# Dynamic filtering.

GROUPS = {1: (0.2, 0.8), 2: (1.0, 1.0), 3: (0.0, 0.0), 4: (1.5, 2.5)}


class Generator:
    """What makes a batch of groups, and drops those whose mean score is outside of (0, 1)."""

    args = Trainer.args

    def _generate(self, dataloader_iter: Any, dynamic_filtering: bool, finished: bool) -> Any:
        kept: list[Any] = []
        for group, scores in GROUPS.items():
            responses = [
                {rollout.TAG: (10 * group + place, group), "score": score}
                for place, score in enumerate(scores)
            ]
            experiences = [self.process(response) for response in responses]
            if not dynamic_filtering or 0.0 < sum(scores) / len(scores) < 1.0:
                kept += experiences
        return (kept, 4, False) if finished else ([], 4, True)

    process = hooked(
        lambda self, response: Experience(scores=Tensor(response["score"])),
        after=fates.arrived,
    )
    generate = hooked(_generate, before=fates.generating, after=fates.generated)


@pytest.mark.parametrize("finished", [True, False])
def test_filtered_groups_are_dropped_for_their_reason(
    recorder: recording.Recorder, run_path: Path, finished: bool
) -> None:
    """What an unfinished batch takes with it was not filtered, and nobody trains on it."""
    Generator().generate(None, dynamic_filtering=True, finished=finished)
    found = rows(run_path, "select trajectory, fate from uses order by 1")
    assert found == [
        (20, "zero-advantage"),
        (21, "zero-advantage"),
        (30, "zero-advantage"),
        (31, "zero-advantage"),
        (40, "filtered"),
        (41, "filtered"),
    ]
    assert not problems(run_path)


def test_without_filtering_nothing_is_dropped(recorder: recording.Recorder, run_path: Path) -> None:
    Generator().generate(None, dynamic_filtering=False, finished=True)
    assert rows(run_path, "select * from uses") == []
