"""What a run's files hold: processes, names, problems, tables as columns.

Times are Unix nanoseconds on one time line for all nodes (`alignment`), names are numbers of one
list for the whole run. What cannot be read is told as a problem and skipped.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from rltrace.trace import run_dir
from rltrace.trace.clock import monotonic_ns, node_id
from rltrace.trace.compact.manifest import readable_manifest
from rltrace.trace.metadata_validation import PROCESS as PROCESS_KINDS
from rltrace.trace.metadata_validation import fitting, only_some, problem_of
from rltrace.trace.read.processes import RunProcesses, read_dropped, roles_of_parents
from rltrace.trace.read.row_filters import end_what_was_left
from rltrace.trace.read.segment_batches import Columns, joined_numbered
from rltrace.trace.read.segment_reader import segments_in
from rltrace.trace.schema import SPANS, TABLES, Table
from rltrace.trace.untrusted_files import NO_PLAIN_FILE, lines_of, own_files, parsed, read_own


class RunFiles(RunProcesses):
    """The files of the run in `path`, which `meta` (its run.json) describes.

    `manifest` is that of a compacted run, or None; `rest` are the tables whose segments may hold
    more than was compacted (else all); `names` number the texts that tables read so far refer to;
    `dropped` is what was dropped to keep the run small, or None; `only_some`: why nothing is told
    of samples. What was recorded after `as_of_ns` (Unix ns, or None) is not read: processes are
    read one after the other, while they go on.
    """

    def __init__(self, path: Path, meta: dict[str, Any]) -> None:
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
        self.dropped = read_dropped(path, self.clocks)
        self.only_some = only_some(meta)

    def now_ns(self) -> int:
        """This moment on the run's time line (Unix ns), not before any row of this node."""
        now_ns = run_dir.now_ns(self.meta)
        clock = self.clocks.get(node_id())
        return now_ns if clock is None else max(now_ns, clock.moment(monotonic_ns()))

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
        if name == SPANS.name:
            end_what_was_left(columns)
        return self.without_negative(table, self._as_of(name, columns))

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
        if self.manifest is None or found not in self.manifest.problems:
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
            for line in lines:
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

    def numbered(self, table: Table, who: str, stored: Columns) -> Columns:
        """As `translated`, and the process's number."""
        columns = self.translated(table, who, stored)
        return [*columns, np.full(len(columns[0]), self.number_of(who), np.int32)]
