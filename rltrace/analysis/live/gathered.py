"""What a follower gave out, as far as the live figures need it."""

from __future__ import annotations

import numpy as np

from rltrace.analysis.codes import stage_of
from rltrace.analysis.live.kept import Kept
from rltrace.analysis.live.readings import Readings
from rltrace.analysis.live.totals import Counting
from rltrace.trace.follow import Rows
from rltrace.trace.schema import EVENT_TABLES
from rltrace.trace.vocabulary import Stage

_SAMPLE_EVENT_TABLES = ("trajectories", "rewards", "uses")


class Gathered:
    """Rows that are complete, until they are forgotten, and what is known of all there were.

    `spans_of` is how many spans of a stage a process has recorded; `last_sign_ns` when each was
    last known to record; `first_ns` is the begin of the first span, 0 without one; `step_rows` are
    `(step, start_ns, end_ns, process)`.
    """

    def __init__(self) -> None:
        self.kept = {name: Kept(table) for name, table in EVENT_TABLES.items()}
        self.counting = Counting()
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
        for name in _SAMPLE_EVENT_TABLES:
            self.kept[name].drop_before(samples_ns)
        self.counting.forget_waiting(samples_ns)
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
