"""The queue between actors and learner: what may begin, what is too old, and who waits for whom."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from rltrace.testing.inside.trainer import Sample
from rltrace.trainer.queue import TrajectoryQueue
from tests.trainer.local import asynchronous, trajectory

BATCH = 3


def group(*versions: int) -> list[Sample]:
    return [Sample(trajectory(first_version=version, last_version=version)) for version in versions]


class Queue(TrajectoryQueue):
    """Remembers what was rejected."""

    def __init__(self, max_lag: int, version: int = 0) -> None:
        self.rejected: list[Sample] = []
        super().__init__(BATCH, max_lag, version, self.rejected.extend)


async def settled(*tasks: asyncio.Task[Any]) -> int:
    """How many are done once nothing moves any more."""
    for _ in range(50):
        await asyncio.sleep(0)
    return sum(task.done() for task in tasks)


async def admitted(queue: TrajectoryQueue) -> int:
    """How many groups may begin now, more than there are yet."""
    count = 0
    while True:
        task = asyncio.create_task(queue.admit())
        if not await settled(task):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return count
        count += 1


@pytest.mark.parametrize("max_lag", [0, 1, 4])
@pytest.mark.parametrize("begun_at", [0, 7])
@asynchronous
async def test_group_number_n_may_begin_once_n_over_b_is_at_most_the_version_plus_the_bound(
    max_lag: int, begun_at: int
) -> None:
    queue = Queue(max_lag, begun_at)
    assert await admitted(queue) == BATCH * (max_lag + 1)
    for version in range(begun_at + 1, begun_at + 4):
        await queue.advance(version)
        assert await admitted(queue) == 0  # the workers do not have it yet
        await queue.reach(version)
        assert await admitted(queue) == BATCH
    await queue.reach(begun_at + 6)  # some were skipped
    assert await admitted(queue) == 3 * BATCH


@asynchronous
async def test_the_learner_waits_for_a_whole_step_and_takes_groups_as_they_were_completed() -> None:
    queue = Queue(max_lag=1)
    taking = asyncio.create_task(queue.take())
    groups = [group(0, 0) for _ in range(BATCH + 2)]
    for number, one in enumerate(groups):
        assert await settled(taking) == (number >= BATCH)
        await queue.put(one)
    taken = await taking
    assert [id(s) for s in taken] == [id(s) for one in groups[:BATCH] for s in one]
    assert not queue.rejected
    assert len(queue.groups) == 2


@asynchronous
async def test_groups_that_are_all_too_old_are_rejected_and_others_may_begin_instead() -> None:
    queue = Queue(max_lag=1)
    assert await admitted(queue) == 2 * BATCH
    await queue.advance(2)
    taking = asyncio.create_task(queue.take())
    fresh = [group(1, 1) for _ in range(BATCH)]
    await queue.put(fresh[0])
    await queue.put(group(0, 0))  # behind a fresh one of the same size
    await queue.put([])  # nothing came back
    assert not await settled(taking)
    assert [s.trajectory.first_version for s in queue.rejected] == [0, 0]
    assert await admitted(queue) == 2  # in their place
    for one in fresh[1:]:
        await queue.put(one)
    assert await taking == [s for one in fresh for s in one]
    assert len(queue.rejected) == 2


@asynchronous
async def test_the_oldest_go_first_and_the_rest_of_a_group_that_is_partly_too_old() -> None:
    queue = Queue(max_lag=2, version=5)
    mixed = group(2, 3, 5, 0)
    for one in (mixed, group(5), group(4)):
        await queue.put(one)
    taken = await queue.take()
    assert [s.trajectory.first_version for s in taken] == [3, 5, 4, 5]
    assert [s.trajectory.first_version for s in queue.rejected] == [2, 0]


@pytest.mark.parametrize("max_lag", [0, 1, 3])
@pytest.mark.parametrize("late", [0.0, 0.4])
@asynchronous
async def test_producers_that_obey_the_queue_and_a_learner_go_on_for_ever(
    max_lag: int, late: float
) -> None:
    """Also where a share of the groups comes under weights that are older than they should be."""
    queue = Queue(max_lag)
    draws = np.random.default_rng(max_lag)
    made = used = 0

    async def one_group() -> None:
        nonlocal made
        begun = queue.visible - (max_lag + 1 if draws.random() < late else 0)
        for _ in range(draws.integers(5)):
            await asyncio.sleep(0)
        made += 1
        await queue.put(group(begun, begun))

    async def produce() -> None:
        while True:
            await queue.admit()
            flying.append(asyncio.create_task(one_group()))

    flying: list[asyncio.Task[None]] = []
    producer = asyncio.create_task(produce())
    for version in range(1, 41):
        taken = await queue.take()
        used += len(taken)
        assert len(taken) == 2 * BATCH
        assert all(queue.version - s.trajectory.first_version <= max_lag for s in taken)
        await queue.advance(version)
        await asyncio.sleep(0)
        await queue.reach(version)
    producer.cancel()
    await asyncio.gather(*flying)
    left = sum(map(len, queue.groups))
    assert used + len(queue.rejected) + left == 2 * made  # nothing is lost
    if late:
        assert queue.rejected
    elif max_lag == 0:  # nothing can be overtaken by a batch
        assert not queue.rejected


@asynchronous
async def test_who_waits_on_either_side_gets_the_error_and_so_does_who_comes_later() -> None:
    queue = Queue(max_lag=0)
    await admitted(queue)
    waiting = [asyncio.create_task(queue.admit()), asyncio.create_task(queue.take())]
    assert not await settled(*waiting)
    await queue.fail(OSError("gone"))
    for waits in (*waiting, queue.admit(), queue.take()):
        with pytest.raises(OSError, match="gone"):
            await waits
