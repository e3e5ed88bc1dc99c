"""How long each process, and any process, has been in each stage so far.

The union of intervals, as everywhere: an instant of a lane belongs to its innermost span, and what
several lanes do at once is counted once. Time is taken in slice by slice, from one look at the run
to the next, with what is open counted as far as the look. A row may also be stored only after what
it says has happened; it then adds what its stage had not been given yet. So times only grow: a span
that is taken back keeps what it was given.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from rltrace.analysis.activity import CODES, TABLE_OF, is_evaluation
from rltrace.analysis.intervals import Intervals, Ints, between, innermost, joined, of_spans, union
from rltrace.analysis.live.kept_tables import ended, rows_of_stages
from rltrace.trace.follow import Rows
from rltrace.trace.vocabulary import Stage, stage_of

_REMEMBERED_NS = 3600 * 10**9  # a row that is stored later than this counts from here on
_LARGEST = 1 << 62


class StageTime:
    """Nanoseconds by `(process, stage)` and by stage, up to the last look."""

    def __init__(self) -> None:
        self.by_process: dict[tuple[int, Stage], int] = {}
        self.by_stage: dict[Stage, int] = {}
        self._with_spans: set[Stage] = set()
        self._of_process = _Given()
        self._of_stage = _Given()
        self._looked_ns = -_LARGEST
        self._open_before: Ints = np.zeros(0, np.int64)

    def add(
        self, complete: dict[str, Rows], opened: dict[str, Rows], ends_ns: Ints, now_ns: int
    ) -> None:
        """Takes in the rows (by table) that became complete, and those that are `opened` as far as
        `ends_ns`, by process: the moment of this look, `now_ns`, or the last sign of life."""
        for spans in (complete["spans"], opened["spans"]):
            self._with_spans |= {stage_of(code) for code in np.unique(spans["stage"]).tolist()}
        still_open = self._intervals(opened, ends_ns)
        rows = joined([self._intervals(complete, ends_ns), still_open])
        rows = rows.take(rows.end > rows.start)
        # What was open at the last look has been counted as far as that.
        late = (rows.start < self._looked_ns) & ~np.isin(_keys(rows), self._open_before)
        pieces = joined(
            [
                _innermost(rows.take(late), -_LARGEST, self._looked_ns),
                _innermost(rows, self._looked_ns, _LARGEST),
            ]
        )
        oldest = self._looked_ns - _REMEMBERED_NS
        given = self._of_process.add(pieces, oldest)
        self.by_process = {(of // CODES, Stage(of % CODES)): ns for of, ns in given.items()}
        given = self._of_stage.add(replace(pieces, group=pieces.group % CODES), oldest)
        self.by_stage = {Stage(code): ns for code, ns in given.items()}
        self._looked_ns = max(self._looked_ns, now_ns)
        self._open_before = _keys(still_open)

    def _intervals(self, tables: dict[str, Rows], ends_ns: Ints) -> Intervals:
        whole = {name: ended(tables[name], ends_ns) for name in ("spans", *TABLE_OF.values())}
        rows = rows_of_stages(whole, self._with_spans)
        rows = rows.where(rows["stage"] != Stage.STEP)
        known = (rows["stage"] >= 0) & (rows["stage"] < Stage.STEP)
        stage = np.where(known, rows["stage"], int(Stage.OTHER)).astype(np.int64)
        group = rows["process"] * CODES + stage
        return of_spans(group, rows["start_ns"], rows["end_ns"], rows["lane"])


class _Given:
    """The time that groups were given so far, as intervals."""

    def __init__(self) -> None:
        self._given = joined([])
        self._ns: Counter[int] = Counter()

    def add(self, pieces: Intervals, oldest: int) -> Counter[int]:
        """Nanoseconds by group with what `pieces` add to what was given before; nothing before
        `oldest` is remembered, nor counted."""
        before = lengths(between(self._given, oldest, _LARGEST))
        self._given = union(between(joined([self._given, pieces]), oldest, _LARGEST))
        for group, ns in lengths(self._given).items():
            self._ns[group] += max(0, ns - before.get(group, 0))
        return self._ns


def _innermost(rows: Intervals, since: int, until: int) -> Intervals:
    """What of each row no other within it occupies, between two moments."""
    united = union(rows.take((rows.end > since) & (rows.start < until)))
    return between(
        innermost(united, united.group // CODES, is_evaluation(united.group)), since, until
    )


def _keys(rows: Intervals) -> Ints:
    """Numbers by which a row is known again at the next look."""
    mixed: Ints = (rows.start * 1_000_003) ^ (rows.lane * 31) ^ rows.group
    return mixed


def lengths(intervals: Intervals) -> dict[int, int]:
    """Nanoseconds by group, of intervals that are disjoint within a group."""
    groups, which = np.unique(intervals.group, return_inverse=True)
    length = np.zeros(len(groups), np.int64)
    np.add.at(length, which, intervals.end - intervals.start)
    return dict(zip(groups.tolist(), length.tolist(), strict=True))
