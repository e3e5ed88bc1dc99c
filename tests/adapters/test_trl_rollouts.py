"""Samples of TRL's asynchronous trainer: conversations in the process that generates them, and the
queue through which they keep their ids."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from rltrace.testing.inside.adapters import Ids, lengths, rollouts
from rltrace.testing.inside.adapters import loop_loop as loop
from rltrace.testing.inside.adapters import rollouts as queued
from rltrace.testing.inside.hooks import Recorder
from tests.adapters.conftest import CAPTURED, Rows
from tests.adapters.trl_shapes import ASYNC, END, Array, Loop, Taken, hooked


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Nothing is left of the test before."""
    rollouts._ids, queued._ids = Ids(), Ids()
    rollouts._waiting.clear()
    loop.micro = None
    queued._Queue.buffer = queued._Queue.last = None
    queued._Queue.given.clear()
    queued._Queue.batches.clear()


@pytest.mark.parametrize("kind", [list, Array])
def test_a_conversation_of_several_rows_is_several_samples(rows: Rows, kind: Any) -> None:
    async def roll_out() -> list[Taken]:
        worker = Loop()
        said, *_ = await worker._generate_one("prompt", [[4, 4, 4, 4], [4, END]])
        forks = [
            Taken(kind([1, 4, 5]), kind([0, 1, 1]), 1, said, one=0.5),
            Taken(kind([1, 2, 6]), kind([0, 0, 1]), 1, said),
        ]
        return await worker._score_group(forks)

    taken = Ids()
    first, second = map(taken.of, asyncio.run(roll_out()))
    assert rows(
        "select trajectory, response_tokens, prompt_tokens, turns, finish, first_version,"
        " last_version from trajectories order by response_tokens desc"
    ) == [(first, 2, 1, 2, "stop", 1, 3), (second, 1, 2, 2, "stop", 1, 3)]
    assert rows('select count(distinct "group"), count("group") from trajectories') == [(1, 2)]
    verdicts = rows("select trajectory, value, outcome from rewards order by value")
    assert verdicts == [(first, 0.5, "ok"), (second, None, "error")]
    assert rows(CAPTURED) == [([1], [4, 5]), ([1, 2], [6])]
    assert not rollouts._waiting


def test_conversations_that_nobody_judges_make_room_for_others(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollouts, "_MOST", 2)

    async def roll_out() -> None:
        worker = Loop()
        said = [(await worker._generate_one("prompt", [[4, END]]))[0] for _ in range(3)]
        assert len(rollouts._waiting) == 2
        await worker._score_group([Taken([1, 4], [0, 1], 1, said[-1], one=0.5)])

    asyncio.run(roll_out())
    assert rows("select value from rewards where outcome = 'ok'") == [(0.5,)]
    known = Ids()
    first, *_ = [known.of(Taken([1, n], [0, 1])) for n in range(3)]
    assert known.of(Taken([1, 0], [0, 1])) == first  # that it was there has been forgotten


def test_a_conversation_that_is_cancelled_is_aborted(rows: Rows) -> None:
    async def cancel() -> None:
        task = asyncio.create_task(Loop()._generate_one("prompt", [[4]] * 1000))
        for _ in range(10):  # it is at its tenth turn by then, on any machine
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cancel())
    assert rows("select finish, end_ns is not null from trajectories") == [("abort", True)]


# --- the queue


def test_lists_and_arrays_are_the_same_sample() -> None:
    as_lists, as_arrays = Taken([5, 6, 7], [0, 1, 1]), Taken(Array([5, 6, 7]), Array([0, 1, 1]))
    assert lengths(as_lists) == lengths(as_arrays) == (1, 2)
    assert lengths(Taken([5], [0])) == lengths(Taken(Array([5]), Array([0]))) == (1, 0)
    assert Ids().of(as_lists) == Ids().of(as_arrays)


def test_equal_samples_are_told_apart_by_their_order() -> None:
    made, taken = Ids(), Ids()
    samples = [Taken([5, 6], [0, 1]), Taken([5, 7], [0, 1]), Taken([5, 6], [0, 1])]
    ids = [made.of(sample) for sample in samples]
    assert len(set(ids)) == 3
    assert [taken.of(sample) for sample in samples] == ids
    assert made.of(Taken([5, 6], [0, 1], version=2)) not in ids


@hooked("queue:Queue")
class Buffer:
    def __init__(self, samples: list[Taken]) -> None:
        self.samples = samples

    def get(self) -> Taken:
        return self.samples.pop(0)


@hooked(f"{ASYNC}.async_grpo_trainer:RolloutQueueDataset")
class Dataset:
    """TRL's end of the queue, which drops what is too old."""

    def __init__(self, samples: list[Taken]) -> None:
        self.queue = Buffer(samples)

    def __iter__(self) -> Any:
        while self.queue.samples:
            sample = self.queue.get()
            if sample.model_version >= 2:
                yield {"input_ids": sample.input_ids}


def test_samples_keep_their_ids_through_the_queue_and_stale_ones_are_told(
    recorder: Recorder, rows: Rows
) -> None:
    recorder.step, recorder.version = 7, 3
    samples = [Taken([5, n], [0, 1], version) for n, version in enumerate((2, 1, 1, 2, 2))]
    ids = list(map(Ids().of, samples))
    mappings = list(Dataset(list(samples)))
    collate = hooked(f"{ASYNC}.async_grpo_trainer:DataCollatorForRollout.torch_call")(
        lambda self, examples: None
    )
    train = hooked("transformers.trainer:Trainer.training_step")(lambda self: loop.micro)
    trainer = SimpleNamespace(model_version=3)
    collate(trainer, [[SimpleNamespace(samples=mappings[:2])]])
    collate(trainer, [mappings[2:]])
    for expected in ([ids[0], ids[3]], [ids[4]]):
        assert [sample.id for sample in train(trainer)] == expected
    assert train(trainer) is None
    assert rows("select trajectory, fate, step, version, tokens from uses order by time_ns") == [
        (ids[1], "stale", 7, 3, 1),
        (ids[2], "stale", 7, 3, 1),
        *((ids[place], "trained", 7, 3, 1) for place in (0, 3, 4)),
    ]
