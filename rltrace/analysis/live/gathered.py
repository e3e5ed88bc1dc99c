"""What a follower gave out, as far as the live figures need it."""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from rltrace.analysis.live.kept_tables import SAMPLE_TABLES, Kept
from rltrace.analysis.live.sample_meter import SampleMeter
from rltrace.analysis.live.snapshot import Reading
from rltrace.trace.follow import Follower, Rows
from rltrace.trace.given import hidden_devices
from rltrace.trace.schema import EVENT_TABLES
from rltrace.trace.vocabulary import Stage, stage_of


class Gathered:
    """Rows that are complete, until they are forgotten, and what is known of all there were.

    `spans_of` is how many spans of a stage a process has recorded; `last_sign_ns` when each was
    last known to record, and `latest_ns` when anything was, -1 without; `step_rows` are
    `(step, start_ns, end_ns, process)`; `learner_tells`: any learner says what it does with
    samples, which are counted in `samples`.
    """

    def __init__(self, samples: SampleMeter) -> None:
        self.kept = {name: Kept(table) for name, table in EVENT_TABLES.items()}
        self.samples = samples
        self.learner_tells = False
        self.readings = Readings()
        self.spans_of: dict[tuple[Stage, int], int] = {}
        self.last_sign_ns: dict[int, int] = {}
        self.latest_ns = -1
        self.step_rows: list[tuple[int, int, int, int]] = []
        self._forgotten_ns = self._samples_forgotten_ns = 0

    def add(self, new: dict[str, Rows], open_spans: Rows) -> None:
        """Takes in rows that have become complete, and what those that have not say."""
        self.samples.add(new)
        self.learner_tells |= len(new["uses"]) > 0
        self.readings.add(new["samples"])
        for name, rows in new.items():
            if name != "samples":
                self.kept[name].add(rows)
                self._note(rows)
        self._note(open_spans)
        for rows in (new["spans"], open_spans):
            for number in np.unique(rows["process"]).tolist():
                mine = rows["process"] == number
                latest = max(int(rows["start_ns"][mine].max()), int(rows["end_ns"][mine].max()))
                self.last_sign_ns[number] = max(self.last_sign_ns.get(number, 0), latest)
        self._add_spans(new["spans"])

    def forget(self, spans_ns: int, samples_ns: int) -> None:
        """Drops spans and syncs that ended before a moment, and samples that did before another."""
        for name in ("spans", "syncs"):
            self.kept[name].drop_before(spans_ns)
        for name in SAMPLE_TABLES:
            self.kept[name].drop_before(samples_ns)
        self._forgotten_ns = max(self._forgotten_ns, spans_ns)
        self._samples_forgotten_ns = max(self._samples_forgotten_ns, samples_ns)

    def reach_back(self, spans_ns: int, samples_ns: int) -> bool:
        """Whether all rows since these moments are still there."""
        return spans_ns >= self._forgotten_ns and samples_ns >= self._samples_forgotten_ns

    def _note(self, rows: Rows) -> None:
        times = [rows[c] for c in ("start_ns", "end_ns", "time_ns") if c in rows.columns]
        self.latest_ns = max(self.latest_ns, *(int(column.max(initial=-1)) for column in times))

    def _add_spans(self, spans: Rows) -> None:
        kinds, counts = np.unique(
            np.stack([spans["process"], spans["stage"]]).astype(np.int64),
            axis=1,
            return_counts=True,
        )
        for number, code, count in zip(*kinds.tolist(), counts.tolist(), strict=True):
            which = (stage_of(code), number)
            self.spans_of[which] = self.spans_of.get(which, 0) + count
        done = spans.where(spans["stage"] == Stage.STEP)
        if len(done):
            columns = (done[c].tolist() for c in ("step", "start_ns", "end_ns", "process"))
            self.step_rows += zip(*columns, strict=True)


# --- the latest reading of each counter

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
