"""Runs made by hand, from spans or arrays, as real directories."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

import rltrace
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.summary import Summary, summary_of
from rltrace.analysis.whatif import workload_of_run
from rltrace.analysis.whatif.predict import Source
from rltrace.hooks.sample_api import identify
from rltrace.report.formats.to_json import render
from rltrace.report.notebook import Run
from rltrace.testing.run_files import MAIN_LANE, SECOND, START_NS, Interval, Process, write
from rltrace.trace import vocabulary
from rltrace.trace.errors import RltraceError
from rltrace.trace.metadata_validation import update_run_json
from rltrace.trace.read import run as trace
from rltrace.trace.run_dir import PROCESS
from rltrace.trace.schema import TABLES, Column
from rltrace.trace.segment import UNKNOWN
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
    `RltraceError` for a word that is no stage, and for spans of another form. What a broken clock
    may have written, an end before its start, is written."""
    made = Process(role, rank, 0, **more)
    for span in spans:
        if not isinstance(span, tuple) or len(span) not in (3, 4):
            raise RltraceError(f"{span} is no span: process(role, (stage, start_s, end_s), ...)")
        stage, start_s, end_s, lane = (*span, MAIN_LANE)[:4]
        step = stage[1] if isinstance(stage, tuple) else -1
        code = _stage(stage[0] if isinstance(stage, tuple) else stage)
        if (code is Stage.STEP) != (step >= 0):
            raise RltraceError(f'{span}: a step, and only a step, has a number: ("step", 0)')
        made.span(between(start_s, end_s), word(code), code, step, lane=lane)
    return made


def turns(*rollouts_s: float) -> list[tuple[Any, ...]]:
    """Spans of steps of 10 s: generation for that long, then training to the end."""
    spans: list[tuple[Any, ...]] = []
    for n, rollout_s in enumerate(rollouts_s):
        cut = 10 * n + rollout_s
        spans += [(("step", n), 10 * n, 10 * n + 10), (Stage.ROLLOUT, 10 * n, cut)]
        spans += [(Stage.TRAIN, cut, 10 * n + 10)]
    return spans


def rows(made: Process, table: str, **columns: Any) -> Process:
    """Adds rows of another table to a process. A column is a list, or one value for all rows; one
    that ends in `_s` becomes a ns column. None is unknown, a text is the word of a code or a job's
    own id. Errors: `RltraceError` for a table, a column or a word that there is not, columns of
    other lengths, and spans, which `process` takes."""
    if table == "spans":
        raise RltraceError("spans come with the process: process(role, (stage, start_s, end_s))")
    made.rows(table, **{name: np.array(v) for name, v in _checked(table, columns).items()})
    return made


def run_of(path: Path, *processes: Process, **meta: Any) -> Run:
    """The run of these processes, on CPU, written to `path / "run"`. `meta` goes into its run.json:
    `framework="trl"`, `settings={...}`, `exit_code=1`. Errors: `FileExistsError` where a run is."""
    folder = path / "run"
    write(folder, processes)
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

    `tables` maps a table of docs/reference/trace-format.md to its columns: n values each.
    Names are text, codes are words ("train") or numbers, and a text in a column of ids is a job's
    own id. A time may be in seconds of the run (`start_s` for `start_ns`), with -1 for one that
    never came. What is not given, or None, is unknown. Spans need `stage`, `start_s` and `end_s`; a
    `name` that is not given is the stage's.

    Errors: `RltraceError` for a table or a column that there is not, and columns of other lengths.
    """
    made, ended_ns = Process(role, 0, 0), START_NS
    for table, given in tables.items():
        columns = _checked(table, given)
        times = [v for name, values in columns.items() if name.endswith("_ns") for v in values]
        ended_ns = max([ended_ns, *times])
        if table == "spans":
            if not {"stage", "start_ns", "end_ns"} <= columns.keys():
                raise RltraceError("spans need stage, start_s and end_s")
            stages = columns["stage"] = [_stage(stage) for stage in columns["stage"]]
            columns.setdefault("name", [word(stage) for stage in stages])
            columns.setdefault("lane", [MAIN_LANE] * len(stages))
        made.rows(table, **{name: np.array(values) for name, values in columns.items()})
    return run_of(path, made, **{"end_real_ns": ended_ns + SECOND, **meta})


def _stage(stage: Stage | int | str) -> Stage:
    return _code(Stage, stage) if isinstance(stage, str) else Stage(stage)


def _code(kind: type[IntEnum], said: str) -> Any:
    for member in kind:
        if word(member) == said:
            return member
    raise RltraceError(f"{said} is no {kind.__name__.lower()}: {', '.join(map(word, kind))}")


def _checked(table: str, given: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Columns that the table has, of one length, as they are stored."""
    if table not in TABLES:
        raise RltraceError(f"{table} is no table of a run: {', '.join(TABLES)}")
    known = {column.name: column for column in TABLES[table].columns}
    lists = {n: v for n, v in given.items() if isinstance(v, list | tuple | range | np.ndarray)}
    size = max(map(len, lists.values()), default=1)
    columns: dict[str, list[Any]] = {}
    for name, values in given.items():
        in_s = name.endswith("_s") and f"{name.removesuffix('_s')}_ns" in known
        of = known.get(f"{name.removesuffix('_s')}_ns" if in_s else name)
        if of is None:
            raise RltraceError(f"{table} has no column {name}: {', '.join(known)}")
        if name in lists and len(lists[name]) != size:
            raise RltraceError(f"{table}: {name} has {len(lists[name])} rows, others have {size}")
        columns[of.name] = [_value(of, v, in_s) for v in lists.get(name, [values] * size)]
    if (marker := TABLES[table].columns[0].name) not in columns:
        marker = marker.replace("_ns", "_s")
        raise RltraceError(f"{table} need {marker}, without which a row is none")
    return columns


def _value(column: Column, value: Any, in_s: bool) -> Any:
    if column.kind in "fd":
        return UNKNOWN if value is None else value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return -1
    if in_s:
        return value if value == -1 else at(value)
    if isinstance(value, str) and column.codes:
        return _code(getattr(vocabulary, column.codes), value)
    return identify(value) if isinstance(value, str) and column.kind == "q" else value


def report_of(run: Run) -> dict[str, Any]:
    """What `rltrace report --json` says of a run."""
    return render(summarize(run))


def summarize(run: trace.OpenedRun, **options: Any) -> Summary:
    """All that its report shows; options are those of `RunAnalysis` and of `summary_of`."""
    how = {name: options.pop(name) for name in ("figures", "predict") if name in options}
    return summary_of(RunAnalysis(run, **options), **how)


def workload_of(run: trace.OpenedRun) -> Source:
    """Its workload, or the error that says why there is none."""
    return workload_of_run.workload_of(RunAnalysis(run))
