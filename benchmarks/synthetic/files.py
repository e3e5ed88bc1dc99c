"""A played-out workload and its files: what they have that a run made by hand has not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.synthetic.workload import Workload
from rltrace.testing import run_files
from rltrace.testing.inside.trace import PROBLEMS, Stage, Table, update_run_json
from rltrace.testing.run_files import (
    MAIN_LANE,
    SECOND,
    SPAN_COLUMNS,
    Columns,
    Interval,
    Process,
    ProcessFiles,
)

Ints = NDArray[np.int64]
SEGMENT_ROWS = 1_200_000
WEIGHTS_LANE = 2  # an engine takes new weights in on a thread of its own
Blocks = Callable[[Table, Columns], Iterator[tuple[Columns, bool]]]
"""Gives the rows of a table, some at a time, and whether these are the last."""


@dataclass
class Worker(Process):
    inner: list[Interval] = field(default_factory=list)  # where extra inner spans go


@dataclass
class PlayedBatch:
    """The samples generated during one step; arrays of shape (samples,)."""

    step: int
    trajectory: Ints
    group: Ints
    tokens: Ints
    start: Ints
    end: Ints
    env: Ints
    worker: Ints
    alive: NDArray[np.bool_]
    first_version: Ints
    used_step: Ints
    fate: Ints
    value: NDArray[np.float64]


@dataclass
class StepPlan:
    """One step: its window and, by stage, the union of the stage's intervals."""

    step: int
    window: Interval
    warmup: bool
    stages: dict[Stage, list[Interval]] = field(default_factory=dict)


@dataclass
class Timeline:
    processes: list[Worker]
    steps: list[StepPlan]
    batches: list[PlayedBatch]


def period_ns(steps: list[StepPlan]) -> int:
    """From the beginning of the first step to the end of the last, ns."""
    return steps[-1].window[1] - steps[0].window[0]


def at_once(_: Table, columns: Columns) -> Iterator[tuple[Columns, bool]]:
    yield columns, True


def write(
    path: Path, load: Workload, timeline: Timeline, blocks: Blocks = at_once, more_ns: int = 0
) -> int:
    """Write the run, with rows as `blocks` gives them for `more_ns` after the timeline; returns the
    number of span rows. Errors: FileExistsError, OSError."""
    coarse = sum(len(p.spans) for p in timeline.processes)
    places = sum(len(p.inner) for p in timeline.processes)
    each = max(0, load.spans - coarse) // places if places else 0
    files = partial(_JobFiles, load=load, each=each, blocks=blocks)
    end_ns = timeline.steps[-1].window[1] + SECOND + more_ns
    total = run_files.write(path, timeline.processes, end_ns, {"synthetic": asdict(load)}, files)
    if load.kill_step >= 0:
        update_run_json(str(path), exit_code=1)
    if load.torn:  # a segment that was cut inside its first batch, and a file that is no Arrow
        whole = min((path / "spans").glob("*.arrows"))
        (path / "spans" / "node0-9001-1.0.arrows").write_bytes(whole.read_bytes()[:1500])
        (path / "spans" / "node0-9002-1.0.arrows").write_text("this is not an Arrow stream\n")
    return total


@dataclass(kw_only=True)
class _JobFiles(ProcessFiles):
    load: Workload
    each: int  # inner spans of each interval that has some
    blocks: Blocks

    def described(self) -> dict[str, Any]:
        load, process = self.load, self.process
        facts = super().described() | {"cores": load.cores_per_node}
        if process.role == "agent":
            devices = [load.gpu_name] * len(range(process.node, load.gpus, load.nodes))
            if not devices:
                problem = {"what": "no-gpu", "detail": "NVML library not found"}
                (self.path / PROBLEMS / f"{self.who}.jsonl").write_text(json.dumps(problem) + "\n")
            facts["devices"] = devices
        return facts

    def spans(self) -> Columns:
        columns = super().spans()
        if self.each and self.process.inner:
            inner = self._inner()
            columns = {k: np.concatenate([v, inner[k]]) for k, v in columns.items()}
        order = np.argsort(columns["start_ns"], kind="stable")
        return {k: v[order] for k, v in columns.items()}

    def _inner(self) -> Columns:
        """`each` decode batches back to back inside every inner interval."""
        edges, each = np.array(self.process.inner, np.int64), self.each
        parts = np.arange(each + 1, dtype=np.float64) / each
        cuts = edges[:, :1] + (parts * (edges[:, 1:] - edges[:, :1])).astype(np.int64)
        n = len(edges) * each
        step = np.repeat(np.arange(len(edges)), each)
        columns: Columns = {name: np.full(n, -1, np.int32) for name in SPAN_COLUMNS}
        columns["start_ns"] = cuts[:, :-1].ravel()
        columns["end_ns"] = np.maximum(cuts[:, 1:] - 1, cuts[:, :-1]).ravel()
        columns["name"] = np.full(n, self.name("decode"), np.int32)
        columns["stage"] = np.full(n, int(Stage.ROLLOUT), np.int8)
        columns["step"] = columns["version"] = step.astype(np.int32)
        columns["lane"] = np.full(n, MAIN_LANE, np.int32)
        columns["tokens"] = np.full(n, 32, np.int32)
        return columns

    def table(self, table: Table, columns: Columns) -> int:
        """As that of a run made by hand; a long table has several segments."""
        columns = {name: self.numbers(values) for name, values in columns.items()}
        held: list[Columns] = []
        written = 0
        for block, ends in self.blocks(table, columns):
            held.append(block)
            rows = sum(len(one[table.columns[0].name]) for one in held)
            if ends or rows >= SEGMENT_ROWS:
                whole = {name: np.concatenate([one[name] for one in held]) for name in block}
                written += super().table(table, whole)
                held = []
        return written
