"""What the files of a run hold: its processes, names and problems, and its tables as columns.

Times are Unix nanoseconds on one time line for all nodes (`alignment`), names are numbers of one
list for the whole run. What cannot be read is named among the problems and skipped.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from rltrace.trace import run_dir
from rltrace.trace.alignment import NodeClock, align, pair_of, read_clock_files
from rltrace.trace.clock import monotonic_ns, node_id
from rltrace.trace.counted import make_unknown
from rltrace.trace.dropped import read_dropped
from rltrace.trace.manifest import Manifest, check_readable, read_manifest
from rltrace.trace.names import name_of
from rltrace.trace.own_files import NO_PLAIN_FILE, lines_of, own_files, read_own
from rltrace.trace.processes import Process, described, roles_of_parents
from rltrace.trace.real_times import end_what_was_left, of_real_times
from rltrace.trace.sampled import only_some
from rltrace.trace.schema import SPANS, TABLES
from rltrace.trace.segments import read_segments, segments_in
from rltrace.trace.stated import PROCESS as PROCESS_KINDS
from rltrace.trace.stated import fitting, problem_of
from rltrace.trace.strays import OTHER_RUN, OTHER_RUNS, known_of
from rltrace.trace.stream import Columns, joined
from rltrace.trace.texts import parsed


class RunFiles:
    """The files of the run in `path`, which `meta` (its run.json) describes.

    `manifest` is that of a compacted run, or None; `rest` are the tables of which segments may hold
    more than was compacted (of a run that was not: all); `clocks` say how a node's monotonic clock
    maps to the run's time; `names` number every text that a table read so far refers to; `dropped`
    is what was dropped to keep the run small, or None; `only_some` why nothing is
    told of samples. What was recorded after `as_of_ns` (Unix ns; None: no such moment) is not read:
    processes are read one after the other, while they go on.
    """

    def __init__(self, path: Path, meta: dict[str, Any]) -> None:
        self.path = path
        self._meta = meta
        self.problems: list[dict[str, Any]] = []
        self.as_of_ns: int | None = None
        self.manifest: Manifest | None = read_manifest(path)
        if self.manifest is None:
            check_readable(path)
        self.rest = frozenset(
            table
            for table in TABLES
            if self.manifest is None or self.manifest.has_rest(path, table)
        )
        self.names: dict[str, int] = {}
        if self.manifest is not None and self.rest:
            from rltrace.trace.compacted import name_texts

            self.names = {text: i for i, text in enumerate(name_texts(self.manifest))}
        self._name_tables: dict[str, np.ndarray[Any, Any]] = {}
        self._read_processes(meta)
        self._read_problem_files()
        self._find_elsewhere(meta)
        self.dropped = read_dropped(path, self.clocks)
        self.only_some = only_some(meta)

    def now_ns(self) -> int:
        """This moment on the run's time line (Unix ns), by the clock of this node's rows, too,
        where it is one of the run's: none that is stored is later."""
        now_ns = run_dir.now_ns(self._meta)
        clock = self.clocks.get(node_id())
        if clock is None:
            return now_ns
        return max(now_ns, int(clock.to_unix(np.array([monotonic_ns()], np.int64))[0]))

    def columns(self, name: str) -> Columns:
        """The columns of a table in the order of the schema and, after them, the process of each
        row; without what was compacted. To be asked once a table: what is wrong with its files is
        added to the problems."""
        table = TABLES[name]
        taken = None if self.manifest is None else self.manifest.taken.get(name)
        parts: list[Columns] = []
        for segment in read_segments(self.path / name, table, taken):
            if self._began_since(segment.who) or self.is_stray(name, segment.path):
                continue
            if segment.problem:
                self.problem("torn-file", f"{name}/{segment.path.name}", segment.problem)
            if segment.rows:
                parts.append(self.translated(name, segment.who, segment.columns))
        if parts:
            columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
            if name == SPANS.name:
                end_what_was_left(columns)
            return self._without_negative(name, self._as_of(name, columns))
        return [*joined(table, []), np.empty(0, np.int32)]

    def _as_of(self, name: str, columns: Columns) -> Columns:
        """The rows that there were at that moment, where one was set; spans as they were."""
        if self.as_of_ns is None:
            return columns
        there = columns[0] <= self.as_of_ns
        if not there.all():
            columns = [column[there] for column in columns]
        if name == "spans":
            end = [column.name for column in TABLES[name].columns].index("end_ns")
            columns[end][columns[end] > self.as_of_ns] = -1
        return columns

    def is_stray(self, name: str, path: Path) -> bool:
        """Whether a segment of a table is of another run, which is named among the problems."""
        who = path.name.rsplit(".", 2)[0]
        if who in self._numbers or known_of(who, self._meta, self._known, self.clocks) is not None:
            return False
        target = f"{name}/{path.name}"
        if not any(p["what"] == OTHER_RUN and p["target"] == target for p in self.problems):
            self.problem(OTHER_RUN, target, OTHER_RUNS)
        return True

    def _began_since(self, who: str) -> bool:
        """Whether a process has introduced itself since the processes were read, of a run that goes
        on."""
        if self.as_of_ns is None or who in self._numbers:
            return False
        return (self.path / run_dir.PROCESS / f"{who}.json").exists()

    def has_rows(self, name: str) -> bool:
        """Whether a table has any row in its segments."""
        return any(
            any(batches.each(lambda batch: bool(batch.stored.any())))
            for batches in segments_in(self.path / name, TABLES[name])
        )

    def rows_of_processes(self, name: str) -> Counter[int]:
        """About how many rows of a table each process has in its segments, which are not read."""
        rows: Counter[int] = Counter()
        for batches in segments_in(self.path / name, TABLES[name]):
            found = sum(batches.each(lambda batch: batch.stored_rows if batch.rows else 0))
            if found and not (self._began_since(batches.who) or self.is_stray(name, batches.path)):
                rows[self.number_of(batches.who)] += found
        return rows

    def _without_negative(self, name: str, columns: Columns) -> Columns:
        """What is counted is not below zero: such values are unknown, and a problem says so."""
        for column, below in make_unknown(TABLES[name], columns):
            said = f"{below:,} below zero, taken as unknown"
            self.problem("negative-values", f"{name}.{column}", said)
        return columns

    def problem(self, what: str, target: str, detail: str) -> None:
        """Adds one to the problems, unless it is known from when the run was compacted."""
        found = {"what": what, "target": target, "detail": detail}
        if self.manifest is None or found not in self.manifest.problems:
            self.problems.append(found)

    def _read_facts(self) -> dict[str, dict[str, Any]]:
        """What each process's own file says, by its `who`."""
        found = {}
        for path in self._own(run_dir.PROCESS, ".json"):
            target = f"{run_dir.PROCESS}/{path.name}"
            try:
                found[path.stem], odd = fitting(parsed(read_own(path)), PROCESS_KINDS)
            except (OSError, ValueError, TypeError) as error:
                self.problem("unreadable-file", target, str(error))
                continue
            for what in odd:
                self.problem("unreadable-file", target, f"{what}: taken as unknown")
        return found

    def _own(self, folder: str, suffix: str) -> list[Path]:
        """The run's own files in a folder; what is none is named."""
        plain, others = own_files(self.path / folder, suffix)
        for path in others:
            self.problem("unreadable-file", str(path.relative_to(self.path)), NO_PLAIN_FILE)
        return plain

    def _lines(self, folder: str, path: Path) -> list[str]:
        """The lines of a file of the run's; none of one that is not there."""
        try:
            return lines_of(read_own(path))
        except FileNotFoundError:
            return []
        except OSError as error:
            self.problem("unreadable-file", f"{folder}/{path.name}", str(error.strerror))
            return []

    def _read_processes(self, meta: dict[str, Any]) -> None:
        facts = self._read_facts()
        self._own(run_dir.CLOCKS, ".jsonl")  # what is no file there is named
        pairs, exchanges, bad_lines = read_clock_files(self.path / run_dir.CLOCKS)
        for line in bad_lines:
            self.problem("unreadable-line", f"{run_dir.CLOCKS}/{line}", "skipped")
        for fact in facts.values():
            pair = pair_of(fact.get("clock"))
            if pair is not None:
                pairs.setdefault(str(fact.get("node")), []).append(pair)
        self.clocks: dict[str, NodeClock] = align(str(meta.get("node")), pairs, exchanges)
        self.processes: list[Process] = []
        self._numbers: dict[str, int] = {}
        order = sorted(facts, key=lambda w: (facts[w].get("start_ns") or 0, w))
        if self.manifest is not None:
            known = set(self.manifest.processes)
            order = [*self.manifest.processes, *(who for who in order if who not in known)]
            self.problems += self.manifest.problems
        parents = roles_of_parents(facts)
        for who in order:
            self._add_process(who, facts.get(who, {}), parents.get(who))
            if (told := facts.get(who, {}).get(run_dir.RECORDING_STOPPED)) is not None:
                self._add_stopped(who, told)
        self._known = [process for process in self.processes if process.who in facts]

    def _add_process(self, who: str, facts: dict[str, Any], child_of: str | None = None) -> Process:
        process = described(len(self.processes), who, facts, self.clocks, child_of)
        self.processes.append(process)
        self._numbers[who] = process.number
        return process

    def _add_stopped(self, who: str, told: dict[str, Any]) -> None:
        """That a process stopped recording, where the disk had no room for a line that says so."""
        with suppress(ValueError, TypeError):
            problem = problem_of({**told, "what": run_dir.RECORDING_STOPPED, "who": who})
            self.problems.append(self._dated(problem, who))

    def _dated(self, problem: dict[str, Any], who: str) -> dict[str, Any]:
        """A problem of a process, when it came on the time line of the run where that is known."""
        at, number = problem.get("monotonic_ns"), self._numbers.get(who)
        clock = None if number is None else self.clocks.get(self.processes[number].node)
        if at is None or clock is None:
            return problem
        return {**problem, "real_ns": int(clock.to_unix(np.array([at], np.int64))[0])}

    def _read_problem_files(self) -> None:
        for path in self._own(run_dir.PROBLEMS, ".jsonl"):
            counted: dict[str, dict[str, Any]] = {}
            for line in self._lines(run_dir.PROBLEMS, path):
                try:
                    problem = {**self._dated(problem_of(parsed(line)), path.stem), "who": path.stem}
                    if "times" not in problem:
                        self.problems.append(problem)
                    elif (target := str(problem.get("target"))) in counted:
                        counted[target].update(problem)  # the same again: how often by now
                    else:
                        counted[target] = problem
                        self.problems.append(problem)
                except (ValueError, TypeError):
                    self.problem("unreadable-line", f"{run_dir.PROBLEMS}/{path.name}", "skipped")

    def _find_elsewhere(self, meta: dict[str, Any]) -> None:
        """Nodes that share no disk with this directory have only said here that they exist."""
        url = meta.get("shipped_to")
        if not isinstance(url, str) or (self.path / run_dir.FETCHED_FILE).exists():
            return
        if (self.path / run_dir.APART_FILE).exists():
            said = "this is what one node of the run recorded; all of it is elsewhere"
            self.problem(run_dir.ELSEWHERE, url, said)
        elif apart := len(list((self.path / run_dir.NODES).glob("*~*.json"))):
            others = f"{apart} other node{'s' * (apart != 1)} of the run"
            said = f"this is a part of the run, what {others} recorded is elsewhere"
            self.problem(run_dir.ELSEWHERE, url, said)

    def translated(self, name: str, who: str, stored: Columns) -> Columns:
        """Columns of rows that a process stored, with aligned times and global name ids, and its
        number. What began at no time that a clock can have shown is left out, and named."""
        number = self.number_of(who)
        clock = self.clocks.get(self.processes[number].node)
        columns = []
        for column, values in zip(TABLES[name].columns, stored, strict=True):
            if column.is_time and clock is not None:
                columns.append(clock.to_unix(values))
            elif column.is_name:
                columns.append(self._global_names(who, values))
            else:
                columns.append(values)
        columns, left_out = of_real_times(TABLES[name], columns)
        if left_out:
            said = f"{left_out:,} rows of no possible time: left out"
            self.problem("impossible-times", f"{name} of {who}", said)
        columns.append(np.full(len(columns[0]), number, np.int32))
        return columns

    def number_of(self, who: str) -> int:
        """The number of a process; one that has no file of its own gets one here."""
        number = self._numbers.get(who)
        if number is None:
            facts = known_of(who, self._meta, self._known, self.clocks) or {}
            lacks = "its role is unknown" if facts else "its clock and role are unknown"
            self.problem("no-process-file", who, lacks)
            number = self._add_process(who, facts).number
        return number

    def _global_names(self, who: str, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        table = self._name_tables.get(who)
        if table is None or int(ids.max(initial=-1)) >= len(table):  # it may have got more since
            table = self._name_tables[who] = self._name_table(who)
        beyond = ids >= len(table)
        unknown = self.names.setdefault("?", len(self.names)) if beyond.any() else -1
        lookup = np.concatenate([table, np.array([unknown, -1], np.int32)])
        return lookup[np.where(ids < 0, -1, np.minimum(ids, len(table)))]

    def _name_table(self, who: str) -> np.ndarray[Any, Any]:
        known: dict[int, str] = {}
        path = self.path / run_dir.NAMES / f"{who}.jsonl"
        for line in self._lines(run_dir.NAMES, path):
            named = name_of(line)
            if named is None:
                self.problem("unreadable-line", f"{run_dir.NAMES}/{path.name}", "skipped")
            else:
                known[named[0]] = named[1]
        texts = [known.get(i, "?") for i in range(max(known, default=-1) + 1)]
        ids = [self.names.setdefault(text, len(self.names)) for text in texts]
        return np.array(ids, np.int32)
