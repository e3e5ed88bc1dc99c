"""What the verl adapter reads, on objects shaped like verl's; the real ones run in `tests/verl`."""

from __future__ import annotations

import asyncio
import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rltrace
from rltrace.adapters.verl import controller, fates, learner, rollout, weights
from rltrace.analysis.no_number import GIVEN_NAN
from rltrace.hooks import recorder as recording
from rltrace.hooks.hook import Hook
from rltrace.hooks.observing import Observer
from rltrace.hooks.wrapping import wrap
from rltrace.trace.vocabulary import Outcome

PROMPTS, SAMPLES, WORKERS = 3, 4, 2  # the second prompt's samples run in both workers


def hooked(function: Any, stage: Any = None, **readers: Any) -> Any:
    """A function with a hook on it."""
    return wrap(function, Observer(Hook("verl:function", stage, **readers)))


@pytest.fixture
def in_worker(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes this process an agent loop worker by its number, as Ray names it."""

    def become(number: int) -> None:
        context = SimpleNamespace(get_actor_name=lambda: f"agent_loop_worker_{number}_1a2b3c4d")
        monkeypatch.setitem(
            sys.modules, "ray", SimpleNamespace(get_runtime_context=lambda: context)
        )
        rollout._occurrences.clear()

    return become


def answer(tokens: int, stop: str = "completed", **extra: Any) -> Any:
    """What a server gives back."""
    return SimpleNamespace(token_ids=[0] * tokens, stop_reason=stop, extra_fields=extra)


def output(tokens: int, score: float | None = None, tool_s: float = 0.0) -> Any:
    """What an agent loop gives back."""
    metrics = SimpleNamespace(num_preempted=-1, tool_calls=tool_s)
    return SimpleNamespace(
        prompt_ids=[0] * 5,
        response_ids=[0] * tokens,
        response_logprobs=None,
        num_turns=2,
        metrics=metrics,
        reward_score=score,
    )


async def _acquire_server(self: Any) -> None:
    await asyncio.sleep(0.002)


async def _generate(self: Any, answered: Any) -> Any:
    await self.acquire_server()
    return answered


async def _run(self: Any, trajectory: dict[str, Any], **fields: Any) -> None:
    total = 0
    for answered in self.answers:
        total += len((await self.generate(answered)).token_ids)
    await self.compute_score([output(total, tool_s=0.5)], fields)


async def _compute_score(self: Any, outputs: list[Any], kwargs: dict[str, Any]) -> None:
    outputs[-1].reward_score = self.score


class Worker:
    """An agent loop worker whose agent loops ask a server some times and are then judged."""

    score = 1.5
    rollout_config = SimpleNamespace(response_length=10)
    acquire_server = hooked(_acquire_server, "other", after=rollout.acquired)
    generate = hooked(
        _generate, rollout.request_stage, before=rollout.asking, after=rollout.requested
    )
    run = hooked(_run, before=rollout.begins, after=rollout.ends)
    compute_score = hooked(_compute_score, before=rollout.judging, after=rollout.judged)

    def __init__(self, answers: Any) -> None:
        self.answers = answers


class Batch:
    """A `DataProto` as far as rows are concerned."""

    def __init__(self, uids: list[str]) -> None:
        self.non_tensor_batch = {"uid": uids}
        self.meta_info: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self.non_tensor_batch["uid"])


def rows(run_path: Path, query: str) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = rltrace.open_run(run_path).sql(query).fetchall()
    return found


def test_a_trajectory_is_what_its_requests_and_its_output_say(
    recorder: recording.Recorder, run_path: Path
) -> None:
    answers = [answer(3, "aborted", global_steps=4), answer(4, global_steps=6)]
    fields = {"uid": "u", "session_id": 1, "data_source": "task"}
    asyncio.run(Worker(answers).run({"validate": False}, **fields))
    assert rows(
        run_path,
        "select first_version, last_version, prompt_tokens, response_tokens, turns, env_ns, finish "
        "from trajectories",
    ) == [(4, 6, 5, 7, 2, 500_000_000, "stop")]
    assert rows(run_path, "select component, value, outcome from rewards") == [("task", 1.5, "ok")]
    requests = "from spans where stage <> 'other'"
    assert rows(run_path, f"select stage, tokens, version {requests} order by start_ns") == [
        ("rollout", 3, 4),
        ("rollout", 4, 6),
    ]
    waits = "select min(start_ns) from spans where stage = 'other'"
    assert rows(run_path, f"select min(start_ns) - ({waits}) >= 2000000 {requests}") == [(True,)]
    joined = "select count(*) from rewards join trajectories using (trajectory)"
    assert rows(run_path, joined) == [(1,)]


def test_a_response_as_long_as_allowed_was_cut(
    recorder: recording.Recorder, run_path: Path
) -> None:
    worker = Worker([answer(10)])
    asyncio.run(worker.run({"validate": False}, uid="u", session_id=0))
    assert rows(run_path, "select finish, first_version from trajectories") == [("length", None)]


def test_a_validation_is_no_rollout(recorder: recording.Recorder, run_path: Path) -> None:
    asyncio.run(Worker([answer(3)]).run({"validate": True}, uid="u", session_id=0))
    assert rows(run_path, "select distinct stage from spans where stage <> 'other'") == [("eval",)]
    assert rows(run_path, "select count(*) from trajectories") == [(0,)]
    assert rows(run_path, "select count(*) from rewards") == [(0,)]


def test_a_loop_that_raises_ends_in_error(recorder: recording.Recorder, run_path: Path) -> None:
    worker = Worker(None)
    with pytest.raises(TypeError):
        asyncio.run(worker.run({"validate": False}, uid="u", session_id=0))
    found = rows(run_path, "select finish, end_ns > start_ns from trajectories")
    assert found == [("error", True)]


def test_a_verdict_that_is_no_number_is_one_and_no_error(
    recorder: recording.Recorder, run_path: Path
) -> None:
    worker = Worker([answer(3)])
    worker.score = math.nan
    asyncio.run(worker.run({"validate": False}, uid="u", session_id=0))
    found = rows(run_path, f"select outcome, {GIVEN_NAN} from raw_rewards")
    assert found == [(int(Outcome.OK), True)]


def test_a_legacy_verdict_belongs_to_its_trajectory(
    recorder: recording.Recorder, run_path: Path, in_worker: Any
) -> None:
    in_worker(1)
    asyncio.run(Worker([answer(3)]).run({"validate": False}, uid="u"))
    joined = "select count(*) from rewards join trajectories using (trajectory)"
    assert rows(run_path, joined) == [(1,)]


def test_rows_of_a_legacy_batch_are_the_trajectories_that_workers_ran(
    recorder: recording.Recorder, run_path: Path, in_worker: Any
) -> None:
    uids = [f"prompt{n}" for n in range(PROMPTS) for _ in range(SAMPLES)]
    share = len(uids) // WORKERS
    for number in range(WORKERS):
        in_worker(number)
        for place, uid in enumerate(uids[number * share : (number + 1) * share]):
            worker = Worker([answer(1 + (number * share + place) % 9)])
            asyncio.run(worker.run({"validate": False}, uid=uid))

    manager = SimpleNamespace(agent_loop_workers=[None] * WORKERS)
    arrived = hooked(lambda self, prompts: "batch", after=fates.rows_arrive)
    arrived(manager, Batch(uids))
    arrived(manager, Batch([f"next {uid}" for uid in uids]))  # one-step-off: the next one is there
    order = list(range(len(uids)))
    random.Random(1).shuffle(order)
    batch = Batch([uids[place] for place in order])
    indices = SimpleNamespace(tolist=lambda: order)
    hooked(lambda self, indices: None, after=fates.rows_reordered)(batch, indices)
    recorder.step = 7
    hooked(lambda self, batch: None, before=fates.rows_trained)(SimpleNamespace(), batch)

    found = rows(
        run_path,
        "select t.response_tokens, u.version, u.step from uses u join trajectories t "
        "using (trajectory) order by u.time_ns",
    )
    assert found == [(1 + place % 9, 6, 7) for place in order]
    assert rows(run_path, "select count(distinct trajectory) from uses") == [(len(uids),)]


@pytest.mark.parametrize("balanced", [True, False])
def test_fully_async_knows_its_rows_without_their_worker(
    recorder: recording.Recorder, run_path: Path, in_worker: Any, balanced: bool
) -> None:
    in_worker(3)
    uids = [f"uid_sample_{n}" for n in range(PROMPTS) for _ in range(SAMPLES)]
    for place, uid in enumerate(uids):
        asyncio.run(Worker([answer(1 + place % 9)]).run({"validate": False}, uid=uid))
    order = list(range(len(uids)))
    if balanced:
        random.Random(1).shuffle(order)
        batch = Batch([uids[place] for place in order])
        indices = SimpleNamespace(tolist=lambda: order)
        hooked(lambda self, indices: None, after=fates.rows_reordered)(batch, indices)
    trainer = SimpleNamespace(current_param_version=5)
    batch = Batch([uids[place] for place in order])
    hooked(lambda self, batch: None, before=fates.rows_trained)(trainer, batch)
    found = rows(
        run_path,
        "select t.response_tokens, u.version from uses u join trajectories t using (trajectory) "
        "order by u.time_ns",
    )
    assert found == [(1 + place % 9, 5) for place in order]


def test_rows_that_cannot_be_told_apart_are_counted_without_an_id(
    recorder: recording.Recorder, run_path: Path
) -> None:
    recorder.step = 1
    trained = hooked(lambda self, batch: None, before=fates.rows_trained)
    trained(SimpleNamespace(), Batch(["never", "generated", "here"]))
    assert (
        rows(run_path, "select trajectory, fate, version from uses") == [(None, "trained", 0)] * 3
    )


def test_a_batch_of_the_replay_buffer_says_what_it_trains(
    recorder: recording.Recorder, run_path: Path
) -> None:
    tags = [{"response_len": 9}, {"response_len": 4}, {"response_len": 1, "is_padding": True}]
    batch = SimpleNamespace(keys=["u_0_0", "u_1_0", "pad"], tags=tags)

    def sample(self: Any, global_steps: int, partition_id: str, batch_size: int) -> Any:
        return batch, {}

    sampled = hooked(sample, after=fates.sampled)
    sampled(None, global_steps=3, partition_id="train", batch_size=2)
    sampled(None, global_steps=3, partition_id="val", batch_size=2)
    found = rows(run_path, "select step, version, fate, tokens from uses order by tokens")
    assert found == [(3, 2, "trained", 4), (3, 2, "trained", 9)]


def test_groups_that_leave_untrained_say_why(recorder: recording.Recorder, run_path: Path) -> None:
    tags = {f"{uid}_{n}_0": {"response_len": 2} for uid in "abcd" for n in range(2)}
    buffer = SimpleNamespace(partitions={"train": tags})

    def evict(
        self: Any, global_steps: int, partition_id: str, eviction_reasons: tuple[Any, ...]
    ) -> None:
        tags.clear()

    evicted = hooked(evict, before=fates.evicted)
    evicted(buffer, 5, "train", ({"a"}, {"b"}, {"c"}, {}))
    found = rows(run_path, "select fate, count(*), min(version) from uses group by 1 order by 1")
    assert found == [("failed", 2, 4), ("stale", 2, 4), ("zero-advantage", 2, 4)]


@pytest.mark.parametrize(
    ("label", "stage"),
    [
        ("step", "step"),
        ("gen", "wait"),
        ("update_actor", "wait"),
        ("testing", "eval"),
        ("adv", "other"),
        ("theirs", "other"),
        ("compute_score", None),
    ],
)
def test_a_timer_of_the_trainer_is_a_wait_for_those_who_work(
    recorder: recording.Recorder, run_path: Path, label: str, stage: str | None
) -> None:
    def timer(name: str, timing_raw: dict[str, float]) -> Iterator[None]:
        yield

    watched = hooked(timer, controller.timer_stage, before=controller.timer_named, per_item=False)
    list(watched(label, {}))
    found = rows(run_path, "select name, stage from spans")
    assert found == ([] if stage is None else [(label, stage)])


TAGS = [{"seq_len": 9}, {"seq_len": 4}, {"seq_len": 2, "is_padding": True}]


class Rows:
    """A `TensorDict` of two rows, which are nine and four tokens long, each as long as it is."""

    def __init__(self, is_nested: bool) -> None:
        values = SimpleNamespace(shape=(13,))
        self.ids = SimpleNamespace(is_nested=is_nested, values=lambda: values)

    def __len__(self) -> int:
        return 2

    def get(self, name: str) -> Any:
        return {"input_ids": self.ids}.get(name)


@pytest.mark.parametrize(
    ("batch", "items", "tokens"),
    [
        (SimpleNamespace(tags=TAGS), 2, 13),
        (SimpleNamespace(custom_meta=TAGS), 2, 13),
        (SimpleNamespace(custom_meta=[{}, {"is_padding": True}]), 1, None),
        (Rows(is_nested=True), 2, 13),
        (Rows(is_nested=False), 2, None),
        (Batch(["u", "v"]), 2, None),
    ],
)
def test_a_worker_says_what_its_share_of_a_batch_holds(
    recorder: recording.Recorder, run_path: Path, batch: Any, items: int, tokens: int | None
) -> None:
    update = hooked(lambda self, data: None, "train", before=learner.batch_given)
    update(None, batch)
    assert rows(run_path, "select items, tokens from spans") == [(items, tokens)]


class Rank:
    """A training worker that sends two tensors."""

    def __init__(self, rank: int, backend: str) -> None:
        engine = SimpleNamespace(backend=backend)
        self.rank = rank
        self.config = SimpleNamespace(
            rollout=SimpleNamespace(checkpoint_engine=engine, name="vllm")
        )


@pytest.mark.parametrize(
    ("rank", "backend", "bytes_sent", "transport"),
    [
        (0, "naive", 6, "cuda-ipc"),
        (1, "naive", 6, "cuda-ipc"),
        (0, "nccl", 6, "nccl"),
        (1, "nccl", None, "nccl"),
        (0, "nixl", 6, None),
    ],
)
def test_a_rank_says_what_it_has_sent(
    recorder: recording.Recorder,
    run_path: Path,
    rank: int,
    backend: str,
    bytes_sent: int | None,
    transport: str | None,
) -> None:
    tensors = [("a", SimpleNamespace(nbytes=4)), ("b", SimpleNamespace(nbytes=2))]
    params = hooked(
        lambda: (iter(tensors), None), "sync", phase="gather", stream=0,
        after=weights.weight_streamed,
    )  # fmt: skip

    async def update_weights(
        self: Any, global_steps: int | None = None, mode: str = "auto"
    ) -> dict[str, Any]:
        list(params()[0])
        return {}

    update = hooked(
        update_weights, "sync", before=weights.weights_begin, after=weights.weights_sent
    )
    asyncio.run(update(Rank(rank, backend), global_steps=3))
    found = rows(run_path, "select version, role, bytes, wire_bytes, transport from syncs")
    assert found == [(3, "source", bytes_sent, bytes_sent, transport)]
    assert recorder.version == 3


def test_what_verl_logs_becomes_counters_where_it_is_a_number(
    recorder: recording.Recorder, run_path: Path
) -> None:
    device_like = type("Tensor", (), {"__float__": lambda self: 1 / 0})  # not to be waited for
    numbers = {"loss": 0.5, "tokens": 7, "kl": np.float32(0.25), "n": np.int64(3)}
    others = {
        "text": "1.0",
        "flag": True,
        "list": [1.0],
        "none": None,
        "array": np.ones(2),
        "word": np.str_("1.0"),
        "flags": np.True_,
        "loss/t": device_like(),
    }

    def log(self: Any, data: Any, step: int, backend: Any = None) -> None: ...

    hooked_log = hooked(log, before=controller.logged)
    hooked_log(None, others | numbers, 3)
    hooked_log(None, data={"val/score": 1.0, "actor/pg_loss": float("nan")}, step=3)
    hooked_log(None, data=None, step=4)
    found = dict(rows(run_path, "select counter, value from samples"))
    assert found == numbers | {"val/score": 1, "actor/pg_loss": None}
