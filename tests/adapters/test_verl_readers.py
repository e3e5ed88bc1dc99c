"""What verl's agent loops and verdicts leave, what is trained on, and what workers say."""

from __future__ import annotations

import asyncio
import math
import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rltrace.adapters.verl import Verl
from rltrace.testing.inside.adapters import verl_rollout as rollout
from rltrace.testing.inside.hooks import Recorder, identify
from rltrace.testing.inside.trace import GIVEN_NAN, Outcome
from tests.adapters.conftest import CAPTURED, Rows, hooked_as

hooked = partial(hooked_as, Verl)


def answer(tokens: int, stop: str = "completed", **extra: Any) -> Any:
    """What a server gives back."""
    return SimpleNamespace(token_ids=[0] * tokens, stop_reason=stop, extra_fields=extra)


def output(ids: list[int], mask: list[int], log_probs: Any = None, tool_s: float = 0.0) -> Any:
    """What an agent loop gives back."""
    return SimpleNamespace(
        prompt_ids=[5, 4, 3, 2, 1],
        response_ids=ids,
        response_mask=mask,
        response_logprobs=log_probs,
        num_turns=2,
        metrics=SimpleNamespace(num_preempted=-1, tool_calls=tool_s),
        reward_score=None,
    )


@hooked("AgentLoopWorker", "LLMServerClient")
class Worker:
    """An agent loop worker whose agent loops ask a server some times and are then judged."""

    score = 1.5
    rollout_config = SimpleNamespace(response_length=10)

    def __init__(self, *answers: Any) -> None:
        self.answers = answers

    def run(self, validate: bool = False, **fields: Any) -> None:
        """One agent loop."""
        asyncio.run(self._run_agent_loop({"validate": validate}, **fields))

    async def _run_agent_loop(self, trajectory: dict[str, Any], **fields: Any) -> None:
        ids: list[int] = []
        for answered in self.answers:
            ids += (await self.generate(answered)).token_ids
        await self._compute_score([output(ids, [1] * len(ids), tool_s=0.5)], fields)

    async def generate(self, answered: Any) -> Any:
        await self._acquire_server()
        return answered

    async def _acquire_server(self) -> None:
        await asyncio.sleep(0.002)

    async def _compute_score(self, outputs: list[Any], kwargs: dict[str, Any]) -> None:
        outputs[-1].reward_score = self.score


class Batch:
    """A `DataProto` as far as rows are concerned."""

    def __init__(self, uids: list[str]) -> None:
        self.non_tensor_batch = {"uid": uids}
        self.meta_info: dict[str, Any] = {}
        self.batch: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self.non_tensor_batch["uid"])


JUDGED = "select count(*) from rewards join trajectories using (trajectory)"


def test_a_trajectory_is_what_its_requests_and_its_output_say(rows: Rows) -> None:
    answers = answer(3, "aborted", global_steps=4), answer(4, global_steps=6)
    Worker(*answers).run(uid="u", session_id=1, data_source="task")
    columns = "first_version, last_version, prompt_tokens, response_tokens, turns, env_ns, finish"
    assert rows(f"select {columns}, trajectory from trajectories") == [
        (4, 6, 5, 7, 2, 500_000_000, "stop", identify("u_1_0"))
    ]
    assert rows("select component, value, outcome from rewards") == [("task", 1.5, "ok")]
    assert rows(JUDGED) == [(1,)]
    requests = "from spans where stage <> 'other'"
    found = rows(f"select stage, tokens, version {requests} order by start_ns")
    assert found == [("rollout", 3, 4), ("rollout", 4, 6)]
    waits = "select min(start_ns) from spans where stage = 'other'"
    assert rows(f"select min(start_ns) - ({waits}) >= 2000000 {requests}") == [(True,)]
    assert rows(CAPTURED) == [([5, 4, 3, 2, 1], [0] * 7)]


