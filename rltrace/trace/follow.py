"""Following a run while it is written: every process, every segment, each row once.

    follower = Follower(path)
    while not follower.gone:
        for table, rows in follower.poll().items(): ...
        follower.unfinished("spans")    # what is in progress

Nothing is kept of rows that were given out, and nothing is asked of the job: its files are read.
What happened is followed (`EVENT_TABLES`), not what samples were made of.
Rows are as in `rltrace.trace.run`'s tables, Unix times and global name ids included; a node's clock
is known better as its run goes on, so times of other nodes may differ by that from a later reading.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.trace import run_dir
from rltrace.trace.alignment import NodeClock, align, pair_of, read_clock_files
from rltrace.trace.clock import node_id
from rltrace.trace.compacted import name_texts, table_columns
from rltrace.trace.counted import make_unknown
from rltrace.trace.dropped import Dropped, read_dropped, unix_of
from rltrace.trace.errors import RltraceError
from rltrace.trace.followed_stops import FollowedStops
from rltrace.trace.growing import GrowingSegment
from rltrace.trace.manifest import Manifest, check_readable, read_manifest, segment_bytes
from rltrace.trace.names import FollowedNames
from rltrace.trace.own_files import follows_links, read_own
from rltrace.trace.processes import Process, described, roles_of_parents
from rltrace.trace.reach import Reach, read_reach
from rltrace.trace.real_times import of_real_times
from rltrace.trace.sampled import only_some
from rltrace.trace.schema import EVENT_TABLES, OF_ONE_SAMPLE, Table
from rltrace.trace.segment import STREAM
from rltrace.trace.stated import PROCESS as PROCESS_KINDS
from rltrace.trace.stated import fitting
from rltrace.trace.strays import OTHER_RUNS, known_of
from rltrace.trace.stream import Columns, joined
from rltrace.trace.texts import parsed

_ALIGN_EVERY_S = 60.0


@dataclass(frozen=True)
class Rows:
    """Rows of a table: a numpy array for each of its columns, and `process`, the number of the
    process that stored each."""

    columns: dict[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.columns["process"])

    def __getitem__(self, column: str) -> NDArray[Any]:
        return self.columns[column]

    def where(self, kept: NDArray[Any]) -> Rows:
        """Those that `kept`, a mask or places, says."""
        return Rows({name: values[kept] for name, values in self.columns.items()})


class Follower:
    """Follows the run in `path`. Errors: `RltraceError` when there is none there, or a newer one.

    `meta` is what run.json says; `processes` are numbered in the order in which they were found;
    `names` are the texts of the name ids; `problems` say, by file or column, what cannot be
    followed or taken as it is. `gone` is whether the directory has been deleted. `recorded` are the
    numbers of those that have stored any row, given out or not. `dropped` is what was dropped
    before to keep the run small (None: nothing): what began until then is not given out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.meta: dict[str, Any] = run_dir.read_described(str(path))
        self.processes: list[Process] = []
        self.problems: dict[str, str] = {}
        self.gone = False
        self.recorded: set[int] = set()
        self.dropped: Dropped | None = None
        self._was_polled = False
        self._meta_read_at = -1
        self._numbers: dict[str, int] = {}
        self._facts: dict[str, dict[str, Any]] = {}
        self._facts_read_at: dict[str, tuple[int, int]] = {}
        self._clocks: dict[str, NodeClock] = {}
        self._aligned_at = -_ALIGN_EVERY_S
        self._names = FollowedNames(path / run_dir.NAMES)
        self._segments: dict[str, dict[str, GrowingSegment]] = {name: {} for name in EVENT_TABLES}
        self._left: set[str] = set()
        self._gone: set[tuple[str, str]] = set()  # tables and names of segments not there now
        self._stops = FollowedStops(path)
        self._unended: dict[str, Rows] = {}  # as of the last poll
        self._manifest = self._compacted()

    @property
    def names(self) -> list[str]:
        """The text of each name id."""
        return self._names.texts

    @property
    def lost_until_ns(self) -> int:
        """What began until then (Unix ns; -1: nothing) is not given out."""
        return -1 if self.dropped is None else self.dropped.until_ns

    def stopped(self) -> dict[str, tuple[int | None, str]]:
        """By who it is that stopped recording by the last poll: when (Unix ns; None: not known) and
        why."""
        found: dict[str, tuple[int | None, str]] = {}
        for who, stop in self._stops.stops.items():
            clock = self._clocks.get(str(self._facts.get(who, {}).get("node")))
            if clock is not None and stop.monotonic_ns is not None:
                found[who] = unix_of(clock, stop.monotonic_ns), stop.detail
            else:
                found[who] = stop.real_ns, stop.detail
        return found

    def poll(self, ended: frozenset[str] = frozenset()) -> dict[str, Rows]:
        """Reads what is new: for each table the rows that have become complete. `ended` are the
        processes (by `who`) of which nothing more can come: their files are read a last time."""
        self._read_meta()
        self._read_processes()
        self._stops.poll()
        if not self._was_polled:
            self._was_polled, self.dropped = True, read_dropped(self.path, self._clocks)
        if self._manifest is not None:
            return self._take_compacted(self._manifest)
        self._unended = {}
        found = {}
        for table in EVENT_TABLES.values():
            self._find_segments(table)
            parts = []
            for segment in self._segments[table.name].values():
                is_there = (table.name, segment.path.name) not in self._gone
                if is_there and segment.who not in self._left:
                    columns = segment.poll(final=segment.who in ended)
                    self._note(table, segment)
                    parts.append((segment.who, columns))
            found[table.name] = self._rows(table, parts)
        self._left |= ended
        for name, file in self._gone:
            self._segments[name].pop(file, None)
        self._gone = set()
        return {name: self._told(EVENT_TABLES[name], rows) for name, rows in found.items()}

    def unfinished(self, table: str) -> Rows:
        """The rows that are in progress, or that ended a moment ago: then `end_ns` is not -1."""
        if table not in self._unended:
            segments = self._segments[table].values()
            rows = self._rows(EVENT_TABLES[table], [(s.who, s.unfinished) for s in segments])
            self._unended[table] = self._told(EVENT_TABLES[table], rows)
        return self._unended[table]

    def now_ns(self) -> int:
        """This moment on the run's time line (Unix ns); by real time on a node not of the run."""
        clock = self._clocks.get(node_id())
        if clock is None:
            return time.time_ns()
        return int(clock.to_unix(np.array([time.monotonic_ns()], np.int64))[0])

    def reach(self) -> Reach:
        """Until when it is known, where it was brought from a URL and more is to come."""
        return read_reach(self.path, self._clocks)

    def name(self, number: int) -> str:
        """The text of a name id; "?" for one that nobody wrote down."""
        return self.names[number] if 0 <= number < len(self.names) else "?"

    def _compacted(self) -> Manifest | None:
        """Where the tables lie, if the segments they were made of have been deleted."""
        manifest = read_manifest(self.path)
        if manifest is None:
            check_readable(self.path)
        if manifest is None or any(segment_bytes(self.path, t) for t in EVENT_TABLES):
            return None
        return manifest

    def _take_compacted(self, manifest: Manifest) -> dict[str, Rows]:
        """All rows at the first look, and none later."""
        found = {}
        for name, table in EVENT_TABLES.items():
            if name in self._unended:
                found[name] = self._rows(table, [])
                continue
            if not self._names.texts:
                self._names.texts += name_texts(manifest)
            rows = Rows(table_columns(manifest, name))
            self.recorded |= {*np.unique(rows["process"]).tolist()}
            rows = self._told(table, rows)
            ended = rows["end_ns"] != -1 if "end_ns" in rows.columns else rows["process"] >= 0
            found[name], self._unended[name] = rows.where(ended), rows.where(~ended)
        return found

    def _read_meta(self) -> None:
        try:
            changed_at = os.stat(self.path / run_dir.RUN_FILE).st_mtime_ns
            if changed_at != self._meta_read_at:
                self.meta = run_dir.read_described(str(self.path))
                self._meta_read_at = changed_at
        except (OSError, RltraceError):
            self.gone = not self.path.is_dir()  # else it is being replaced

    def _read_processes(self) -> None:
        """Takes in processes that are new or say more of themselves."""
        changed = []
        for entry in _entries(self.path / run_dir.PROCESS):
            if not entry.name.endswith(".json"):
                continue
            who = entry.name[: -len(".json")]
            try:
                status = entry.stat()
                read_at = (status.st_mtime_ns, status.st_ino)
                if self._facts_read_at.get(who) == read_at:
                    continue
                self._facts[who], _ = fitting(parsed(read_own(entry.path)), PROCESS_KINDS)
                self._facts_read_at[who] = read_at
                self._stops.note_facts(who, self._facts[who])
                changed.append(who)
            except (OSError, ValueError, TypeError) as error:
                self.problems[f"{run_dir.PROCESS}/{entry.name}"] = str(error)
        self._align(any(self._facts[who].get("node") not in self._clocks for who in changed))
        if changed:
            parents = roles_of_parents(self._facts)
            for who in self._order(changed) | dict.fromkeys(parents):
                self._describe(who, parents.get(who))

    def _order(self, changed: list[str]) -> dict[str, None]:
        """The processes that are to be described, in the order of their numbers."""
        compacted = [] if self._manifest is None else self._manifest.processes
        return dict.fromkeys([*compacted, *changed])

    def _align(self, new_node: bool) -> None:
        """Aligns the clocks of the nodes: when there is a new one, and now and then."""
        now = time.monotonic()
        if not new_node and now - self._aligned_at < _ALIGN_EVERY_S:
            return
        self._aligned_at = now
        pairs, exchanges, _ = read_clock_files(self.path / run_dir.CLOCKS)
        for facts in self._facts.values():
            pair = pair_of(facts.get("clock"))
            if pair is not None:
                pairs.setdefault(str(facts.get("node")), []).append(pair)
        self._clocks = align(str(self.meta.get("node")), pairs, exchanges)

    def _describe(self, who: str, child_of: str | None) -> int:
        """Puts a process into `processes`, or renews what is said there; its number."""
        number = self._numbers.setdefault(who, len(self.processes))
        process = described(number, who, self._facts.get(who, {}), self._clocks, child_of)
        if number == len(self.processes):
            self.processes.append(process)
        else:
            self.processes[number] = process
        return number

    def _find_segments(self, table: Table) -> None:
        known = self._segments[table.name]
        there = _entries(self.path / table.name)
        for entry in there:
            if entry.name not in known and entry.name.endswith(STREAM):
                known[entry.name] = GrowingSegment(Path(entry.path), table)
        if there:  # else the disk may be away for a moment
            gone = known.keys() - {entry.name for entry in there}
            self._gone |= {(table.name, name) for name in gone}

    def _told(self, table: Table, rows: Rows) -> Rows:
        """Rows of a time of which none were lost, and what is in progress since before; of samples,
        where all were recorded."""
        if table.name in OF_ONE_SAMPLE and only_some(self.meta):
            return rows.where(np.zeros(len(rows), np.bool_))
        if not len(rows) or self.lost_until_ns < 0:
            return rows
        told = rows[table.columns[0].name] > self.lost_until_ns
        if "end_ns" in rows.columns:
            told |= rows["end_ns"] == -1
        return rows.where(told)

    def _note(self, table: Table, segment: GrowingSegment) -> None:
        if segment.problem is not None:
            self.problems[f"{table.name}/{segment.path.name}"] = segment.problem

    def _rows(self, table: Table, parts: list[tuple[str, Columns]]) -> Rows:
        parts = [(who, rows) for who, rows in parts if len(rows[0]) and self._is_of_run(who, table)]
        numbers = [self._number(who) for who, _ in parts]
        self.recorded.update(numbers)
        translated = [self._translated(table, who, columns) for who, columns in parts]
        whole = joined(table, translated)
        for column, _ in make_unknown(table, whole):
            self.problems[f"{table.name}.{column}"] = "values below zero, taken as unknown"
        named = dict(zip([c.name for c in table.columns], whole, strict=True))
        lengths = [len(columns[0]) for columns in translated]
        named["process"] = np.repeat(np.array(numbers, np.int64), lengths)
        return Rows(named)

    def _is_of_run(self, who: str, table: Table) -> bool:
        """Whether the rows of a process are of this run, as far as its name tells where it has no
        file."""
        if who in self._numbers:
            return True
        known = [process for process in self.processes if process.who in self._facts]
        facts = known_of(who, self.meta, known, self._clocks)
        if facts is None:
            self.problems[f"{table.name} of {who}"] = OTHER_RUNS
            return False
        if facts:
            self._facts[who] = facts
        return True

    def _number(self, who: str) -> int:
        number = self._numbers.get(who)
        return self._describe(who, None) if number is None else number

    def _translated(self, table: Table, who: str, columns: Columns) -> Columns:
        """The columns with Unix times and global name ids."""
        clock = self._clocks.get(self.processes[self._number(who)].node)
        translated: Columns = []
        for column, values in zip(table.columns, columns, strict=True):
            if column.is_time and clock is not None:
                translated.append(clock.to_unix(values))
            elif column.is_name:
                translated.append(self._names.translated(who, values))
            else:
                translated.append(values)
        real, left_out = of_real_times(table, translated)
        if left_out:
            self.problems[f"{table.name} of {who}"] = "rows of no possible time, left out"
        return real


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What lies in a folder of the run's own, in order; nothing where it has been deleted."""
    if os.path.islink(folder) and not follows_links():
        return []
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError:
        return []
