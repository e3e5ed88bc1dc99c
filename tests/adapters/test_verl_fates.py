"""Which trajectories verl's trainers train on, and what becomes of the others."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rltrace.testing.inside.adapters import verl_fates as fates
from rltrace.testing.inside.adapters import verl_rollout as rollout
from rltrace.testing.inside.hooks import recorder as recording
from tests.adapters.verl_shapes import Batch, Worker, answer, hooked, rows

PROMPTS, SAMPLES, WORKERS = 3, 4, 2  # the second prompt's samples run in both workers


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
