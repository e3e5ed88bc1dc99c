"""Which rows count: possible times and counts, ranges of time, and the steps of which process.

Of a range is what began in it, and what was going on when it began. A sample that was used in it
is, whenever it was generated and judged since the job began, or began again, so that its lag is
known. A row that was still open when the range began counts where its process recorded anything
later: else it was lost long before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rltrace.trace import vocabulary
from rltrace.trace.read.bounds import EVER_NS, LARGEST_COUNT, LARGEST_WHOLE
from rltrace.trace.read.segment_batches import Columns
from rltrace.trace.schema import CAPTURED_TOKENS, SPANS, TABLES, Column, Table
from rltrace.trace.vocabulary import Stage

if TYPE_CHECKING:
    import duckdb

    from rltrace.trace.compact.stored_rows import Stored
    from rltrace.trace.read.processes import TracedProcess

Registered = dict[str, NDArray[np.int64]]


def of_real_times(table: Table, columns: Columns) -> tuple[Columns, int]:
    """The rows that began at a possible time, and how many did not; what else is no time becomes
    unknown. `columns` begin with those of `table`, with times in Unix ns."""
    if not len(columns[0]):
        return columns, 0
    real = (columns[0] > 0) & (columns[0] < EVER_NS)
    left_out = len(real) - int(np.count_nonzero(real))
    kept = [column[real] for column in columns] if left_out else [*columns]
    for i, column in enumerate(table.columns):
        if i and column.is_time:
            odd = (kept[i] < -1) | (kept[i] >= EVER_NS)
            kept[i] = np.where(odd, np.int64(-1), kept[i]) if odd.any() else kept[i]
    return kept, left_out


def end_what_was_left(columns: Columns) -> None:
    """Ends spans that a process left without storing so: an exception of the job may strike just as
    a `with rltrace.span(...)` is left. Such a span is open while one around it, in its lane, has
    ended. It gets no length, as that is unknown. Steps stay open: one that failed has no end.
    `columns` are those of spans, and the process of each."""
    names = ("start_ns", "end_ns", "stage", "lane")
    start, end, stage, lane = (columns[SPANS.find(name)] for name in names)
    process = columns[-1]
    is_open = (end < 0) & (stage != Stage.STEP)
    if not is_open.any():
        return
    among = np.flatnonzero(np.isin(lane, np.unique(lane[is_open])))
    order = among[np.lexsort((-end[among], start[among], lane[among], process[among]))]
    changes = (np.diff(lane[order]) != 0) | (np.diff(process[order]) != 0)
    for rows in np.split(order, np.flatnonzero(changes) + 1):
        around = np.maximum.accumulate(end[rows])  # the last end of those that began before
        left = rows[is_open[rows] & (around > start[rows])]
        end[left] = start[left]


COUNTS = (
    *("tokens", "bytes", "items", "prompt_tokens", "response_tokens", "turns", "env_ns"),
    *("preemptions", "stall_ns", "wire_bytes", "buckets"),
)
"""Columns without values below zero, but -1 for an unknown one."""

Odd = dict[tuple[str, str], int]  # column, and what became of its values: how many there are


def ranges_of(columns: Iterable[Column]) -> dict[str, tuple[int, int]]:
    """The least and the most of columns beyond which a value makes no sense: codes, counts, and
    whole numbers that are subtracted from each other."""
    found = {}
    for column in columns:
        if column.codes:
            found[column.name] = -1, len(getattr(vocabulary, column.codes)) - 1
        elif column.name in COUNTS:
            found[column.name] = -1, LARGEST_WHOLE if column.kind == "i" else LARGEST_COUNT
        elif column.kind == "i" and not column.is_name:
            found[column.name] = -LARGEST_WHOLE, LARGEST_WHOLE
    return found


def of_possible_values(table: Table, columns: Columns) -> tuple[Columns, Odd]:
    """The rows that make sense, with counts that cannot be unknown (-1), and what was odd."""
    odd: Odd = {}
    columns = [*columns]
    for name, (least, most) in ranges_of(table.columns).items():
        values = columns[table.find(name)]
        if values.min(initial=0) >= least and values.max(initial=0) <= most:
            continue
        bad = (values < least) | (values > most)
        number = int(np.count_nonzero(bad))
        if name in COUNTS:
            columns[table.find(name)] = np.where(bad, values.dtype.type(-1), values)
            odd[name, "can be no counts: taken as unknown"] = number
        else:
            columns = [values[~bad] for values in columns]
            odd[name, "rows of no possible value: left out"] = number
    return columns, odd


OF_SAMPLES = ("trajectories", "rewards", CAPTURED_TOKENS.name)
_KEPT_ROWS = 5_000_000  # a table of so many at the most is kept in memory


@dataclass(frozen=True)
class Range:
    """From `since_ns` on and before `until_ns` (Unix); of steps' spans those of these numbers."""

    since_ns: int
    until_ns: int
    first_step: int = 0
    last_step: int = EVER_NS

    @property
    def goes_on(self) -> bool:
        return self.until_ns >= EVER_NS


