"""The rows of a played-out workload, written again and again: long runs without playing them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.testing.played import START_NS, WEIGHTS_LANE, Timeline, period_ns
from rltrace.testing.workload import Workload
from rltrace.trace.schema import Table

Columns = dict[str, NDArray[Any]]

BLOCK_ROWS = 400_000
_COUNTED = ("step", "version", "first_version", "last_version", "reference_version")
_IDS = ("trajectory", "group", "prompt")
_OTHER_ID = 0x2545F4914F6CDD1D  # odd, and not the step from one id to the next
_63 = (1 << 63) - 1


@dataclass(frozen=True)
class Repeats:
    """So many times, each `period_ns` and `steps` after the one before."""

    count: int
    period_ns: int
    steps: int

    @classmethod
    def of(cls, load: Workload, timeline: Timeline) -> Repeats:
        if load.repeats == 1:
            return cls(1, 0, 0)
        return cls(load.repeats, period_ns(timeline.steps), len(timeline.steps))

    def blocks(self, table: Table, columns: Columns) -> Iterator[tuple[Columns, bool]]:
        """The rows of all repeats, about `BLOCK_ROWS` at a time, and whether these are the last."""
        marker = table.columns[0].name
        if self.count == 1:
            yield columns, True
            return
        if table.name == "samples":  # they are read past the last step, where the next repeat is
            kept = columns[marker] < START_NS + self.period_ns
            columns = {name: values[kept] for name, values in columns.items()}
        rows = len(columns[marker])
        at_once = max(1, BLOCK_ROWS // max(1, rows))
        for first in range(0, self.count, at_once):
            last = min(self.count, first + at_once)
            yield self._block(table, columns, first, last), last == self.count

    def _block(self, table: Table, columns: Columns, first: int, last: int) -> Columns:
        rows = len(columns[table.columns[0].name])
        repeat = np.repeat(np.arange(first, last, dtype=np.int64), rows)
        times = {column.name for column in table.columns if column.is_time}
        found: Columns = {}
        for name, values in columns.items():
            tiled = np.tile(values, last - first)
            if name in times:
                tiled = np.where(tiled > 0, tiled + repeat * self.period_ns, tiled)
            elif name in _COUNTED:
                tiled = np.where(tiled >= 0, tiled + repeat * self.steps, tiled)
            elif name in _IDS:
                tiled = np.where(tiled >= 0, (tiled + repeat * _OTHER_ID) & _63, tiled)
            elif name == "lane":  # a sample's own
                own = tiled > WEIGHTS_LANE
                tiled = np.where(own, (tiled + repeat * _OTHER_ID) & _63, tiled)
            found[name] = tiled
        if "step" not in found:
            return found
        there = found["step"] < self.steps * self.count
        return {name: values[there] for name, values in found.items()}
