"""What a run's files hold: processes, names, problems, tables as columns.

Times are Unix nanoseconds on one time line for all nodes (`alignment`), names are numbers of one
list for the whole run. What cannot be read is told as a problem and skipped.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rltrace.trace import run_dir
from rltrace.trace.clock import monotonic_ns, node_id
from rltrace.trace.compact.manifest import Taken, readable_manifest
from rltrace.trace.metadata_validation import PROCESS as PROCESS_KINDS
from rltrace.trace.metadata_validation import fitting, is_of_here, now_ns, problem_of
from rltrace.trace.read import bounds
from rltrace.trace.read.processes import RunProcesses, roles_of_parents
from rltrace.trace.read.row_filters import end_what_was_left
from rltrace.trace.read.segment_batches import (
    Columns,
    CutError,
    NotASegment,
    Place,
    Stream,
    is_hole,
    joined,
    joined_numbered,
    values_at,
)
from rltrace.trace.schema import SPANS, TABLES, Table
from rltrace.trace.segment import NEW, STREAM
from rltrace.trace.untrusted_files import (
    NO_PLAIN_FILE,
    lines_of,
    open_own,
    own_files,
    parsed,
    read_own,
    weigh,
)


class RunFiles(RunProcesses):
    """The files of the run in `path`, which `meta` (its run.json) describes.

    `manifest` is that of a compacted run, or None; `rest` are the tables whose segments may hold
    more than was compacted (else all); `names` number the texts that tables read so far refer to.
    What was recorded after `as_of_ns` (Unix ns, or None) is not read: processes are read one after
    the other, while they go on.
    """

    def __init__(self, path: Path, meta: dict[str, Any]) -> None:
        bounds.hold_more(weigh(path) * is_of_here(meta))
        self.problems: list[dict[str, Any]] = []
        self.as_of_ns: int | None = None
        manifest = self.manifest = readable_manifest(path)
        self.rest = frozenset(t for t in TABLES if manifest is None or manifest.has_rest(path, t))
        known: list[str] = []
        if manifest is not None and self.rest:
            from rltrace.trace.compact.stored_rows import name_texts

            known = name_texts(manifest.names)
        super().__init__(path, meta, known)
        self.names = self._names.numbers
        self._read_processes()
        self._read_problem_files()
        self._find_elsewhere()

    def now_ns(self) -> int:
        """This moment on the run's time line (Unix ns), not before any row of this node."""
        told_ns, clock = now_ns(self.meta), self.clocks.get(node_id())
        return told_ns if clock is None else max(told_ns, clock.moment(monotonic_ns()))

    def columns(self, name: str) -> Columns:
        """The columns of a table in the order of the schema, then the process of each row; without
        what was compacted. Ask once: what is wrong with its files is added to the problems."""
        table = TABLES[name]
        taken = {} if self.manifest is None else self.manifest.taken.get(name, {})
        parts: list[Columns] = []
        for batches in segments_in(self.path / name, table):
            stored = batches.rest(taken.get(batches.path.name))
            if self._began_since(batches.who) or self.is_stray(name, batches.path):
                continue
            if batches.problem:
                self.problem("torn-file", f"{name}/{batches.path.name}", batches.problem)
            if len(stored[0]):
                parts.append(self.numbered(table, batches.who, stored))
        columns = joined_numbered(table, parts)
        columns = self.possible(table, columns)
        if name == SPANS.name:
            end_what_was_left(columns)
        return self._as_of(name, columns)

    def _as_of(self, name: str, columns: Columns) -> Columns:
        """The rows that there were at `as_of_ns`; spans as they were."""
        if self.as_of_ns is None:
            return columns
        there = columns[0] <= self.as_of_ns
        if not there.all():
            columns = [column[there] for column in columns]
        if name == SPANS.name:
            end = SPANS.find("end_ns")
            columns[end][columns[end] > self.as_of_ns] = -1
        return columns

    def is_stray(self, name: str, path: Path) -> bool:
        """Whether a segment is of another run, which is told as a problem."""
        return not self.is_of_run(path.name.rsplit(".", 2)[0], f"{name}/{path.name}")

    def _began_since(self, who: str) -> bool:
        """Whether a process has introduced itself since the processes were read."""
        if self.as_of_ns is None or who in self._numbers:
            return False
        return (self.path / run_dir.PROCESS / f"{who}.json").exists()

    def has_rows(self, name: str) -> bool:
        return any(
            any(batches.each(lambda batch: bool(batch.stored.any())))
            for batches in segments_in(self.path / name, TABLES[name])
        )

    def rows_of_processes(self, name: str) -> Counter[int]:
        """About how many rows of a table each process has in its segments; these are not read."""
        rows: Counter[int] = Counter()
        for batches in segments_in(self.path / name, TABLES[name]):
            found = sum(batches.each(lambda batch: batch.stored_rows if batch.rows else 0))
            if found and not (self._began_since(batches.who) or self.is_stray(name, batches.path)):
                rows[self.number_of(batches.who)] += found
        return rows

    def problem(self, what: str, target: str, detail: str) -> None:
        """Adds a problem, unless it is known from when the run was compacted."""
        found = {"what": what, "target": target, "detail": detail}
        is_new = self.manifest is None or found not in self.manifest.problems
        if is_new and len(self.problems) < bounds.MOST_PROBLEMS:
            self.problems.append(found)

    def _read_facts(self) -> None:
        for path in self._own(run_dir.PROCESS, ".json"):
            target = f"{run_dir.PROCESS}/{path.name}"
            try:
                self._facts[path.stem], odd = fitting(parsed(read_own(path)), PROCESS_KINDS)
            except (OSError, ValueError, TypeError) as error:
                self.problem("unreadable-file", target, str(error))
                continue
            for what in odd:
                self.problem("unreadable-file", target, f"{what}: taken as unknown")

    def _own(self, folder: str, suffix: str) -> list[Path]:
        """The run's own files in a folder; what is none is told."""
        plain, others = own_files(self.path / folder, suffix)
        for path in others:
            self.problem("unreadable-file", str(path.relative_to(self.path)), NO_PLAIN_FILE)
        return plain

    def _read_processes(self) -> None:
        self._read_facts()
        self._own(run_dir.CLOCKS, ".jsonl")  # what is no file there is named
        for line in self._align():
            self.problem("unreadable-line", f"{run_dir.CLOCKS}/{line}", "skipped")
        order = sorted(self._facts, key=lambda w: (self._facts[w].get("start_ns") or 0, w))
        if self.manifest is not None:
            order = list(dict.fromkeys([*self.manifest.processes, *order]))
            self.problems += self.manifest.problems
        parents = roles_of_parents(self._facts)
        for who in order:
            self._describe(who, parents.get(who))
            if (stop := self._stop(who)) is not None:
                self.problems.append(self._dated({**stop, "who": who}, who))

    def _read_problem_files(self) -> None:
        for path in self._own(run_dir.PROBLEMS, ".jsonl"):
            counted: dict[str, dict[str, Any]] = {}
            target = f"{run_dir.PROBLEMS}/{path.name}"
            try:
                lines = lines_of(read_own(path))
            except OSError as error:
                self.problem("unreadable-file", target, str(error.strerror))
                continue
            for line in lines[: bounds.MOST_PROBLEMS]:
                try:
                    problem = {**self._dated(problem_of(parsed(line)), path.stem), "who": path.stem}
                    if "times" not in problem:
                        self.problems.append(problem)
                    elif (of := str(problem.get("target"))) in counted:
                        counted[of].update(problem)  # the same again: how often by now
                    else:
                        counted[of] = problem
                        self.problems.append(problem)
                except (ValueError, TypeError):
                    self.problem("unreadable-line", target, "skipped")

    def _find_elsewhere(self) -> None:
        """Nodes that share no disk with this directory have only said here that they exist."""
        url = self.meta.get("shipped_to")
        if not isinstance(url, str) or (self.path / run_dir.FETCHED_FILE).exists():
            return
        if (self.path / run_dir.APART_FILE).exists():
            said = "this is what one node of the run recorded; all of it is elsewhere"
            self.problem(run_dir.ELSEWHERE, url, said)
        elif apart := len(list((self.path / run_dir.NODES).glob("*~*.json"))):
            others = f"{apart} other node{'s' * (apart != 1)} of the run"
            said = f"this is a part of the run, what {others} recorded is elsewhere"
            self.problem(run_dir.ELSEWHERE, url, said)


