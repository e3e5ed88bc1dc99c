"""Follows a run while it is written: each process, segment and row once.

Nothing is kept of rows that were given out, and nothing is asked of the job: its files are read.
Only what happened is followed (`EVENT_TABLES`). Rows are as in the tables of `OpenedRun`; a node's
clock is known better as its run goes on, so a later reading may give other times for other nodes.

A row is first there (its marker is set), and an interval is complete only later, in place, so a
reader comes back for rows that were not complete. A segment is read with `pread`, by its path, at
each look: a map would be a SIGBUS where a file is cut, would hold a descriptor of each of hundreds
of files, and is not refreshed on NFS.
"""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.trace import run_dir
from rltrace.trace.clock import node_id
from rltrace.trace.compact.manifest import CompactManifest, readable_manifest, segment_bytes
from rltrace.trace.compact.stored_rows import name_texts, table_columns
from rltrace.trace.errors import RltraceError
from rltrace.trace.metadata_validation import PROCESS as PROCESS_KINDS
from rltrace.trace.metadata_validation import fitting, is_of_here, problem_of, read_described
from rltrace.trace.read import bounds
from rltrace.trace.read.clock_alignment import Reach, read_reach
from rltrace.trace.read.processes import RunProcesses, roles_of_parents
from rltrace.trace.read.segment_batches import (
    Columns,
    CutError,
    NotASegment,
    Place,
    Stream,
    dtype,
    is_hole,
    joined,
    joined_numbered,
    unknown,
    values_at,
)
from rltrace.trace.schema import EVENT_TABLES, Table
from rltrace.trace.segment import STREAM
from rltrace.trace.untrusted_files import FollowedLines, entries, open_own, parsed, read_own, weigh

_ALIGN_EVERY_S = 60.0


@dataclass(frozen=True)
class Rows:
    """Rows of a table: an array for each column, and `process`, the number of who stored each."""

    columns: dict[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.columns["process"])

    def __getitem__(self, column: str) -> NDArray[Any]:
        return self.columns[column]

    def where(self, kept: NDArray[Any]) -> Rows:
        return Rows({name: values[kept] for name, values in self.columns.items()})


