"""What the files of a run hold: its processes, names and problems, and its tables as columns.

Times are Unix nanoseconds on one time line for all nodes (`alignment`), names are numbers of one
list for the whole run. What cannot be read is named among the problems and skipped.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rltrace.trace import run_dir
from rltrace.trace.alignment import NodeClock, Pair, align, read_clock_files
from rltrace.trace.counted import make_unknown
from rltrace.trace.manifest import Manifest, read_manifest
from rltrace.trace.parents import roles_of_parents
from rltrace.trace.processes import Process, described
from rltrace.trace.schema import TABLES

if TYPE_CHECKING:
    from rltrace.trace.segments import Segment

Columns = list[np.ndarray[Any, Any]]


class RunFiles:
    """The files of the run in `path`, which `meta` (its run.json) describes.

    `manifest` is that of a compacted run, or None; `clocks` say how a node's monotonic clock maps
    to the run's time; `names` number every text that a table read so far refers to.
    """

    def __init__(self, path: Path, meta: dict[str, Any]) -> None:
        self.path = path
        self.problems: list[dict[str, Any]] = []
        self.manifest: Manifest | None = read_manifest(path)
        self.names: dict[str, int] = {}
        self._read_processes(meta)
        self._read_problem_files()

    def columns(self, name: str) -> Columns:
        """The columns of a table in the order of the schema and, last, the process of each row.
        To be asked once a table: what is wrong with its files is added to the problems."""
        from rltrace.trace.segments import NUMPY_KINDS, read_segments  # with pyarrow: 0.1 s

        table = TABLES[name]
        parts: list[Columns] = []
        for segment in read_segments(self.path / name, table):
            if segment.problem:
                self._problem("torn-file", f"{name}/{segment.path.name}", segment.problem)
            if segment.rows:
                parts.append(self._translated(name, segment))
        if parts:
            columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
            return self._without_negative(name, columns)
        return [np.empty(0, k) for k in (*(NUMPY_KINDS[c.kind] for c in table.columns), np.int32)]

    def _without_negative(self, name: str, columns: Columns) -> Columns:
        """What is counted is not below zero: such values are unknown, and a problem says so."""
        for column, below in make_unknown(TABLES[name], columns):
            said = f"{below:,} below zero, taken as unknown"
            self._problem("negative-values", f"{name}.{column}", said)
        return columns

    def _problem(self, what: str, target: str, detail: str) -> None:
        self.problems.append({"what": what, "target": target, "detail": detail})

    def _read_json_files(self, folder: str) -> dict[str, dict[str, Any]]:
        found = {}
        for path in sorted((self.path / folder).glob("*.json")):
            try:
                loaded = json.loads(path.read_text("utf-8"))
                found[path.stem] = {**loaded}
            except (OSError, ValueError, TypeError) as error:
                self._problem("unreadable-file", f"{folder}/{path.name}", str(error))
        return found

    def _read_processes(self, meta: dict[str, Any]) -> None:
        facts = self._read_json_files(run_dir.PROCESS)
        pairs, exchanges, bad_lines = read_clock_files(self.path / run_dir.CLOCKS)
        for line in bad_lines:
            self._problem("unreadable-line", f"{run_dir.CLOCKS}/{line}", "skipped")
        for fact in facts.values():
            clock = fact.get("clock")
            if isinstance(clock, dict) and not {"monotonic_ns", "real_ns"} - set(clock):
                pair: Pair = (clock["monotonic_ns"], clock["real_ns"], clock.get("bracket_ns", 0))
                pairs.setdefault(str(fact.get("node")), []).append(pair)
        self.clocks: dict[str, NodeClock] = align(str(meta.get("node")), pairs, exchanges)
        self.processes: list[Process] = []
        self._numbers: dict[str, int] = {}
        order = sorted(facts, key=lambda w: (facts[w].get("start_ns") or 0, w))
        if self.manifest is not None:
            order = self.manifest.processes
            self.problems += self.manifest.problems
        parents = roles_of_parents(facts)
        for who in order:
            self._add_process(who, facts.get(who, {}), parents.get(who))

    def _add_process(self, who: str, facts: dict[str, Any], child_of: str | None = None) -> Process:
        process = described(len(self.processes), who, facts, self.clocks, child_of)
        self.processes.append(process)
        self._numbers[who] = process.number
        return process

    def _read_problem_files(self) -> None:
        for path in sorted((self.path / run_dir.PROBLEMS).glob("*.jsonl")):
            counted: dict[str, dict[str, Any]] = {}
            for line in path.read_text("utf-8", "replace").splitlines():
                try:
                    problem = {**json.loads(line), "who": path.stem}
                    if "times" not in problem:
                        self.problems.append(problem)
                    elif (target := str(problem.get("target"))) in counted:
                        counted[target].update(problem)  # the same again: how often by now
                    else:
                        counted[target] = problem
                        self.problems.append(problem)
                except (ValueError, TypeError):
                    self._problem("unreadable-line", f"{run_dir.PROBLEMS}/{path.name}", "skipped")

    def _translated(self, name: str, segment: Segment) -> list[np.ndarray[Any, Any]]:
        """Columns of a segment with aligned times and global name ids, and its process number."""
        number = self._numbers.get(segment.who)
        if number is None:
            self._problem("no-process-file", segment.who, "its clock and role are unknown")
            number = self._add_process(segment.who, {}).number
        clock = self.clocks.get(self.processes[number].node)
        columns = []
        for column, values in zip(TABLES[name].columns, segment.columns, strict=True):
            if column.is_time and clock is not None:
                columns.append(clock.to_unix(values))
            elif column.is_name:
                columns.append(self._global_names(segment.who, values))
            else:
                columns.append(values)
        columns.append(np.full(segment.rows, number, np.int32))
        return columns

    def _global_names(self, who: str, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        table = self._name_table(who)
        highest = int(ids.max(initial=-1))
        if highest >= len(table):
            missing = [self.names.setdefault("?", len(self.names))] * (highest + 1 - len(table))
            table = np.concatenate([table, np.array(missing, np.int32)])
        lookup = np.concatenate([table, np.array([-1], np.int32)])
        return lookup[np.where(ids < 0, -1, ids)]

    def _name_table(self, who: str) -> np.ndarray[Any, Any]:
        known: dict[int, str] = {}
        path = self.path / run_dir.NAMES / f"{who}.jsonl"
        if path.exists():
            for line in path.read_text("utf-8", "replace").splitlines():
                try:
                    number, text = json.loads(line)
                    known[int(number)] = str(text).encode("utf-8", "replace").decode()
                except (ValueError, TypeError):
                    self._problem("unreadable-line", f"{run_dir.NAMES}/{path.name}", "skipped")
        texts = [known.get(i, "?") for i in range(max(known, default=-1) + 1)]
        ids = [self.names.setdefault(text, len(self.names)) for text in texts]
        return np.array(ids, np.int32)