class Narrowed:
    """Makes the tables of a range in `database`, of `stored` rows; `begins` as `job_begins`."""

    def __init__(
        self, database: duckdb.DuckDBPyConnection, stored: Stored, of: Range, begins: list[int]
    ) -> None:
        self._database, self._stored, self._of = database, stored, of
        self._manifest = stored.manifest
        self._begins = begins

    def make(self, name: str) -> None:
        """Makes `recorded_<name>`."""
        rows = f"FROM ({self._near(name)}) r WHERE {self._within(TABLES[name])}"
        kind = "TABLE" if self._most_rows(name) <= _KEPT_ROWS else "VIEW"
        self._database.execute(f"CREATE OR REPLACE {kind} recorded_{name} AS {rows}")
        if name in OF_SAMPLES and kind == "TABLE":
            self._add_earlier(name)

    def _near(self, name: str) -> str:
        """The rows of the files that the range has part in."""
        return self._stored.near(name, self._of.since_ns, self._of.until_ns)

    def _most_rows(self, name: str) -> int:
        rows = 0
        if self._manifest is not None:
            parts, _ = self._manifest.between(name, self._of.since_ns, self._of.until_ns)
            rows = sum(part.rows for part in parts)
        if (rest := self._stored.rest(name)) is not None:
            rows += self._database.execute(f"SELECT count(*) FROM {rest}").fetchall()[0][0]
        return rows

    def _within(self, table: Table) -> str:
        since, until, marker = self._of.since_ns, self._of.until_ns, table.columns[0].name
        counts = [f'"{marker}" >= {since}']
        if table.find("end_ns") >= 0:
            counts.append(f"end_ns >= {since} OR (end_ns = -1 AND {self._is_alive})")
        if table.name in OF_SAMPLES:
            counts.append(self._is_used)
        of_time = f'("{marker}" < {until} AND ({" OR ".join(counts)}))'
        if table.name != "spans":
            return of_time
        first, last = self._of.first_step, self._of.last_step
        of_steps = f"(start_ns >= {since} AND step BETWEEN {first} AND {last})"
        return f"({of_time} AND (stage <> {int(Stage.STEP)} OR {of_steps}))"

    @cached_property
    def _is_alive(self) -> str:
        """Whether the process of a row recorded something in the range."""
        since, until = self._of.since_ns, self._of.until_ns
        began = f"start_ns < {until} AND greatest(start_ns, end_ns) >= {since}"
        rows = " UNION ".join(
            f"SELECT process FROM ({self._near(name)}) WHERE {began}"
            for name in ("spans", "trajectories", "rewards", "syncs")
        )
        self._database.execute(f"CREATE OR REPLACE TABLE range_alive AS {rows}")
        return "process IN (FROM range_alive)"

    @cached_property
    def _is_used(self) -> str:
        """Whether the sample of a row was used in the range; before the job began again an id is
        another's."""
        within = f"trajectory <> -1 AND {self._within(TABLES['uses'])}"
        rows = f"SELECT DISTINCT trajectory FROM ({self._near('uses')}) WHERE {within}"
        self._database.execute(f"CREATE OR REPLACE TABLE range_used AS {rows}")
        since = max((ns for ns in self._begins if ns <= self._of.since_ns), default=0)
        return f"(start_ns >= {since} AND trajectory IN (FROM range_used))"

    def _add_earlier(self, name: str) -> None:
        """Adds what belongs to the samples that were used, from the parts before, back to the first
        that has nothing of them: samples are used within a bounded time, if at all."""
        if self._manifest is None:
            return
        parts = self._manifest.tables[name]
        before = [part for part in parts if part.until_ns <= self._of.since_ns]
        for part in reversed(before):
            known = f"SELECT trajectory FROM recorded_{name}"
            missing = f"FROM range_used WHERE trajectory NOT IN ({known})"
            if self._database.execute(f"{missing} LIMIT 1").fetchone() is None:
                return
            rows = f"FROM {self._stored.of_files(name, [part.path])}"
            insert = f"INSERT INTO recorded_{name} BY NAME {rows} WHERE trajectory IN ({missing})"
            if self._database.execute(insert).fetchall() == [(0,)]:
                return