# --- segments: one may be cut anywhere (its process was killed, the disk was full), may still be
# growing, and may be anybody's. What is whole is read; a file is never a reason to fail.

_Seen = TypeVar("_Seen")


def segments_in(folder: Path, table: Table) -> list[Batches]:
    """What lies in a table's folder, but for files that were never filled."""
    plain, others = own_files(folder)
    found = [Batches(path, table, NO_PLAIN_FILE) for path in others]
    for path in plain:
        if path.suffix == STREAM:
            found.append(Batches(path, table))
        elif path.suffix != NEW:  # else its process was killed before the first row
            found.append(Batches(path, table, "no segment of rltrace: ignored"))
    return found


class SegmentBatch:
    """A record batch of an open file; its first row is at place `first`."""

    def __init__(self, file: int, table: Table, place: Place, first: int) -> None:
        self._file, self._table, self._place = file, table, place
        self.first, self.rows = first, place.rows

    @cached_property
    def markers(self) -> Any:
        """The first column: 0 where no row is stored."""
        return self.column(0)

    @property
    def stored(self) -> NDArray[np.bool_]:
        stored: NDArray[np.bool_] = self.markers != 0
        return stored

    @property
    def stored_rows(self) -> int:
        """How many rows are stored; where the last is, all (threads skip but a few before it)."""
        last = values_at(self._file, self._table, self._place, 0, self.rows - 1, 1)
        return self.rows if last[0] != 0 else int(self.stored.sum())

    def column(self, number: int) -> Any:
        """A column, by number; unknown throughout where the file lacks it."""
        return values_at(self._file, self._table, self._place, number, 0, self.rows)

    def rows_at(self, slots: NDArray[np.int64]) -> Columns:
        if not len(slots):
            return joined(self._table, [])
        first, last = int(slots[0]), int(slots[-1]) + 1
        near = [
            values_at(self._file, self._table, self._place, number, first, last - first)
            for number in range(len(self._place.offsets))
        ]
        return near if last - first == len(slots) else [column[slots - first] for column in near]


