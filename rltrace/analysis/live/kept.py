"""The latest rows of a table: as they came in, without those that are too old to matter."""

from __future__ import annotations

import numpy as np

from rltrace.trace.follow import Rows
from rltrace.trace.schema import Table

_SMALL = 4096  # a part of fewer rows is dropped whole or not at all


class Kept:
    """Rows of `table`, of which those that ended before a moment can be dropped."""

    def __init__(self, table: Table) -> None:
        names = [column.name for column in table.columns]
        self._end = "end_ns" if "end_ns" in names else names[0]
        self._parts: list[tuple[int, Rows]] = []  # with the latest end in each
        self._none = Rows(
            {c.name: np.empty(0, np.dtype(c.kind)) for c in table.columns}
            | {"process": np.empty(0, np.int64)}
        )

    def add(self, rows: Rows) -> None:
        """Takes in rows that are complete."""
        if len(rows):
            self._parts.append((int(rows[self._end].max()), rows))

    def since(self, moment_ns: int, *more: Rows) -> Rows:
        """The rows that ended at `moment_ns` or later, and `more`."""
        parts = [rows for latest, rows in self._parts if latest >= moment_ns]
        parts = [rows.where(rows[self._end] >= moment_ns) for rows in parts]
        return together([*parts, *more], self._none)

    def drop_before(self, moment_ns: int) -> None:
        """Forgets rows that ended before."""
        kept = []
        for latest, rows in self._parts:
            if latest < moment_ns:
                continue
            large = len(rows) > _SMALL and bool((rows[self._end] < moment_ns).mean() > 1 / 2)
            kept.append((latest, rows.where(rows[self._end] >= moment_ns) if large else rows))
        self._parts = kept


def together(parts: list[Rows], none: Rows) -> Rows:
    """All rows of the parts; `none` where there are none."""
    parts = [rows for rows in parts if len(rows)]
    if len(parts) < 2:
        return parts[0] if parts else none
    return Rows({c: np.concatenate([rows[c] for rows in parts]) for c in none.columns})