# --- Whose steps count, where several processes record steps. The ranks of a learner each record
# the same: the process with the most keeps the time. Another's step counts where it recorded none,
# and it is not the same step: its number is new, or that step was done again, by a process of the
# same role and rank that began after that one's last step. A rank that was late does none again.
# Of steps of one process, one within another, the inner ones count: the outer one is their loop.

_Ints = NDArray[np.int64]
_Step = tuple[int, int, int, int]
Parts = Mapping[int, tuple[str | None, int | None]]

STEPS_THAT_COUNT = "steps_that_count"  # table: `process`, `start_ns` of the rows that `steps` has
_MARKED = f"""
SELECT step, start_ns, end_ns, process FROM raw_spans
WHERE stage = {int(Stage.STEP)} AND step >= 0 ORDER BY start_ns
"""


def steps_that_count(
    database: duckdb.DuckDBPyConnection, processes: Iterable[TracedProcess]
) -> Registered:
    """The table, of a database with `raw_spans`. A step that never ended is there unless another of
    its number did."""
    marked = [row for row in database.execute(_MARKED).fetchall() if None not in row]
    rows = each_once(marked, parts_of(processes))
    ended = {step for step, start, end, _ in rows if end >= start}
    kept = (row for row in rows if row[2] >= row[1] or row[0] not in ended)
    return table_of(
        sorted((process, start) for _, start, _, process in kept), "process", "start_ns"
    )


def table_of(rows: Sequence[tuple[int, ...]], *names: str) -> Registered:
    """A table with these columns, as DuckDB registers it."""
    return dict(zip(names, np.array(rows, np.int64).reshape(-1, len(names)).T, strict=True))


def publish(
    database: duckdb.DuckDBPyConnection,
    name: str,
    kinds: Mapping[str, str],
    rows: Iterable[Sequence[Any]],
) -> None:
    """Makes a table of rows that hold texts or None; `kinds` are its columns' types."""
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in kinds]
    listed = (f"unnest(${i}::{kinds[of]}[]) AS {of}" for i, of in enumerate(kinds, 1))
    database.execute(f"CREATE OR REPLACE TABLE {name} AS SELECT {', '.join(listed)}", columns)


def parts_of(processes: Iterable[TracedProcess]) -> Parts:
    return {process.number: (process.role, process.rank) for process in processes}


