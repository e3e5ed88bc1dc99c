"""Runs made by hand, span by span, and written as a real run directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import rltrace
from benchmarks.synthetic.files import write
from benchmarks.synthetic.played import SECOND, START_NS, Interval, Process, Timeline
from benchmarks.synthetic.workload import Workload
from rltrace.trace.run import Run
from rltrace.trace.run_dir import PROCESS, update_run_json
from rltrace.trace.vocabulary import Stage


def at(seconds: float) -> int:
    """Unix ns of a moment of the run."""
    return START_NS + round(seconds * SECOND)


def between(start_s: float, end_s: float) -> Interval:
    """An interval of the run in Unix ns; an end of -1 is one that never came."""
    return at(start_s), -1 if end_s == -1 else at(end_s)


def process(role: str, *spans: tuple[Any, ...], rank: int = 0, **more: Any) -> Process:
    """A process with spans `(stage, start_s, end_s)` or `(stage, start_s, end_s, lane)`; a stage
    `("step", n)` is the step of that number."""
    made = Process(role, rank, 0, **more)
    for stage, start_s, end_s, *lane in spans:
        where = {"lane": lane[0]} if lane else {}
        if isinstance(stage, tuple):
            made.span(between(start_s, end_s), "step", Stage.STEP, stage[1], **where)
        else:
            made.span(between(start_s, end_s), stage.name.lower(), stage, -1, **where)
    return made


def turns(*rollouts_s: float) -> list[tuple[Any, ...]]:
    """Spans of steps of 10 s: generation for that long, then training to the end."""
    spans: list[tuple[Any, ...]] = []
    for n, rollout_s in enumerate(rollouts_s):
        cut = 10 * n + rollout_s
        spans += [(("step", n), 10 * n, 10 * n + 10), (Stage.ROLLOUT, 10 * n, cut)]
        spans += [(Stage.TRAIN, cut, 10 * n + 10)]
    return spans


def rows(made: Process, table: str, **columns: list[Any]) -> Process:
    """Adds rows of another table to a process; columns that end in `_s` become ns columns."""
    arrays = {}
    for name, values in columns.items():
        if name.endswith("_s"):
            moments = [-1 if v == -1 else at(v) for v in values]
            arrays[f"{name[:-2]}_ns"] = np.array(moments, np.int64)
        else:
            arrays[name] = np.array(values)
    made.rows(table, **arrays)
    return made


def run_of(path: Path, *processes: Process, **meta: Any) -> Run:
    """The run of these processes, on CPU."""
    folder = path / "run"
    write(folder, Workload(gpus=0), Timeline(list(processes), [], []))
    if meta:
        update_run_json(str(folder), **meta)
    return rltrace.open_run(folder)


def stating(run: Run, *facts: dict[str, Any]) -> Run:
    """The run, once its first processes have stated these facts of themselves."""
    for file, more in zip(sorted((run.path / PROCESS).iterdir()), facts, strict=False):
        file.write_text(json.dumps({**json.loads(file.read_text()), **more}))
    return rltrace.open_run(run.path)
