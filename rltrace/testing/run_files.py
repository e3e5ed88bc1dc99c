"""Writes a played-out workload as a run directory; its segments are stock Arrow IPC streams."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rltrace.testing.timeline_rows import (
    MAIN_LANE,
    SECOND,
    START_NS,
    Process,
    Timeline,
)
from rltrace.testing.workload import Workload
from rltrace.trace.read.segment_batches import dtype, unknown
from rltrace.trace.run_dir import (
    CLOCKS,
    NAMES,
    PROBLEMS,
    PROCESS,
    create_run,
    dumps,
    update_run_json,
)
from rltrace.trace.schema import TABLES, Table
from rltrace.trace.vocabulary import Stage

BATCH_ROWS = 8192
SEGMENT_ROWS = 1_200_000
RTT_NS = 80_000
EXCHANGE_NS = 60 * SECOND
EMPTY_ROWS = 100  # space that was allocated and never used, at the end of each last batch
SPAN_COLUMNS = [c.name for c in TABLES["spans"].columns]

Columns = dict[str, NDArray[Any]]
Blocks = Callable[[Table, Columns], Iterator[tuple[Columns, bool]]]
"""Gives the rows of a table, some at a time, and whether these are the last."""


def at_once(_: Table, columns: Columns) -> Iterator[tuple[Columns, bool]]:
    yield columns, True


def write(
    path: Path, load: Workload, timeline: Timeline, blocks: Blocks = at_once, more_ns: int = 0
) -> int:
    """Write the run, with rows as `blocks` gives them for `more_ns` after the timeline; returns the
    number of span rows. Errors: FileExistsError, OSError."""
    create_run(str(path), ["python", "train.py"], {"synthetic": asdict(load)}, "synthetic")
    clocks = [_Clock(node) for node in range(load.nodes)]
    end = (timeline.steps[-1].window[1] if timeline.steps else START_NS) + SECOND + more_ns
    code = 0 if load.kill_step < 0 else 1
    told = {"start_real_ns": START_NS, "end_real_ns": end, "exit_code": code}
    update_run_json(str(path), **told, node=clocks[0].node)
    for clock in clocks:
        clock.write(path, end, clocks[0])
    coarse = sum(len(p.spans) for p in timeline.processes)
    places = sum(len(p.inner) for p in timeline.processes)
    each = max(0, load.spans - coarse) // places if places else 0
    total = 0
    for pid, process in enumerate(timeline.processes, 4001):
        total += _ProcessFiles(path, load, process, pid, clocks[process.node], blocks).write(each)
    if load.torn:  # a segment that was cut inside its first batch, and a file that is no Arrow
        whole = min((path / "spans").glob("*.arrows"))
        (path / "spans" / "node0-9001-1.0.arrows").write_bytes(whole.read_bytes()[:1500])
        (path / "spans" / "node0-9002-1.0.arrows").write_text("this is not an Arrow stream\n")
    return total


class _Clock:
    """A node's clock: its monotonic zero and the error of its real time."""

    def __init__(self, node: int) -> None:
        self.node = f"00000000-0000-4000-8000-{node:012d}-4026531834"
        self.boot = self.node.rsplit("-", 1)[0]
        self.zero_ns = START_NS - (3600 + 7200 * node) * SECOND - node * 123_456_789
        self.real_error_ns = 5 * SECOND * node

    def pair(self, now: int) -> dict[str, int]:
        real_ns = now + self.real_error_ns
        return {"monotonic_ns": now - self.zero_ns, "real_ns": real_ns, "bracket_ns": 200}

    def write(self, path: Path, end: int, reference: _Clock) -> None:
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
class _ProcessFiles:
    path: Path
    load: Workload
    process: Process
    pid: int
    clock: _Clock
    blocks: Blocks
    names: dict[str, int] = field(default_factory=dict)

    @property
    def who(self) -> str:
        return f"node{self.process.node}-{self.pid}-{3600 + self.pid}"

    def write(self, inner_each: int) -> int:
        self._describe()
        total = self._table(TABLES["spans"], self._spans(inner_each))
        for table, parts in self.process.columns.items():
            self._table(TABLES[table], {k: np.concatenate([p[k] for p in parts]) for k in parts[0]})
        lines = (json.dumps([number, text]) + "\n" for text, number in self.names.items())
        (self.path / NAMES / f"{self.who}.jsonl").write_text("".join(lines))
        return total

    def _describe(self) -> None:
        load, process = self.load, self.process
        devices: list[str] | None = [str(device) for device in process.devices] or None
        if process.role == "agent":
            devices = [load.gpu_name] * len(range(process.node, load.gpus, load.nodes))
            if not devices:
                problem = {"what": "no-gpu", "detail": "NVML library not found"}
                (self.path / PROBLEMS / f"{self.who}.jsonl").write_text(json.dumps(problem) + "\n")
        described = {
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
            "devices": devices,
            "adapter": "synthetic",
            "versions": {},
            "parameters": 7_615_616_512 if process.role == "learner" else -1,
            "cores": load.cores_per_node,
        }
        (self.path / PROCESS / f"{self.who}.json").write_text(json.dumps(described) + "\n")

    def _spans(self, inner_each: int) -> Columns:
        rows = self.process.spans
        named = [(*row[:2], self._name(row[2]), *row[3:]) for row in rows]
        coarse = np.array(named, np.int64).reshape(len(rows), len(SPAN_COLUMNS))
        columns: Columns = {name: coarse[:, i] for i, name in enumerate(SPAN_COLUMNS)}
        if inner_each and self.process.inner:
            inner = self._inner(inner_each)
            columns = {k: np.concatenate([v, inner[k]]) for k, v in columns.items()}
        # A process stores a span as it begins, so its rows are in the order of their beginnings.
        order = np.argsort(columns["start_ns"], kind="stable")
        return {k: v[order] for k, v in columns.items()}

    def _inner(self, each: int) -> Columns:
        """`each` decode batches back to back inside every inner interval."""
        edges = np.array(self.process.inner, np.int64)
        parts = np.arange(each + 1, dtype=np.float64) / each
        cuts = edges[:, :1] + (parts * (edges[:, 1:] - edges[:, :1])).astype(np.int64)
        n = len(edges) * each
        step = np.repeat(np.arange(len(edges)), each)
        columns: Columns = {name: np.full(n, -1, np.int32) for name in SPAN_COLUMNS}
        columns["start_ns"] = cuts[:, :-1].ravel()
        columns["end_ns"] = np.maximum(cuts[:, 1:] - 1, cuts[:, :-1]).ravel()
        columns["name"] = np.full(n, self._name("decode"), np.int32)
        columns["stage"] = np.full(n, int(Stage.ROLLOUT), np.int8)
        columns["step"] = columns["version"] = step.astype(np.int32)
        columns["lane"] = np.full(n, MAIN_LANE, np.int32)
        columns["tokens"] = np.full(n, 32, np.int32)
        return columns

    def _name(self, text: str) -> int:
        return self.names.setdefault(text, len(self.names))

    def _table(self, table: Table, columns: Columns) -> int:
        columns = {name: self._numbers(values) for name, values in columns.items()}
        marker = table.columns[0].name
        written = segment = 0
        writer: pa.ipc.RecordBatchStreamWriter | None = None
        for block, is_last in self.blocks(table, columns):
            n = len(block[marker])
            for first in range(0, n, BATCH_ROWS):
                if writer is None or written >= SEGMENT_ROWS * segment:
                    if writer is not None:
                        writer.close()
                    target = self.path / table.name / f"{self.who}.{segment}.arrows"
                    writer = pa.ipc.new_stream(target, _schema(table))
                    segment += 1
                last = min(first + BATCH_ROWS, n)
                writer.write_batch(self._batch(table, block, first, last, is_last and last == n))
                written += last - first
        if writer is not None:
            writer.close()
        return written

    def _numbers(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Texts as ids of names."""
        if values.dtype.kind != "U":
            return values
        texts, place = np.unique(values, return_inverse=True)
        return np.array([self._name(str(text)) for text in texts], np.int32)[place]

    def _batch(
        self, table: Table, columns: Columns, first: int, last: int, pad: bool
    ) -> pa.RecordBatch:
        arrays = []
        for number, column in enumerate(table.columns):
            kind = dtype(table, number)
            if column.name not in columns:
                values = unknown(table, number, last - first)
            else:
                values = columns[column.name][first:last].astype(kind, copy=False)
            if column.is_time:
                values = np.where(values < 0, -1, values - self.clock.zero_ns)
            if pad:
                byte = b"\0" if number == 0 else b"\xff"  # the first column marks stored rows
                empty = np.frombuffer(byte * EMPTY_ROWS * kind.itemsize, kind)
                values = np.concatenate([values, empty])
            arrays.append(pa.array(values))
        return pa.RecordBatch.from_arrays(arrays, schema=_schema(table))


def _schema(table: Table) -> pa.Schema:
    kinds = {c.name: pa.from_numpy_dtype(dtype(table, i)) for i, c in enumerate(table.columns)}
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in kinds.items()])
