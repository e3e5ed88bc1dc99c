"""The learner steps of a run that is being followed: how many were completed, and how long."""

from __future__ import annotations

from collections import deque

import numpy as np

from rltrace.analysis.meters.distribution import STEP_S, Distribution
from rltrace.trace.follow import Rows
from rltrace.trace.vocabulary import Stage

LAST = 10


class StepMeter:
    """Steps as `rltrace.analysis.steps` counts them: where several processes record steps, one of
    them keeps the time, and another's counts only where that one recorded none.

    `number` is that of the newest step, None before the first. `open_since_ns` is when the one in
    progress began, None where there is none; `last_begins_ns` are those of the last ones completed.
    """

    def __init__(self) -> None:
        self.seconds = Distribution(STEP_S)
        self.number: int | None = None
        self.open_since_ns: int | None = None
        self.last_begins_ns: deque[int] = deque(maxlen=LAST)
        self._newest_ns = -1
        self._keeper = -1
        self._last = (-1, -1)

    def add(self, complete: Rows, opened: Rows) -> None:
        """Takes in spans that became complete; `opened` are those in progress in living
        processes."""
        rows = complete.where(complete["stage"] == Stage.STEP)
        for i in np.argsort(rows["start_ns"], kind="stable"):
            self._completed(
                int(rows["step"][i]),
                int(rows["start_ns"][i]),
                int(rows["end_ns"][i]),
                int(rows["process"][i]),
            )
        rest = opened.where((opened["stage"] == Stage.STEP) & (opened["end_ns"] < 0))
        for step, start in zip(rest["step"], rest["start_ns"], strict=True):
            self._newest(int(step), int(start))
        if self.last_begins_ns:  # after one that has no end and others did: an exception left it
            rest = rest.where(rest["start_ns"] >= self.last_begins_ns[-1])
        self.open_since_ns = int(rest["start_ns"].max()) if len(rest) else None

    def _completed(self, step: int, start_ns: int, end_ns: int, process: int) -> None:
        self._newest(step, start_ns)
        last_step, last_end_ns = self._last
        twice = step == last_step and end_ns <= last_end_ns
        if start_ns >= last_end_ns or (process == self._keeper and not twice):
            self.last_begins_ns.append(start_ns)
            self.seconds.add([(end_ns - start_ns) / 1e9])
            self._keeper = process
            self._last = step, max(end_ns, last_end_ns)

    def _newest(self, step: int, start_ns: int) -> None:
        if start_ns > self._newest_ns:
            self._newest_ns = start_ns
            self.number = step if step >= 0 else self.number
