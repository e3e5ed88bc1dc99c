"""When the actors' chain and the learner's run: the four placements.

| placement      | generation of a batch runs       | lag of its samples, in versions         |
|----------------|----------------------------------|-----------------------------------------|
| colocated      | alone: the stages take turns     | 0                                       |
| disaggregated  | alone, its own stages streaming  | 0                                       |
| one-step-off   | beside the step before           | 1 (the first batch: 0)                  |
| async          | all the time                     | up to `max_lag`; older ones are dropped |
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from rltrace.trainer.chains import Chains
from rltrace.trainer.config import TrainerConfig
from rltrace.trainer.ledger import Ledger, StepRecord
from rltrace.trainer.queue import TrajectoryQueue
from rltrace.trainer.trajectory import Request, Sample

Work = Callable[[Sequence[Request]], Awaitable[list[Sample]]]


class Placement(ABC):
    """A way of running the loop: a step takes samples, the learner learns, its weights travel."""

    max_lag = 0  # of what is trained on, in versions

    def __init__(self, config: TrainerConfig, chains: Chains, ledger: Ledger, first: int) -> None:
        self.config, self.chains, self.ledger = config, chains, ledger
        self.first = first  # step
        self.batch = first  # the next one to ask for

    async def run(self, on_step: Callable[[StepRecord], None]) -> None:
        for number in range(self.first, self.config.steps):
            on_step(await self.step(number))

    async def step(self, number: int) -> StepRecord:
        """One learner step, with other samples once more if the learner dies in it."""
        version = self.chains.version
        while not await self.attempt(number):
            version = self.chains.version
        return self.ledger.close(number, version)

    async def attempt(self, number: int) -> bool:
        """The work of a step; False where the learner died and nothing of it remains."""
        learned = await self.chains.learn(number, await self.samples(), self.max_lag)
        await self.chains.distribute()
        return learned

    @abstractmethod
    async def samples(self) -> list[Sample]:
        """The samples of the next step, scored."""

    async def generate(self, work: Work) -> list[Sample]:
        """Does `work` for each group of the next batch, and for `oversample` times as many: once
        enough have succeeded, the others are cut and dropped. Too few: failed ones fill up."""
        groups = math.ceil(self.config.prompts * self.config.oversample)
        jobs = [self.chains.requests(self.batch, group) for group in range(groups)]
        self.batch += 1
        tasks = {asyncio.ensure_future(work(job)): job for job in jobs}
        good: set[asyncio.Future[list[Sample]]] = set()  # to fail quickly is not to win
        running = set(tasks)
        while running and len(good) < self.config.prompts:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            good |= {task for task in done if any(map(self.succeeded, task.result()))}
        if running:
            await self.chains.cut([request for task in running for request in tasks[task]])
        first = [task for task in tasks if task in good]
        failed = [task for task in tasks if task not in good | running]
        kept = (first + failed)[: self.config.prompts]
        for task in tasks.keys() - kept:
            self.chains.drop(await task, "filtered")
        return [sample for task in kept for sample in await task]

    def succeeded(self, sample: Sample) -> bool:
        return not math.isnan(sample.reward)


class Colocated(Placement):
    """Every stage waits for the one before, as on devices that all roles share."""

    async def samples(self) -> list[Sample]:
        samples = await self.generate(self.chains.generate)
        groups: dict[str, list[Sample]] = {}
        for sample in samples:
            groups.setdefault(sample.trajectory.group, []).append(sample)
        await asyncio.gather(*map(self.chains.score, groups.values()))
        if self.config.reference_side == "actor":
            await self.chains.refer(samples)
        return samples

    def succeeded(self, sample: Sample) -> bool:
        """There is no verdict yet: it has ended of its own."""
        return sample.trajectory.ended


class Disaggregated(Placement):
    """Strictly on policy; a group is scored while others are still being generated."""

    async def samples(self) -> list[Sample]:
        return await self.generate(self.chains.produce)


class OneStepOff(Disaggregated):
    """Generates the next batch while the learner trains on this one; the sync waits for both."""

    max_lag = 1
    next: asyncio.Task[list[Sample]] | None = None

    async def attempt(self, number: int) -> bool:
        samples = await (self.next or self.samples())
        last = number + 1 == self.config.steps
        self.next = None if last else asyncio.create_task(self.samples())
        learned = await self.chains.learn(number, samples, self.max_lag)
        if self.next is not None:
            await asyncio.wait([self.next])  # its weights must not change on the way
        await self.chains.distribute()
        return learned


class Async(Placement):
    """Generates all the time, into a queue; new weights reach the workers in the background."""

    def __init__(self, config: TrainerConfig, chains: Chains, ledger: Ledger, first: int) -> None:
        super().__init__(config, chains, ledger, first)
        self.max_lag = config.max_lag
        stale = partial(chains.drop, fate="stale")
        self.queue = TrajectoryQueue(config.prompts, config.max_lag, chains.version, stale)
        self.flying: dict[asyncio.Task[None], Sequence[Request]] = {}
        self.judging: set[asyncio.Task[None]] = set()  # the part of it that has been generated
        self.over = False
        self.published = asyncio.Event()
        self.travelling: asyncio.Future[None] | None = None

    async def run(self, on_step: Callable[[StepRecord], None]) -> None:
        """As `Placement.run`; what is being generated at the end is cut, not judged."""
        works = (self._produce, self._refresh)
        background = [asyncio.create_task(self._or_fail(work)) for work in works]
        try:
            await super().run(on_step)
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
        if self.travelling is not None:
            await self.travelling  # what arrives is counted
        self.over = True
        for task in self.judging:
            task.cancel()
        await self.chains.cut([r for requests in self.flying.values() for r in requests])
        await asyncio.gather(*self.flying, return_exceptions=True)

    async def attempt(self, number: int) -> bool:
        learned = await self.chains.learn(number, await self.samples(), self.max_lag)
        await self.queue.advance(self.chains.version)
        self.published.set()
        return learned

    async def samples(self) -> list[Sample]:
        return await self.queue.take()

    async def _produce(self) -> None:
        index = self.first * self.config.prompts
        while True:
            await self.queue.admit()
            requests = self.chains.requests(*divmod(index, self.config.prompts))
            index += 1
            task = asyncio.create_task(self._or_fail(partial(self._group, requests)))
            self.flying[task] = requests
            task.add_done_callback(self.flying.pop)

    async def _group(self, requests: Sequence[Request]) -> None:
        samples = await self.chains.generate(requests)
        if self.over:
            return
        task = asyncio.current_task()
        assert task is not None, "groups are made in tasks of their own"
        self.judging.add(task)
        try:
            await self.chains.judge(samples)
            await self.queue.put(samples)
        finally:
            self.judging.discard(task)

    async def _or_fail(self, work: Callable[[], Awaitable[None]]) -> None:
        """Does work in the background; the learner, who waits at the queue, learns of an error."""
        try:
            await work()
        except Exception as error:
            await self.queue.fail(error)

    async def _refresh(self) -> None:
        """Brings the newest version to the workers; one that is overtaken meanwhile is skipped."""
        while True:
            await self.published.wait()
            self.published.clear()
            version = self.chains.version
            self.travelling = asyncio.ensure_future(self.chains.distribute())
            await asyncio.shield(self.travelling)
            await self.queue.reach(version)


PLACEMENTS: dict[str, Callable[[TrainerConfig, Chains, Ledger, int], Placement]] = {
    "colocated": Colocated,
    "disaggregated": Disaggregated,
    "one-step-off": OneStepOff,
    "async": Async,
}
