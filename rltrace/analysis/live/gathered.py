"""What a follower gave out, as far as the live figures need it."""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from rltrace.analysis.codes import stage_of
from rltrace.analysis.live.kept_tables import SAMPLE_TABLES, Kept
from rltrace.analysis.live.roles import role_of
from rltrace.analysis.live.sample_meter import SampleMeter
from rltrace.analysis.live.snapshot import Reading, Totals
from rltrace.trace.follow import Follower, Rows
from rltrace.trace.schema import EVENT_TABLES
from rltrace.trace.vocabulary import Fate, Outcome, Stage, word


class Gathered:
    """Rows that are complete, until they are forgotten, and what is known of all there were.

    `spans_of` is how many spans of a stage a process has recorded; `last_sign_ns` when each was
    last known to record; `first_ns` is the begin of the first span, 0 without one; `step_rows` are
    `(step, start_ns, end_ns, process)`.
    """

    def __init__(self, sparing: float) -> None:
        self.kept = {name: Kept(table) for name, table in EVENT_TABLES.items()}
        self.counting = Counting(sparing)
        self.readings = Readings()
        self.spans_of: dict[tuple[Stage, int], int] = {}
        self.last_sign_ns: dict[int, int] = {}
        self.first_ns = 0
        self.step_rows: list[tuple[int, int, int, int]] = []
        self._forgotten_ns = self._samples_forgotten_ns = 0

    def add(self, new: dict[str, Rows], open_spans: Rows) -> None:
        """Takes in rows that have become complete, and what those that have not say."""
        self.counting.add(new)
        self.readings.add(new["samples"])
        for name, rows in new.items():
            if name != "samples":
                self.kept[name].add(rows)
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

    def _add_spans(self, spans: Rows) -> None:
        if len(spans):
            first_ns = int(spans["start_ns"].min())
            self.first_ns = min(self.first_ns or first_ns, first_ns)
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


# --- what a run has done since it began, counted as its rows come in

_TRAINED = word(Fate.TRAINED)


class Counting:
    """Counts rows of all tables. `learner_tells` is whether any learner says what it does with
    samples, which are counted in `samples`."""

    def __init__(self, sparing: float) -> None:
        self.learner_tells = False
        self.samples = SampleMeter(sparing=sparing)
        self._versions: set[int] = set()
        self._updates = self._spans = 0

    def add(self, new: dict[str, Rows]) -> None:
        """Takes in rows that have become complete."""
        self.learner_tells |= len(new["uses"]) > 0
        self.samples.add(new)
        self._spans += len(new["spans"])
        versions = new["syncs"]["version"]
        self._updates += int((versions < 0).sum())
        self._versions.update(versions[versions >= 0].tolist())

    def totals(self, steps: int) -> Totals:
        """The counts; `steps` are the complete ones."""
        samples = self.samples
        failed = (word(Outcome.TIMEOUT), word(Outcome.ERROR))
        return Totals(
            steps=steps,
            generated_samples=sum(samples.finishes.values()),
            generated_tokens=sum(samples.generated_tokens.values()),
            trained_samples=samples.fates.get(_TRAINED, 0),
            trained_tokens=samples.trained_tokens,
            lost={why: n for why, n in samples.fates.items() if why != _TRAINED},
            verdicts=samples.outcomes.total(),
            verdicts_failed=sum(samples.outcomes[outcome] for outcome in failed),
            updates=self._updates + len(self._versions),
            spans=self._spans,
        )