class Batches:
    """The record batches of a file; `problem`: what was wrong, once all were gone through."""

    def __init__(self, path: Path, table: Table, problem: str | None = None) -> None:
        self.path, self.table, self.problem = path, table, problem
        self.who = "" if problem else path.name.rsplit(".", 2)[0]
        self._is_none = problem is not None

    def rest(self, taken: Taken | None = None) -> Columns:
        """All stored rows that were not `taken`."""

        def rest(batch: SegmentBatch) -> Columns:
            if taken is None:
                return batch.rows_at(np.flatnonzero(batch.stored))
            if taken.covers(batch.first, batch.rows):
                return joined(self.table, [])
            slots = np.flatnonzero(batch.stored)
            return batch.rows_at(slots[~taken.has(slots + batch.first)])

        return joined(self.table, list(self.each(rest)))

    def each(self, look: Callable[[SegmentBatch], _Seen]) -> Iterator[_Seen]:
        """What `look` makes of each batch."""
        if self._is_none:
            return
        try:
            file, status = open_own(self.path)
        except FileNotFoundError:  # deleted a moment ago
            return
        except OSError as error:
            self.problem = f"cannot be read: {error.strerror}"
            return
        seen: list[SegmentBatch] = []
        try:
            stream = Stream(self.table)
            first = 0
            for place in stream.batches(file, status.st_size):
                if not is_hole(file, self.table, place):
                    made = look(SegmentBatch(file, self.table, place, first))
                    seen.append(SegmentBatch(file, self.table, place, first))
                    yield made
                first += place.rows
            if not stream.end:
                raise CutError("no schema" if status.st_size else "the file is empty")
            if stream.is_cut:
                raise CutError("a message has no end")
        except (OSError, NotASegment, CutError) as error:
            rows = 0
            with suppress(OSError, CutError):
                rows = sum(int(batch.stored.sum()) for batch in seen)
            self.problem = f"cut or damaged after {rows} rows: {error}"
        finally:
            os.close(file)