def each_once(rows: list[_Step], parts: Parts) -> list[_Step]:
    """Rows `(step, start_ns, end_ns or -1, process)` without those of steps that a process with
    more of them has, too. `parts` are role and rank by process."""
    table = np.array(rows, np.int64).reshape(-1, 4)
    number, process = table[:, 0], table[:, 3]
    order = np.argsort(process, kind="stable")
    starts = np.flatnonzero(np.diff(process[order], prepend=-2))
    kept = np.zeros(len(rows), np.bool_)
    found: list[tuple[object, int, int, _Ints]] = []  # part, first start, last end, numbers
    for places in sorted(np.split(order, starts)[1:], key=len, reverse=True):
        part = parts.get(int(process[places[0]]))
        mine = places[~_holds_others(table[places])]
        since, until = int(table[mine, 1].min()), int(table[mine, 1:3].max())
        for other, first, last, numbers in found:
            if part != other or (since < last and first < until):
                mine = mine[~np.isin(number[mine], numbers)]
        if len(mine):
            found.append((part, since, until, number[mine]))
            kept[mine] = True
    return [row for row, counts in zip(rows, kept.tolist(), strict=True) if counts]


def _holds_others(rows: _Ints) -> NDArray[np.bool_]:
    """Of rows of one process, by start: which hold a whole step of another number."""
    ends = np.where(rows[:, 2] < rows[:, 1], EVER_NS, rows[:, 2])
    twice = (np.diff(rows[:, 0]) == 0) & (ends[1:] <= ends[:-1])  # the same step, recorded again
    ends[1:][twice] = EVER_NS
    first = np.minimum.accumulate(ends[::-1])[::-1]  # to end, of a row and those after it
    return np.asarray(np.append(first[1:], EVER_NS) < rows[:, 2])


def of_one_rank(rows: list[_Step], processes: Iterable[TracedProcess]) -> list[_Step]:
    """The numbered steps of the rank with the most, and of processes without a rank, each once:
    another rank does the same, whenever it begins."""
    rank_of = {process.number: process.rank for process in processes}
    ranks = Counter(rank_of.get(row[3]) for row in rows)
    kept = (
        None,
        max((one for one in ranks if one is not None), key=lambda one: ranks[one], default=None),
    )
    return each_once([row for row in rows if row[0] >= 0 and rank_of.get(row[3]) in kept], {})


def begun_again(rows: list[_Step]) -> list[int]:
    """Places of such rows, by start, at which a step came again, or an earlier one: in another
    process, or from the first on. A number that is always the same says nothing."""
    found, numbers, first = list[int](), set[int](), 0
    for place, (step, _, _, process) in enumerate(rows):
        again = step in numbers or (bool(numbers) and step < first)
        if again and (process != rows[place - 1][3] or step <= first < max(numbers)):
            found.append(place)
            numbers.clear()
        first = first if numbers else step
        numbers.add(step)
    return found


def job_begins(rows: list[_Step], processes: Collection[TracedProcess]) -> list[int]:
    """When the job began again (Unix ns): an id, or a version, is another's then."""
    started_ns, found = {one.number: one.start_ns for one in processes}, list[int]()
    rows = of_one_rank(rows, processes)
    for place in begun_again(rows):
        (_, start_ns, _, process), (*_, end_ns, by) = rows[place], rows[place - 1]
        last_ns = max(max(row[1:3]) for row in rows[:place])
        if end_ns < 0:  # what such a step began may be later than itself
            last_ns = start_ns if by == process else max(last_ns, started_ns.get(process, 0))
        found.append(min(start_ns, last_ns))
    return found


def one_clock(rows: list[_Step], parts: Parts) -> list[_Step]:
    """Of rows `(step, start_ns, end_ns, process)` of ended steps, by start, those that count. They
    do not overlap: one is cut where the next of its process begins. `parts` as in `each_once`."""
    table = np.array(each_once(rows, parts), np.int64).reshape(-1, 4)
    kept = np.zeros((0, 4), np.int64)
    process, count = np.unique(table[:, 3], return_counts=True)
    for one in process[np.lexsort((process, -count))]:
        mine = _cut_where_the_next_begins(table[table[:, 3] == one])
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