class RunFollower(RunProcesses):
    """Follows the run in `path`. Errors: `RltraceError` as of `open_run`.

    `processes` are numbered as they were found; `names` are the texts of the name ids; `problems`
    say, by file or column, what cannot be followed. `gone`: the directory has been deleted.
    `recorded` are the numbers of those that have stored any row.
    """

    def __init__(self, path: Path) -> None:
        meta = read_described(str(path))
        bounds.hold_more(weigh(path) * is_of_here(meta))
        manifest = readable_manifest(path)
        has_segments = any(segment_bytes(path, table) for table in EVENT_TABLES)
        self._manifest = None if has_segments else manifest
        self.problems: dict[str, str] = {}
        self.stuck: list[object] = []  # what agents said of a job that stands still
        known = [] if self._manifest is None else name_texts(self._manifest.names)
        super().__init__(path, meta, known)
        self.names = self._names.texts
        self.gone = False
        self.recorded: set[int] = set()
        self._meta_read_at = -1
        self._facts_read_at: dict[str, tuple[int, int]] = {}
        self._aligned_at = -_ALIGN_EVERY_S
        self._segments: dict[str, dict[str, GrowingSegment]] = {name: {} for name in EVENT_TABLES}
        self._left: set[str] = set()
        self._said = FollowedLines(path / run_dir.PROBLEMS)
        self._stops: dict[str, dict[str, Any]] = {}
        self._unended: dict[str, Rows] = {}  # as of the last poll

    def stopped(self) -> dict[str, tuple[int | None, str]]:
        """Who had stopped recording by the last poll: when (Unix ns; None: not known) and why."""
        dated = {who: self._dated(stop, who) for who, stop in self._stops.items()}
        return {who: (s.get("real_ns"), str(s.get("detail") or "")) for who, s in dated.items()}

    def poll(self, ended: frozenset[str] = frozenset()) -> dict[str, Rows]:
        """Reads what is new: for each table the rows that have become complete. `ended` are the
        processes (by `who`) of which nothing more can come: their files are read a last time."""
        self._read_meta()
        self._read_processes()
        self._read_stops()
        if self._manifest is not None:
            return self._take_compacted(self._manifest)
        self._unended = {}
        found = {}
        for table in EVENT_TABLES.values():
            self._find_segments(table)
            parts = []
            for segment in self._segments[table.name].values():
                if segment.who not in self._left:
                    columns = segment.poll(final=segment.who in ended)
                    if segment.problem is not None:
                        target = f"{table.name}/{segment.path.name}"
                        self.problem("torn-file", target, segment.problem)
                    parts.append((segment.who, columns))
            found[table.name] = self._rows(table, parts)
        self._left |= ended
        return found

    def unfinished(self, table: str) -> Rows:
        """The rows in progress, or that ended a moment ago: then `end_ns` is not -1."""
        if table not in self._unended:
            segments = self._segments[table].values()
            parts = [(segment.who, segment.unfinished) for segment in segments]
            self._unended[table] = self._rows(EVENT_TABLES[table], parts)
        return self._unended[table]

    def now_ns(self) -> int:
        """This moment on the run's time line (Unix ns); by real time on another node."""
        clock = self.clocks.get(node_id())
        return time.time_ns() if clock is None else clock.moment(time.monotonic_ns())

    def reach(self) -> Reach:
        """Until when it is known, where it comes from a URL and more is to come."""
        return read_reach(self.path, self.clocks)

    def name(self, number: int) -> str:
        """The text of a name id; "?" for an unknown one."""
        return self.names[number] if 0 <= number < len(self.names) else "?"

    def problem(self, what: str, target: str, detail: str) -> None:
        """Keeps the newest that is said of a file or column."""
        self.problems[target] = detail

    def _take_compacted(self, manifest: CompactManifest) -> dict[str, Rows]:
        """All rows at the first look, and none later."""
        found = {}
        for name, table in EVENT_TABLES.items():
            if name in self._unended:
                found[name] = self._rows(table, [])
                continue
            rows = Rows(table_columns(manifest, name))
            self.recorded |= {*np.unique(rows["process"]).tolist()}
            ended = rows["end_ns"] != -1 if "end_ns" in rows.columns else rows["process"] >= 0
            found[name], self._unended[name] = rows.where(ended), rows.where(~ended)
        return found

    def _read_meta(self) -> None:
        try:
            changed_at = os.stat(self.path / run_dir.RUN_FILE).st_mtime_ns
            if changed_at != self._meta_read_at:
                self.meta = read_described(str(self.path))
                self._meta_read_at = changed_at
        except (OSError, RltraceError):
            self.gone = not self.path.is_dir()  # else it is being replaced

    def _read_processes(self) -> None:
        changed = []
        for entry in entries(self.path / run_dir.PROCESS):
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
                if (stop := self._stop(who)) is not None:
                    self._stops.setdefault(who, stop)
                changed.append(who)
            except (OSError, ValueError, TypeError) as error:
                self.problem("unreadable-file", f"{run_dir.PROCESS}/{entry.name}", str(error))
        # When there is a new node, and now and then.
        is_new = any(self._facts[who].get("node") not in self.clocks for who in changed)
        if is_new or time.monotonic() - self._aligned_at >= _ALIGN_EVERY_S:
            self._aligned_at = time.monotonic()
            self._align()
        if changed:
            parents = roles_of_parents(self._facts)
            compacted = [] if self._manifest is None else self._manifest.processes
            for who in dict.fromkeys([*compacted, *changed, *parents]):
                self._describe(who, parents.get(who))

    def _read_stops(self) -> None:
        """Looks what more was written down: who stopped recording (a full disk), who is stuck."""
        for who, line in self._said.new():
            with suppress(ValueError, TypeError):  # `rltrace info` names it
                problem = problem_of(parsed(line))
                if problem["what"] == run_dir.RECORDING_STOPPED:
                    self._stops.setdefault(who, problem)
                elif problem["what"] == run_dir.STUCK:
                    self.stuck.append(problem.get(run_dir.STUCK))

    def _find_segments(self, table: Table) -> None:
        known = self._segments[table.name]
        there = entries(self.path / table.name)
        for entry in there:
            if entry.name not in known and entry.name.endswith(STREAM):
                known[entry.name] = GrowingSegment(Path(entry.path), table)
        if there:  # else the disk may be away for a moment
            for name in known.keys() - {entry.name for entry in there}:
                del known[name]

    def _rows(self, table: Table, parts: list[tuple[str, Columns]]) -> Rows:
        kept = [
            self.numbered(table, who, columns)
            for who, columns in parts
            if len(columns[0]) and self.is_of_run(who, f"{table.name} of {who}")
        ]
        whole = self.possible(table, joined_numbered(table, kept))
        self.recorded.update(np.unique(whole[-1]).tolist())
        return Rows(dict(zip([*(c.name for c in table.columns), "process"], whole, strict=True)))


_Slots = NDArray[np.int64]

_LOOK_AHEAD = 64  # slots that are looked at beyond the last one known to be stored
_HOLES_S = 60.0  # once all slots are claimed, one that is still not stored is given up after this
_TOGETHER = 512  # rows this near each other are read in one go
SETTLED_NS = 10**9
"""An interval's other columns are stored with its end, in the same few statements. What ended this
long before the newest row of its process is complete; the rest is, once two looks saw it ended."""


