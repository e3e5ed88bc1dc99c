"""A log of any kind as the run that it tells of."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from rltrace.adapters.log_table import (
    PlacedRow,
    PlacedSpan,
    SpanNames,
    code_of,
    is_beside,
    log_tables,
    table_of,
)
from rltrace.importers.durations import read_durations
from rltrace.importers.formats import chrome, json_lines, otlp
from rltrace.importers.formats.json_text import read_all, read_objects
from rltrace.importers.log_detection import (
    MAPPED,
    importers,
    looks_like,
    told_by_files,
    told_by_form,
    whose,
)
from rltrace.importers.log_files import read_log
from rltrace.importers.log_records import Log, begins_with, files_of
from rltrace.importers.run_writer import ImportedRun, traced_run
from rltrace.trace.errors import RltraceError, WrongUsage, did_you_mean
from rltrace.trace.vocabulary import Stage


def read_run(
    path: Path, framework: str = "", mapping: Path | None = None, job: int | None = None
) -> ImportedRun:
    """The run of a log: of the framework that is named, or of the one that it looks like. `mapping`
    says what the names of a generic trace mean; `job` counts those that wrote into one log, from 1,
    and is the last by default. Errors: `RltraceError` for an unknown framework, a log that cannot
    be used, a mapping that is missing or not wanted."""
    if framework and framework not in importers():
        near = did_you_mean(framework, *importers())
        known = ", ".join(importers())
        raise WrongUsage(f"there is no importer for {framework!r}{near}: known are {known}")
    framework, log = (framework, None) if framework else _recognised(path)
    if mapping is not None and framework not in MAPPED:
        raise WrongUsage(f"{framework} names its own stages: --map is for {' and '.join(MAPPED)}")
    if mapping is None and framework in MAPPED:
        raise WrongUsage(f"what the names in {path} mean has to be said: give a file with --map")
    try:
        if mapping is not None:
            read = otlp.read if framework == "otlp" else chrome.read
            return read(path, mapping)
        return _read(path, framework, log, job)
    except RltraceError as error:
        hint = "" if "rltrace import" in str(error) else looks_like(path, framework)
        if not hint:
            raise
        raise WrongUsage(f"{error}; {hint}") from None


def _recognised(path: Path) -> tuple[str, Log | None]:
    """Whose log it is, and the log where it had to be read to tell. Errors: `RltraceError`."""
    if found := told_by_files(path) if path.is_dir() else told_by_form(path):
        return found, None
    log = read_log(path, _settings(*log_tables()))
    if named := whose(log):
        return named, log
    names = sorted({name for record in log.records for name in record.metrics})
    has = f"it has {', '.join(names[:4])}" if names else "no figure of a step was found in it"
    has = f"{has}; {log.end}" if log.end else has
    raise RltraceError(f"{path} is no log that rltrace knows ({has}): name its framework with --as")


def _settings(*frameworks: str) -> dict[str, re.Pattern[str]]:
    """What to look for in the configuration that a log shows."""
    told = dict.fromkeys(it for f in frameworks for it in table_of(f).get("settings", {}).items())
    # Several may have a setting of one name: a pattern each, in each of which is one group.
    return {name: re.compile("|".join(p for n, p in told if n == name)) for name, _ in told}


def _read(path: Path, framework: str, log: Log | None, job: int | None) -> ImportedRun:
    table = log_tables()[framework]
    for entry in table.get("objects", ()):
        files = files_of(path, entry["mark"].encode(), *entry["files"])
        if files or not table_of(framework).keys() & {"inside", "trainers"}:
            files = files or [path]
            return _of_objects(path, framework, entry, files)
    if history := table.get("history"):
        state = path / history["files"][0] if path.is_dir() else path
        marks = (f'"{key}"'.encode() for key in (history["array"], *history["beside"]))
        if state.is_file() and (state.name in history["files"] or begins_with(state, *marks)):
            log = json_lines.read_history(
                state, history["files"][0], history["array"], table.get("sums", ())
            )
    if log is None:
        log = read_log(path, _settings(framework), table.get("like", framework))
    log = _numbered_through(log) if table.get("epochs") else log
    log = _of_learner(log, {*table_of(framework).get("learner", ())})
    return read_durations(_one_job(log, job, table_of(framework)), framework)


def _of_objects(
    path: Path, framework: str, entry: dict[str, Any], files: list[Path]
) -> ImportedRun:
    """The run of JSON objects of a framework's own."""
    read, placement = code_of(framework, entry["read"]), entry.get("placement", "")
    if entry.get("form") == "chrome":
        if len(files) > 1:
            said = f"{path} holds events of several processes, each with a clock of its own: name "
            raise WrongUsage(f"{said}one of {', '.join(file.name for file in files[:5])}")
        names = SpanNames(
            log_tables()[framework]["spans"], framework, placement, tuple(entry["steps"])
        )
        objects = read_objects(files[0])
        events = [*objects.objects, *read(objects.objects)]
        return chrome.lay_out(files[0], replace(objects, objects=events), names, entry["trainer"])
    lines = read_all(files)
    found: list[PlacedSpan | PlacedRow | str] = list(read(lines.objects))
    spans = [one for one in found if isinstance(one, PlacedSpan)]
    return traced_run(
        path, framework, entry["trainer"], entry["kind"], spans, lines, placement=placement,
        rows=[one for one in found if isinstance(one, PlacedRow)],
        unknown=[(Stage[stage.upper()], why) for stage, why in entry.get("unknown", {}).items()],
        notes=(*(one for one in found if isinstance(one, str)), *entry.get("notes", ())),
    )  # fmt: skip


def _numbered_through(log: Log) -> Log:
    """A log whose steps are counted within each epoch, with the numbers of the whole job."""
    before, last, records = 0, 0, []
    for record in log.records:
        before += last if record.step < last else 0
        last = record.step
        records.append(replace(record, step=before + record.step))
    return replace(log, records=tuple(records))


def _of_learner(log: Log, names: set[str]) -> Log:
    """A log into which several processes write with the steps of the learner, which has these
    metrics: what others say of a step is put to it, but for what both say."""
    mine = [record for record in log.records if not names.isdisjoint(record.readings)]
    others = {one.step: one.metrics for one in log.records if names.isdisjoint(one.readings)}
    whole = [replace(one, metrics=others.get(one.step, {}) | one.metrics) for one in mine]
    return replace(log, records=tuple(whole)) if mine else log


def _one_job(log: Log, job: int | None, table: Mapping[str, Any]) -> Log:
    """The log of one job. Where step numbers begin again at the first, or before it, another job
    wrote on; one that goes on from a checkpoint begins later. Errors: `WrongUsage` for no such."""
    starts, numbers = [0], list[int]()
    for at, record in enumerate(log.records):
        if is_beside(record.readings, table):
            continue
        if len(numbers) > 1 and record.step <= numbers[0] < numbers[-1]:
            starts.append(at)
            numbers = []
        numbers.append(record.step)
    jobs = f"{len(starts)} job{'s' * (len(starts) > 1)}"
    if job is not None and not 1 <= job <= len(starts):
        raise WrongUsage(f"{log.path} holds {jobs}: there is no job {job}")
    if len(starts) == 1:
        return log
    chosen = job or len(starts)
    bounds = [*starts, len(log.records)]
    parts = [log.records[a:b] for a, b in pairwise(bounds)]
    steps = ", ".join(f"{part[0].step} to {part[-1].step}" for part in parts)
    said = f"{jobs} are in it (steps {steps}): this is job {chosen}, --job N takes another"
    return replace(log, records=parts[chosen - 1], notes=(*log.notes, said))
