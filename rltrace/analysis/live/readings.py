"""The latest reading of each counter of a run that is being followed."""

from __future__ import annotations

import math
from collections import deque

from rltrace.analysis.live.snapshot import Reading
from rltrace.trace.follow import Follower, Rows
from rltrace.trace.given import hidden_devices

_CUMULATIVE = ("_joules", "_seconds")
_RATE_OVER_NS = 4 * 10**9  # a rate is over at least this long: readings come once a second

_Key = tuple[int, int, int]


class Readings:
    """By counter, host and device: the last readings, enough for a rate."""

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
        found, hidden = [], hidden_devices(follower.processes)
        for (number, name, device), last in self._last.items():
            if device in hidden.get(number, ()):
                continue
            process, counter = follower.processes[number], follower.name(name)
            (before_ns, before), (time_ns, value) = last[0], last[-1]
            per_s = math.nan
            if counter.endswith(_CUMULATIVE) and time_ns > before_ns and value >= before:
                per_s = (value - before) / (time_ns - before_ns) * 1e9
            found.append(Reading(counter, process.host, device, value, per_s))
        return tuple(found)
