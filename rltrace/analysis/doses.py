"""The doses of a probed run as its processes wrote them down, put on its steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from rltrace.analysis.regression import Floats
from rltrace.analysis.steps import Steps
from rltrace.hooks.delaying import LONGEST, PLANNED, SLEPT, WORKED
from rltrace.trace.vocabulary import Stage

if TYPE_CHECKING:
    from rltrace.trace.run import Run

_CROSSED = 0.1  # work goes on across more than this part of the ends of steps


class Doses:
    """By step (place in `Steps.windows`) and stage name: what was drawn, slept and worked."""

    def __init__(self, run: Run, steps: Steps) -> None:
        starts = np.array([window.start_ns for window in steps.windows], np.int64)
        ends = np.array([window.end_ns for window in steps.windows], np.int64)
        self._steps = len(starts)
        self._values: dict[tuple[str, str], Floats] = {}
        self.refused = np.zeros(self._steps, np.bool_)
        """In which steps a dose was not given, as the budget was spent."""
        names = run.ask("select id, text from names where text like 'probe/%/%'")
        if not names or not self._steps:
            return
        readings = run.ask_columns(
            "select counter, time_ns, value from raw_samples where time_ns > 0 and counter in "
            f"({', '.join(str(number) for number, _ in names)})"
        )
        place = np.searchsorted(starts, readings["time_ns"], side="right") - 1
        inside = (place >= 0) & (readings["time_ns"] <= ends[place])
        for number, text in names:
            _, stage, what = text.split("/")
            mine = inside & (readings["counter"] == number)
            where, values = place[mine], readings["value"][mine]
            on_steps = self._values.setdefault((stage, what), np.zeros(self._steps))
            # Every process that records steps writes the plan; what is slept and worked adds up.
            add = np.maximum if what in (PLANNED, LONGEST) else np.add
            add.at(on_steps, where, values)
            if what == SLEPT:
                self.refused[where[values == 0]] = True

    def planned(self, stage: str) -> Floats:
        """The dilation drawn for each step; 0: none."""
        return self._of(stage, PLANNED)

    def slept_s(self, stage: str) -> Floats:
        """Seconds slept in each step, by all processes together."""
        return self._of(stage, SLEPT)

    def work(self, stage: str) -> tuple[Floats, Floats]:
        """Seconds worked in each step, by all processes together and in the longest single stay;
        doses are in neither."""
        return self._of(stage, WORKED), self._of(stage, LONGEST)

    def given(self, stage: str) -> float:
        """What was slept over what was to be, in the median of the dosed steps in which none was
        refused: 1 where doses were given in full, NaN where none was given or known."""
        due = self.planned(stage) * self._of(stage, WORKED) * ~self.refused
        dosed = due > 0
        if not dosed.any() or not self.slept_s(stage)[dosed].any():
            return math.nan
        return float(np.median(self.slept_s(stage)[dosed] / due[dosed]))

    def _of(self, stage: str, what: str) -> Floats:
        return self._values.get((stage, what), np.zeros(self._steps))


def work_crosses_steps(run: Run, steps: Steps) -> bool:
    """Whether work goes on across the ends of steps, so that a dose may act on later ones."""
    ends = np.array([steps.windows[place].end_ns for place in steps.steady], np.int64)
    if not len(ends):
        return False
    no_work = ", ".join(str(int(s)) for s in (Stage.WAIT, Stage.OTHER, Stage.STEP))
    query = (
        f"select start_ns, end_ns from raw_spans where start_ns > 0 and stage not in ({no_work})"
    )
    lasts = np.zeros(len(ends) + 1, np.int64)  # of the spans that begin before each end of a step
    for batch in pa.RecordBatchReader.from_stream(run.sql(query)):
        start_ns, end_ns = (column.to_numpy() for column in batch.columns)
        np.maximum.at(lasts, np.searchsorted(ends, start_ns, side="right"), end_ns)
    crossed = np.maximum.accumulate(lasts)[:-1] > ends
    return bool(crossed.sum() > _CROSSED * len(ends))