def test_a_response_as_long_as_allowed_was_cut(rows: Rows) -> None:
    """And a verdict that is no number is one, and no error."""
    worker = Worker(answer(10))
    worker.score = math.nan
    worker.run(uid="u", session_id=0)
    assert rows("select finish, first_version from trajectories") == [("length", None)]
    assert rows(f"select outcome, {GIVEN_NAN} from raw_rewards") == [(int(Outcome.OK), True)]


def test_a_validation_is_no_rollout(rows: Rows) -> None:
    Worker(answer(3)).run(validate=True, uid="u", session_id=0)
    assert rows("select distinct stage from spans where stage <> 'other'") == [("eval",)]
    for table in ("trajectories", "rewards", "captured"):
        assert rows(f"select count(*) from {table}") == [(0,)]


def test_a_trajectory_that_nobody_can_tell_from_others_has_no_id(rows: Rows) -> None:
    Worker(answer(3)).run()
    assert rows("select trajectory from trajectories") == [(None,)]
    assert rows("select count(*) from captured") == [(0,)]


def test_a_loop_that_raises_ends_in_error(rows: Rows) -> None:
    with pytest.raises(AttributeError):
        Worker(None).run(uid="u", session_id=0)
    assert rows("select finish, end_ns > start_ns from trajectories") == [("error", True)]


# --- an agent loop that tokenizes its turns anew is flagged, one that keeps them is not

A, B, AB, TOOL, END = 1, 2, 3, 8, 9


@hooked("AgentLoopWorker")
class Loop(Worker):
    """An agent loop of the user's: what it trains on, and where."""

    def __init__(self, turns: list[list[int]], ids: list[int], mask: list[int]) -> None:
        self.turns, self.ids, self.mask = turns, ids, mask

    async def _run_agent_loop(self, trajectory: dict[str, Any], **fields: Any) -> None:
        for ids in self.turns:
            given = SimpleNamespace(token_ids=ids, stop_reason="completed", extra_fields={})
            await self.generate(given)
            ids.clear()  # it may do with them what it likes
        made = output(self.ids, self.mask, [0.0] * len(self.ids))
        await self._compute_score([made], fields)


@pytest.mark.parametrize(
    ("turns", "ids", "mask", "kept"),
    [
        ([[A, B, END], [A, END]], [A, B, END, TOOL, A, END], [1, 1, 1, 0, 1, 1], 1),
        ([[A, B, END], [A, END]], [AB, END, TOOL, A, END], [1, 1, 0, 1, 1], 0),
        ([[A, B], [A, END]], [A, B, A, END], [1, 1, 1, 1], 1),  # interrupted, and resumed
        ([[A, B, END], [A, END]], [A, END], [1, 1], 1),  # the loop has dropped a turn
        ([[A, B, END]], [A, B], [1, 1], 1),  # as long as responses may be
        ([[A, B, END]], [A, B, END, TOOL], [1, 1, 1, 1], 0),  # what a tool says counts as sampled
        ([], [A, B], [1, 1], None),  # it has asked over an API of its own
    ],
)
def test_tokens_are_those_that_servers_gave(
    rows: Rows, turns: list[list[int]], ids: list[int], mask: list[int], kept: int | None
) -> None:
    Loop(turns, ids, mask).run(uid="u", session_id=0)
    told = rows("select token_ids, logprobs, response_tokens from trajectories")
    assert told == [(kept, 1, sum(mask))]


SAMPLES, WORKERS = 4, 2  # of three prompts, the second one's samples run in both workers
ORDER = random.Random(1).sample(range(3 * SAMPLES), 3 * SAMPLES)

arrived = hooked("AgentLoopManager.generate_sequences")(lambda self, prompts: "batch")
reordered = hooked("DataProto.reorder")(lambda self, indices: None)
trained = hooked("RayPPOTrainer._update_actor")(lambda self, batch: None)

USED = """
    select t.response_tokens, u.version, u.step from uses u join trajectories t using (trajectory)
    order by u.time_ns
"""


