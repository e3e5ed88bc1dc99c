"""A discrete-event simulation that remembers what let each activity start.

Each start happens while the end of another activity is being dealt with: that one is its cause, by
construction. The causes, followed back from the last end, are the critical path.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from rltrace.testing.inside.trace import Stage

Then = Callable[[], None]


@dataclass(frozen=True, eq=False)
class Activity:
    """Something that took from `start` to `end` (ns) in a process; a `stage` of None is a hand-over
    that no trace records. `tools` is the part at its end in which tools ran."""

    stage: Stage | None
    process: str
    start: int
    end: int
    cause: Activity | None
    tools: int = 0


class Simulation:
    """The clock, and all that was done."""

    def __init__(self, start: int) -> None:
        self.now = start
        self.cause: Activity | None = None
        self.activities: list[Activity] = []
        self._order = count()
        self._due: list[tuple[int, int, Activity, Callable[[Activity], None]]] = []

    def work(
        self,
        stage: Stage | None,
        process: str,
        length: int,
        then: Callable[[Activity], None],
        tools: int = 0,
    ) -> None:
        """Begins an activity of so many ns; `then` is called with it at its end."""
        end = self.now + length
        done = Activity(stage, process, self.now, end, self.cause, tools)
        self.activities.append(done)
        heapq.heappush(self._due, (end, next(self._order), done, then))

    def run(self) -> None:
        """Until nothing is left to do."""
        while self._due:
            self.now, _, self.cause, then = heapq.heappop(self._due)
            then(self.cause)


class Server:
    """Room for so many at once, first come first served. Who is let in calls `leave` at its end."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.waiting: deque[Then] = deque()

    def enter(self, begin: Then) -> None:
        """Begins at once, or when there is room."""
        if self.room:
            self.room -= 1
            begin()
        else:
            self.waiting.append(begin)

    def leave(self) -> None:
        """Makes room."""
        if self.waiting:
            self.waiting.popleft()()
        else:
            self.room += 1


def path_to(last: Activity | None) -> list[Activity]:
    """The chain of causes that ends with `last`, the first of them first."""
    chain = []
    while last is not None:
        chain.append(last)
        last = last.cause
    return chain[::-1]
