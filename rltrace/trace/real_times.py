"""Times that a clock can have shown: what is none is no moment, whoever stored it."""

from __future__ import annotations

import numpy as np

from rltrace.trace.schema import Table
from rltrace.trace.stream import Columns

EVER_NS = 1 << 62
"""Unix nanoseconds of a moment in 2116: two of them can be subtracted and added."""


def of_real_times(table: Table, columns: Columns) -> tuple[Columns, int]:
    """The rows, and how many there are less than there were: those that began at no time are left
    out. Of the others, what else is no time is unknown. `columns` begin with those of `table`, with
    times in Unix ns."""
    if not len(columns[0]):
        return columns, 0
    real = (columns[0] > 0) & (columns[0] < EVER_NS)
    left_out = len(real) - int(np.count_nonzero(real))
    kept = [column[real] for column in columns] if left_out else [*columns]
    for i, column in enumerate(table.columns):
        if not i or not column.is_time:
            continue
        odd = (kept[i] < -1) | (kept[i] >= EVER_NS)
        if odd.any():
            kept[i] = np.where(odd, np.int64(-1), kept[i])
    return kept, left_out