@pytest.fixture
def in_worker(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes this process an agent loop worker by its number, as Ray names it."""

    def become(number: int) -> None:
        context = SimpleNamespace(get_actor_name=lambda: f"agent_loop_worker_{number}_1a2b3c4d")
        ray = SimpleNamespace(get_runtime_context=lambda: context)
        monkeypatch.setitem(sys.modules, "ray", ray)
        rollout._occurrences.clear()

    return become


def uids(prefix: str) -> list[str]:
    return [f"{prefix}{place // SAMPLES}" for place in range(3 * SAMPLES)]


def roll_out(rows_of_a_batch: list[str], places: range) -> None:
    """Runs the agent loops of some rows of a batch."""
    for place in places:
        Worker(answer(1 + place % 9)).run(uid=rows_of_a_batch[place])


def in_order(batch: list[str]) -> Batch:
    """A batch once it has been balanced."""
    made = Batch([batch[place] for place in ORDER])
    reordered(made, SimpleNamespace(tolist=lambda: ORDER))
    return made


def test_rows_of_a_legacy_batch_are_the_trajectories_that_workers_ran(
    recorder: Recorder, rows: Rows, in_worker: Callable[[int], None]
) -> None:
    """Their verdicts too."""
    batch = uids("prompt")
    share = len(batch) // WORKERS
    for number in range(WORKERS):
        in_worker(number)
        roll_out(batch, range(number * share, (number + 1) * share))
    manager = SimpleNamespace(agent_loop_workers=[None] * WORKERS)
    arrived(manager, Batch(batch))
    arrived(manager, Batch(uids("next")))  # one-step-off: the next one is there
    recorder.step = 7
    trained(SimpleNamespace(), in_order(batch))
    assert rows(USED) == [(1 + place % 9, 6, 7) for place in ORDER]
    assert rows("select count(distinct trajectory) from uses") == [(len(batch),)]
    judged = "select count(*) from rewards join trajectories using (trajectory)"
    assert rows(judged) == [(len(batch),)]


@pytest.mark.parametrize("balanced", [True, False])
def test_fully_async_knows_its_rows_without_their_worker(
    recorder: Recorder, rows: Rows, in_worker: Callable[[int], None], balanced: bool
) -> None:
    in_worker(3)
    batch = uids("uid_sample_")
    roll_out(batch, range(len(batch)))
    recorder.step = 1
    made = in_order(batch) if balanced else Batch(batch)
    trained(SimpleNamespace(current_param_version=5), made)
    order = ORDER if balanced else range(len(batch))
    assert rows(USED) == [(1 + place % 9, 5, 1) for place in order]


def test_rows_that_cannot_be_told_apart_are_counted_without_an_id(
    recorder: Recorder, rows: Rows
) -> None:
    recorder.step = 1
    batch = Batch(["never", "generated", "here"])
    batch.batch = {"response_mask": np.tri(3, dtype=int)}
    trained(SimpleNamespace(), batch)
    found = rows("select trajectory, fate, version, tokens from uses")
    assert found == [(None, "trained", 0, tokens) for tokens in (1, 2, 3)]


@hooked("ReplayBuffer")
class Buffer:
    def __init__(self, tags: dict[str, dict[str, Any]]) -> None:
        self.partitions = {"train": tags}

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> Any:
        tags = self.partitions["train"]
        return SimpleNamespace(keys=list(tags), tags=list(tags.values())), {}

    def _evict_terminal_groups(
        self, global_steps: int, partition_id: str, eviction_reasons: tuple[Any, ...]
    ) -> None:
        self.partitions["train"].clear()


def test_a_batch_of_the_replay_buffer_says_what_it_trains(rows: Rows) -> None:
    padding = {"response_len": 1, "is_padding": True}
    tags = {"u_0_0": {"response_len": 9}, "u_1_0": {"response_len": 4}, "pad": padding}
    for partition in ("train", "val"):
        Buffer(tags).sample(global_steps=3, partition_id=partition, batch_size=2)
    found = rows("select step, version, fate, tokens from uses")
    assert found == [(3, 2, "trained", None)] * 2


def test_groups_that_leave_untrained_say_why(rows: Rows) -> None:
    tags = {f"{uid}_{n}_0": {"response_len": 2} for uid in "abcd" for n in range(2)}
    Buffer(tags)._evict_terminal_groups(5, "train", ({"a"}, {"b"}, {"c"}, {}))
    found = rows("select fate, count(*), min(version) from uses group by 1 order by 1")
    assert found == [("failed", 2, 4), ("filtered", 2, 4), ("stale", 2, 4)]


WORKER = "verl.workers.engine_workers:ActorRolloutRefWorker"


def test_a_timer_of_the_trainer_is_a_wait_for_those_who_work(rows: Rows) -> None:
    @hooked("_timer")
    def timer(name: str, timing_raw: dict[str, float]) -> Iterator[None]:
        yield

    stages = {
        "step": "step", "gen": "wait", "update_actor": "wait", "testing": "eval", "adv": "other",
        "theirs": "other",
    }  # fmt: skip
    for label in (*stages, "compute_score"):
        list(timer(label, {}))
    assert dict(rows("select name, stage from spans")) == stages


TAGS = [{"seq_len": 9}, {"seq_len": 4}, {"seq_len": 2, "is_padding": True}]


class TensorRows:
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
        (TensorRows(is_nested=True), 2, 13),
        (TensorRows(is_nested=False), 2, None),
        (Batch(["u", "v"]), 2, None),
    ],
)
def test_a_worker_says_what_its_share_of_a_batch_holds(
    rows: Rows, batch: Any, items: int, tokens: int | None
) -> None:
    hooked(f"{WORKER}.update_actor")(lambda self, data: None)(None, batch)
    assert rows("select stage, items, tokens from spans") == [("train", items, tokens)]


@hooked("verl.workers.engine.fsdp.transformer_impl:FSDPEngine", WORKER)
class Rank:
    """A training worker that sends two tensors."""

    def __init__(self, rank: int, backend: str) -> None:
        engine = SimpleNamespace(backend=backend)
        rollout = SimpleNamespace(checkpoint_engine=engine, name="vllm")
        self.rank, self.config = rank, SimpleNamespace(rollout=rollout)

    def get_per_tensor_param(self) -> tuple[Any, None]:
        return iter(
            (name, SimpleNamespace(nbytes=size)) for name, size in (("a", 4), ("b", 2))
        ), None

    async def update_weights(
        self, global_steps: int | None = None, mode: str = "auto"
    ) -> dict[str, Any]:
        list(self.get_per_tensor_param()[0])
        return {}


@pytest.mark.parametrize(
    ("rank", "backend", "sent"),
    [
        (1, "naive", (6, 6, "cuda-ipc")),
        (0, "nccl", (6, 6, "nccl")),
        (1, "nccl", (None, None, "nccl")),
        (0, "nixl", (6, 6, None)),
    ],
)
def test_a_rank_says_what_it_has_sent(
    recorder: Recorder, rows: Rows, rank: int, backend: str, sent: tuple[Any, ...]
) -> None:
    asyncio.run(Rank(rank, backend).update_weights(global_steps=3))
    found = rows("select version, role, bytes, wire_bytes, transport from syncs")
    assert found == [(3, "source", *sent)]
    assert rows("select sum(bytes) from spans where phase = 'gather'") == [(6,)]
    assert recorder.version == 3


def test_what_verl_logs_becomes_counters_where_it_is_a_number(rows: Rows) -> None:
    device_like = type("Tensor", (), {"__float__": lambda self: 1 / 0})  # not to be waited for
    numbers = {"loss": 0.5, "tokens": 7, "kl": np.float32(0.25), "n": np.int64(3)}
    others = ("1.0", True, [1.0], None, np.ones(2), np.str_("1.0"), np.True_, device_like())

    @hooked("Tracking.log")
    def log(self: Any, data: Any, step: int, backend: Any = None) -> None: ...

    log(None, {f"other/{n}": other for n, other in enumerate(others)} | numbers, 3)
    log(None, data={"val/score": 1.0, "actor/pg_loss": float("nan")}, step=3)
    log(None, data=None, step=4)
    found = dict(rows("select counter, value from samples"))
    assert found == numbers | {"val/score": 1, "actor/pg_loss": None}
