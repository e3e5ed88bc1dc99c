"""Whose steps count, where several processes record steps.

The ranks of a learner each record the same steps: the process with the most keeps the time.
Another's count only where it recorded none, as after a restart, when the learner is a new process.
The views `steps` and `stages` have those of one role and rank only: another rank that was late has
done no step again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.vocabulary import Stage

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

_Ints = NDArray[np.int64]
_Step = tuple[int, int, int, int]

STEPS_THAT_COUNT = "steps_that_count"  # table: `process`, `start_ns` of the rows that `steps` has
STEPS = f"""
CREATE OR REPLACE VIEW steps AS
SELECT step, start_ns, nullif(end_ns, -1) AS end_ns,
       (nullif(end_ns, -1) - start_ns) / 1e9 AS seconds, process
FROM raw_spans JOIN {STEPS_THAT_COUNT} USING (process, start_ns)
WHERE stage = {int(Stage.STEP)} AND step >= 0 ORDER BY start_ns
"""

_MARKED = f"""
SELECT s.step, s.start_ns, s.end_ns, s.process, p.role, p.rank
FROM raw_spans s LEFT JOIN processes p USING (process)
WHERE s.stage = {int(Stage.STEP)} AND s.step >= 0 ORDER BY s.start_ns
"""


def steps_that_count(database: duckdb.DuckDBPyConnection) -> pa.Table:
    """The table, of a database with `raw_spans`. It has all steps of the keeper, ended or not."""
    marked = database.execute(_MARKED).fetchall()
    part = {process: (role, rank) for *_, process, role, rank in marked}
    rows = [row[:4] for row in marked if None not in row[:4]]
    if rows:
        keeper = _by_steps([row for row in rows if row[2] >= row[1]] or rows)[0]
        rows = _that_count([row for row in rows if part[row[3]] == part[keeper]], keeper)
    found = sorted({(process, start) for _, start, _, process in rows})
    return table_of(found, "process", "start_ns")


def table_of(rows: Sequence[tuple[int, ...]], *names: str) -> pa.Table:
    import pyarrow as pa

    columns = np.array(rows, np.int64).reshape(-1, len(names)).T
    return pa.table(dict(zip(names, columns, strict=True)))


def _that_count(rows: list[_Step], keeper: int) -> list[_Step]:
    """All of the keeper; another's open step only if no other has its number (it was redone)."""
    kept = [row for row in rows if row[3] == keeper]
    kept += [row for row in one_clock([r for r in rows if r[2] >= r[1]]) if row[3] != keeper]
    numbers = {row[0] for row in kept}
    for row in rows:
        if row[2] < row[1] and row[0] not in numbers:
            numbers.add(row[0])
            kept.append(row)
    return kept


def _by_steps(rows: list[_Step]) -> list[int]:
    """The processes, that with the most steps first."""
    process, count = np.unique(np.array([row[3] for row in rows], np.int64), return_counts=True)
    found: list[int] = process[np.lexsort((process, -count))].tolist()
    return found


def one_clock(rows: list[_Step]) -> list[_Step]:
    """Of rows `(step, start_ns, end_ns, process)` of ended steps, by start, those that count. They
    do not overlap: one is cut where the next of its process begins."""
    if not rows:
        return []
    table = np.array(rows, np.int64)
    kept = np.zeros((0, 4), np.int64)
    for one in _by_steps(rows):
        mine = table[table[:, 3] == one]
        mine = _cut_where_the_next_begins(mine)
        before = np.searchsorted(kept[:, 1], mine[:, 2], side="left")
        free = np.searchsorted(kept[:, 2], mine[:, 1], side="right") == before
        kept = np.concatenate([kept, mine[free]])
        kept = kept[np.argsort(kept[:, 1], kind="stable")]
    return [(int(a), int(b), int(c), int(d)) for a, b, c, d in kept]


def _cut_where_the_next_begins(rows: _Ints) -> _Ints:
    """Such rows of one process made disjoint. A step within one of the same number was recorded
    twice; else a pipelined loop begins steps before others end."""
    kept: list[_Ints] = []
    for row in rows:
        if kept and row[0] == kept[-1][0] and row[2] <= kept[-1][2]:
            continue
        if kept:
            kept[-1][2] = min(kept[-1][2], row[1])
        kept.append(row)
    return np.array(kept)
