"""The versioned queue between actors and learner, which both run at once.

Admission follows AReaL (Fu et al. 2025, arXiv 2505.24298, eq. 3): with B groups a step, a bound η
and version i at the workers, group number n may begin once `n // B <= i + η`. What still comes too
late (it was overtaken by others) is rejected when the learner asks for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from rltrace.trainer.trajectory import Sample

Group = list[Sample]


class TrajectoryQueue:
    """Completed groups, taken oldest weights first; `version` is the learner's."""

    def __init__(
        self, batch: int, max_lag: int, version: int, reject: Callable[[list[Sample]], None]
    ) -> None:
        self.batch, self.max_lag, self.version, self.reject = batch, max_lag, version, reject
        self.visible = version  # to the workers; the learner may be ahead while weights travel
        self.begun_at = version  # admission counts from here, where the run began or went on
        self.begun = 0  # groups that may still be trained on, or were
        self.groups: deque[Group] = deque()
        self.failure: BaseException | None = None
        self.changed = asyncio.Condition()

    async def admit(self) -> None:
        """Waits until one more group could be trained on within the bound: back-pressure."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.failure or self._has_room())
            if self.failure:
                raise self.failure
            self.begun += 1

    async def put(self, group: Group) -> None:
        async with self.changed:
            self.groups.append(group)
            self.changed.notify_all()

    async def fail(self, error: BaseException) -> None:
        """Nothing more will come: whoever waits gets the error."""
        async with self.changed:
            self.failure = error
            self.changed.notify_all()

    async def take(self) -> list[Sample]:
        """Waits for a step's groups and returns their fresh samples; stale groups are rejected."""

        def begun_under(group: Group) -> int:
            return min((sample.trajectory.first_version for sample in group), default=-1)

        async with self.changed:
            while True:
                await self.changed.wait_for(lambda: self.failure or len(self.groups) >= self.batch)
                if self.failure:
                    raise self.failure
                oldest_first = sorted(self.groups, key=begun_under)
                fresh = [group for group in oldest_first if any(map(self._fresh, group))]
                stale = [group for group in self.groups if not any(map(self._fresh, group))]
                self.groups = deque(fresh)
                self.begun -= len(stale)
                self.reject([sample for group in stale for sample in group])
                if len(self.groups) >= self.batch:
                    break
                self.changed.notify_all()  # there is room again
            taken = [s for _ in range(self.batch) for s in self.groups.popleft()]
            self.reject([s for s in taken if not self._fresh(s)])
            return [s for s in taken if self._fresh(s)]

    async def advance(self, version: int) -> None:
        async with self.changed:
            self.version = version

    async def reach(self, version: int) -> None:
        """All workers hold a version: what begins from now on is of its age."""
        async with self.changed:
            self.visible = version
            self.changed.notify_all()

    def _has_room(self) -> bool:
        return self.begun < (self.visible - self.begun_at + self.max_lag + 1) * self.batch

    def _fresh(self, sample: Sample) -> bool:
        return self.version - sample.trajectory.first_version <= self.max_lag