class GrowingSegment:
    """Follows the file at `path`. `problem`: why it cannot be followed, or None; `unfinished`: rows
    that are not known to be complete; `given`: how many were given out."""

    def __init__(self, path: Path, table: Table) -> None:
        self.path = path
        self.table = table
        self.who = path.name.rsplit(".", 2)[0]
        self.problem: str | None = None
        self.given = 0
        self._stream = Stream(table)
        self._batches: list[_FollowedBatch] = []
        self.newest_ns = 0  # by the clock of its process

    @property
    def unfinished(self) -> Columns:
        """Their values as of the last look; `end_ns` is -1, or when it was seen to have ended."""
        return joined(self.table, [batch.unfinished for batch in self._batches])

    def poll(self, final: bool = False) -> Columns:
        """The rows that became complete since the last look. `final`: nobody writes any more, so
        what has ended is complete. A file that is gone, or was cut, has nothing new."""
        if self.problem is not None:
            return joined(self.table, [])
        try:
            file, status = open_own(self.path)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                self.problem = f"cannot be read: {error.strerror}"
            return joined(self.table, [])
        try:
            if status.st_size < self._stream.end:
                raise CutError("it became shorter")
            for place in self._stream.batches(file, status.st_size):
                self._batches.append(_FollowedBatch(self, place))
            last = self._batches[-1:]
            found = [batch.poll(file, batch not in last, final) for batch in self._batches]
            self._batches = [b for b in self._batches if not b.is_read or b in last]
            complete = joined(self.table, found)
            self.given += len(complete[0])
            return complete
        except (NotASegment, CutError, OSError) as error:
            self.problem = f"cannot be followed: {error}"
            return joined(self.table, [])
        finally:
            os.close(file)


class _FollowedBatch:
    """A record batch of a segment: which of its rows have been read."""

    def __init__(self, segment: GrowingSegment, place: Place) -> None:
        self._segment, self._table = segment, segment.table
        self._place, self._rows = place, place.rows
        self._end = self._table.find("end_ns")
        if self._end >= 0 and place.offsets[self._end] < 0:
            self._end = -1
        self._full_at = math.inf
        self._next = 0  # all slots before it are read, open, or holes
        self._holes = self._open = np.empty(0, np.int64)
        self._seen_ended = np.empty(0, np.bool_)
        self.unfinished = joined(self._table, [])

    @property
    def is_read(self) -> bool:
        """Whether nothing of it will change any more."""
        return self._next == self._rows and not len(self._open) and not len(self._holes)

    def poll(self, file: int, full: bool, final: bool) -> Columns:
        """The rows that became complete. `full`: there is a batch after this one."""
        if full and self._full_at == math.inf:
            self._full_at = time.monotonic()
        begun = self._begun(file, full, final)
        if self._end < 0:
            rows = self._read(file, begun)
            self._note(rows[0])
            return rows
        slots = np.concatenate([self._open, begun])
        if not len(slots):
            return joined(self._table, [])
        rows = self._read(file, slots)
        start, end = rows[0], rows[self._end]
        self._note(start, end)
        there, ended = start != 0, end != -1  # a span that was taken back is there no more
        complete = ended & (end < self._segment.newest_ns - SETTLED_NS)
        complete[: len(self._open)] |= ended[: len(self._open)] & self._seen_ended
        complete = there & (ended if final else complete)
        rest = there & ~complete
        self._open, self._seen_ended = slots[rest], ended[rest]
        self.unfinished = [column[rest] for column in rows]
        return [column[complete] for column in rows]

    def _begun(self, file: int, full: bool, final: bool) -> _Slots:
        """Slots stored since the last look, also in holes that a thread, held up, had claimed."""
        to_the_end = full or final
        if not self._next and is_hole(file, self._table, self._place):
            return self._holes
        again = self._gather(file, 0, self._holes) != 0
        found = [self._holes[again]]
        holes = [self._holes[~again]]
        if full and time.monotonic() - self._full_at > _HOLES_S:
            holes = []
        while self._next < self._rows:
            left = self._rows - self._next
            count = left if to_the_end else min(_LOOK_AHEAD, left)
            stored = values_at(file, self._table, self._place, 0, self._next, count) != 0
            if not to_the_end:
                stored = stored[: int(np.flatnonzero(stored)[-1]) + 1 if stored.any() else 0]
            slots = np.arange(self._next, self._next + len(stored))
            found.append(slots[stored])
            holes.append(slots[~stored])
            self._next += len(stored)
            if not len(stored):
                break
        self._holes = np.concatenate(holes) if holes else self._holes[:0]
        return np.concatenate(found)

    def _note(self, *times: NDArray[Any]) -> None:
        for column in times:
            self._segment.newest_ns = max(self._segment.newest_ns, int(column.max(initial=0)))

    def _read(self, file: int, slots: _Slots) -> Columns:
        return [self._gather(file, i, slots) for i in range(len(self._place.offsets))]

    def _gather(self, file: int, column: int, slots: _Slots) -> NDArray[Any]:
        """Values of a column; slots near each other are read together."""
        if not len(slots) or self._place.offsets[column] < 0:
            return unknown(self._table, column, len(slots))
        order = np.argsort(slots, kind="stable")
        values = np.empty(len(slots), dtype(self._table, column))
        for part in np.split(order, np.flatnonzero(np.diff(slots[order]) > _TOGETHER) + 1):
            first, last = int(slots[part[0]]), int(slots[part[-1]])
            near = values_at(file, self._table, self._place, column, first, last - first + 1)
            values[part] = near[slots[part] - first]
        return values
