"""Runs made by hand, span by span or from arrays, and written as real run directories."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import rltrace
from rltrace.analysis.summary import summarize
from rltrace.report.notebook import Run
from rltrace.report.to_json import render
from rltrace.testing.played import MAIN_LANE, SECOND, START_NS, Interval, Process, Timeline
from rltrace.testing.run_files import write
from rltrace.testing.workload import Workload
from rltrace.trace.errors import RltraceError
from rltrace.trace.run_dir import PROCESS, update_run_json
from rltrace.trace.schema import TABLES
from rltrace.trace.vocabulary import Stage, word


def at(seconds: float) -> int:
    """Unix ns of a moment of the run."""
    return START_NS + round(seconds * SECOND)


def between(start_s: float, end_s: float) -> Interval:
    """An interval of the run in Unix ns; an end of -1 is one that never came."""
    return at(start_s), -1 if end_s == -1 else at(end_s)


def process(role: str, *spans: tuple[Any, ...], rank: int = 0, **more: Any) -> Process:
    """A process with spans `(stage, start_s, end_s)` or `(stage, start_s, end_s, lane)`. A stage is
    the vocabulary's word ("train") or code; `("step", n)` is the step of that number. Errors:
    `RltraceError` for a word that is no stage."""
    made = Process(role, rank, 0, **more)
    for stage, start_s, end_s, *lane in spans:
        where = {"lane": lane[0]} if lane else {}
        if isinstance(stage, tuple):
            made.span(between(start_s, end_s), "step", Stage.STEP, stage[1], **where)
        else:
            code = _stage(stage)
            made.span(between(start_s, end_s), word(code), code, -1, **where)
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
    arrays = {name: np.array(values) for name, values in _in_ns(columns).items()}
    made.rows(table, **arrays)
    return made


def run_of(path: Path, *processes: Process, **meta: Any) -> Run:
    """The run of these processes, on CPU, written to `path / "run"`. `meta` goes into its run.json:
    `framework="trl"`, `settings={...}`, `exit_code=1`. Errors: `FileExistsError` where a run is."""
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


def run_from_arrays(
    path: Path, tables: Mapping[str, Mapping[str, Any]], role: str = "trainer", **meta: Any
) -> Run:
    """A run of one process from columns by table, written to `path / "run"`.

    `tables` maps a table of docs/trace-format.md to its columns: arrays or lists of one length n.
    Names are text; a stage is a word or its code, other codes are numbers. A time may be in seconds
    of the run (`start_s` for `start_ns`), with -1 for one that never came. What is not given is
    unknown. Spans need `stage`, `start_s` and `end_s`; a `name` that is not given is the stage's.

    Errors: `RltraceError` for a table or a column that there is not, and columns of other lengths.
    """
    made, ended_ns = Process(role, 0, 0), START_NS
    for table, given in tables.items():
        if table not in TABLES:
            raise RltraceError(f"{table} is no table of a run: {', '.join(TABLES)}")
        known = [column.name for column in TABLES[table].columns]
        for name in given:
            if name not in known and f"{name.removesuffix('_s')}_ns" not in known:
                raise RltraceError(f"{table} has no column {name}: {', '.join(known)}")
        if len(lengths := {len(values) for values in given.values()}) > 1:
            raise RltraceError(f"the columns of {table} differ in length: {sorted(lengths)}")
        columns = _in_ns({name: list(values) for name, values in given.items()})
        times = [v for name, values in columns.items() if name.endswith("_ns") for v in values]
        ended_ns = max([ended_ns, *times])
        if table != "spans":
            made.rows(table, **{name: np.array(values) for name, values in columns.items()})
            continue
        if not {"stage", "start_ns", "end_ns"} <= columns.keys():
            raise RltraceError("spans need stage, start_s and end_s")
        stages = [_stage(stage) for stage in columns["stage"]]
        columns["stage"] = [int(stage) for stage in stages]
        named: dict[str, list[Any]] = {"name": [word(stage) for stage in stages]}
        columns = {**named, "lane": [MAIN_LANE] * len(stages), **columns}
        unknown = [-1] * len(stages)
        made.spans += zip(*(columns.get(name, unknown) for name in known), strict=True)
    return run_of(path, made, **{"end_real_ns": ended_ns + SECOND, **meta})


def _stage(stage: Stage | int | str) -> Stage:
    if not isinstance(stage, str):
        return Stage(stage)
    if stage.upper() not in Stage.__members__:
        raise RltraceError(f"{stage} is no stage: {', '.join(map(word, Stage))}")
    return Stage[stage.upper()]


def _in_ns(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Seconds of the run as Unix ns."""
    return {
        f"{name[:-2]}_ns" if name.endswith("_s") else name: (
            [-1 if v == -1 else at(v) for v in values] if name.endswith("_s") else values
        )
        for name, values in columns.items()
    }


def report_of(run: Run) -> dict[str, Any]:
    """What `rltrace report --json` says of a run."""
    return render(summarize(run))
