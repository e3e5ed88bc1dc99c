"""Processes of a job and their rows, written as a run directory by the writer that jobs use."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.metadata_validation import update_run_json
from rltrace.trace.read.segment_batches import dtype
from rltrace.trace.run_dir import CLOCKS, NAMES, PROCESS, create_run, dumps
from rltrace.trace.schema import TABLES, Table
from rltrace.trace.segment import TableWriter
from rltrace.trace.vocabulary import Stage

Column = NDArray[np.generic]
Interval = tuple[int, int]

SpanRow = tuple[int, int, str, int, int, int, int, int, int, int, int]

SECOND = 1_000_000_000
START_NS = 1_790_000_000 * SECOND
MAIN_LANE = 1


@dataclass
class Process:
    """One process of the job and the rows that it records (Unix ns; names as text)."""

    role: str
    rank: int
    node: int
    devices: tuple[int, ...] = ()
    spans: list[SpanRow] = field(default_factory=list)
    columns: dict[str, list[dict[str, Column]]] = field(default_factory=dict)

    def span(
        self,
        interval: Interval,
        name: str,
        stage: Stage,
        step: int,
        *,
        phase: int = -1,
        lane: int = MAIN_LANE,
        tokens: int = -1,
        size: int = -1,
    ) -> None:
        """The policy version is the step's."""
        self.spans.append((*interval, name, int(stage), phase, step, step, lane, tokens, size, -1))

    def rows(self, table: str, **columns: Column) -> None:
        self.columns.setdefault(table, []).append(columns)


RTT_NS = 80_000
EXCHANGE_NS = 60 * SECOND
SPAN_COLUMNS = [c.name for c in TABLES["spans"].columns]

Columns = dict[str, NDArray[Any]]


def write(
    path: Path,
    processes: Sequence[Process],
    end_ns: int = START_NS + SECOND,
    settings: Mapping[str, Any] | None = None,
    files: Callable[[Path, Process, int, WrittenClock], ProcessFiles] | None = None,
) -> int:
    """Writes the run, which ended at `end_ns` (Unix), each process by its `files`; returns the
    number of span rows. Errors: FileExistsError, OSError."""
    create_run(str(path), ["python", "train.py"], dict(settings or {}), "synthetic")
    nodes = {process.node for process in processes} | {0}
    clocks = {node: WrittenClock(node) for node in sorted(nodes)}
    told = {"start_real_ns": START_NS, "end_real_ns": end_ns, "exit_code": 0}
    update_run_json(str(path), **told, node=clocks[0].node)
    for clock in clocks.values():
        clock.write(path, end_ns, clocks[0])
    make = files or ProcessFiles
    return sum(
        make(path, process, pid, clocks[process.node]).write()
        for pid, process in enumerate(processes, 4001)
    )


class WrittenClock:
    """A node's clock: its monotonic zero and the error of its real time."""

    def __init__(self, node: int) -> None:
        self.node = f"00000000-0000-4000-8000-{node:012d}-4026531834"
        self.boot = self.node.rsplit("-", 1)[0]
        self.zero_ns = START_NS - (3600 + 7200 * node) * SECOND - node * 123_456_789
        self.real_error_ns = 5 * SECOND * node

    def pair(self, now: int) -> dict[str, int]:
        real_ns = now + self.real_error_ns
        return {"monotonic_ns": now - self.zero_ns, "real_ns": real_ns, "bracket_ns": 200}

    def write(self, path: Path, end: int, reference: WrittenClock) -> None:
        lines: list[dict[str, Any]] = []
        offset = {"offset_ns": self.zero_ns - reference.zero_ns, "rtt_ns": RTT_NS}
        for now in range(START_NS, end, 5 * SECOND):
            lines.append({"kind": "pair", **self.pair(now)})
            if reference is not self and (now - START_NS) % EXCHANGE_NS == 0:
                at = {"peer": reference.node, "at_ns": now - self.zero_ns}
                lines.append({"kind": "exchange", **at, **offset})
        text = "".join(dumps(line) + "\n" for line in lines)
        (path / CLOCKS / f"{self.node}.jsonl").write_text(text)


@dataclass
class ProcessFiles:
    path: Path
    process: Process
    pid: int
    clock: WrittenClock
    names: dict[str, int] = field(default_factory=dict)

    @property
    def who(self) -> str:
        return f"node{self.process.node}-{self.pid}-{3600 + self.pid}"

    def write(self) -> int:
        facts = json.dumps(self.described())
        (self.path / PROCESS / f"{self.who}.json").write_text(facts + "\n")
        total = self.table(TABLES["spans"], self.spans())
        for table, parts in self.process.columns.items():
            self.table(TABLES[table], {k: np.concatenate([p[k] for p in parts]) for k in parts[0]})
        lines = (json.dumps([number, text]) + "\n" for text, number in self.names.items())
        (self.path / NAMES / f"{self.who}.jsonl").write_text("".join(lines))
        return total

    def described(self) -> dict[str, Any]:
        process = self.process
        return {
            "who": self.who,
            "host": f"node{process.node}",
            "pid": self.pid,
            "ppid": 4000,
            "node": self.clock.node,
            "boot_id": self.clock.boot,
            "time_ns": 4026531834,
            "argv": ["python", "train.py"],
            "python": "3.11.9",
            "start_ns": START_NS - self.clock.zero_ns,
            "clock": self.clock.pair(START_NS),
            "role": process.role,
            "rank": process.rank,
            "devices": [str(device) for device in process.devices] or None,
            "adapter": "synthetic",
            "versions": {},
            "parameters": 7_615_616_512 if process.role == "learner" else -1,
            "cores": 16,
        }

    def spans(self) -> Columns:
        rows = self.process.spans
        named = [(*row[:2], self.name(row[2]), *row[3:]) for row in rows]
        columns = np.array(named, np.int64).reshape(len(rows), len(SPAN_COLUMNS))
        # A process stores a span as it begins, so its rows are in the order of their beginnings.
        columns = columns[np.argsort(columns[:, 0], kind="stable")]
        return {name: columns[:, i] for i, name in enumerate(SPAN_COLUMNS)}

    def name(self, text: str) -> int:
        return self.names.setdefault(text, len(self.names))

    def table(self, table: Table, columns: Columns) -> int:
        """Writes rows of a table, into segments after those that it has; how many."""
        stored: dict[str, Any] = {}
        for number, column in enumerate(table.columns):
            if column.name in columns:
                values = self.numbers(columns[column.name]).astype(dtype(table, number))
                if column.is_time:
                    values = np.where(values < 0, -1, values - self.clock.zero_ns)
                stored[column.name] = values.data
        count = len(stored[table.columns[0].name])
        TableWriter(table, f"{self.path}/{table.name}", self.who).extend(count, stored)
        return count

    def numbers(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Texts as ids of names."""
        if values.dtype.kind != "U":
            return values
        texts, place = np.unique(values, return_inverse=True)
        return np.array([self.name(str(text)) for text in texts], np.int32)[place]
