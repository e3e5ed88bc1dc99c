"""The latest reading of each counter."""

from __future__ import annotations

import math
from collections import deque

from rltrace.analysis.live.roles import role_of
from rltrace.analysis.live.snapshot import Reading
from rltrace.trace.follow import Follower, Rows

CUMULATIVE = ("_bytes", "_joules", "_seconds")
_LEVELS = ("memory_used_bytes", "memory_total_bytes", "memory_available_bytes")
_RATE_OVER_NS = 4 * 10**9  # a rate is over at least this long: readings come once a second

_Key = tuple[int, int, int]


class Readings:
    """By process, counter and device: the last readings, enough for a rate."""

    def __init__(self) -> None:
        self._last: dict[_Key, deque[tuple[int, float]]] = {}

    def add(self, rows: Rows) -> None:
        """Takes in rows of `samples`."""
        columns = (rows[c].tolist() for c in ("process", "counter", "device", "time_ns", "value"))
        for process, counter, device, time_ns, value in zip(*columns, strict=True):
            last = self._last.setdefault((process, counter, device), deque())
            last.append((time_ns, value))
            while len(last) > 2 and last[1][0] <= time_ns - _RATE_OVER_NS:
                last.popleft()

    def now(self, follower: Follower) -> tuple[Reading, ...]:
        """The latest of each, in the order in which they first came."""
        found = []
        for (number, name, device), last in self._last.items():
            process, counter = follower.processes[number], follower.name(name)
            (before_ns, before), (time_ns, value) = last[0], last[-1]
            grows = counter.endswith(CUMULATIVE) and not counter.endswith(_LEVELS)
            per_s = math.nan
            if grows and time_ns > before_ns and value >= before:
                per_s = (value - before) / (time_ns - before_ns) * 1e9
            found.append(
                Reading(
                    counter=counter,
                    role=role_of(process),
                    rank=process.rank,
                    host=process.host,
                    device=device,
                    value=value,
                    per_s=per_s,
                    time_ns=time_ns,
                )
            )
        return tuple(found)
