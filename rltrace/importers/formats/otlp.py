"""Spans of OpenTelemetry as OTLP JSON: one export, or one a line.

The collector's file exporter writes the latter. What the names mean, a mapping says; names that it
does not have are left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rltrace.adapters.log_table import LoggedProcess, PlacedRow, PlacedSpan, SpanNames, lane_of
from rltrace.importers.formats.json_text import Objects, read_objects
from rltrace.importers.placed_events import mapped, read_names
from rltrace.importers.run_writer import ImportedRun, traced_run
from rltrace.trace import vocabulary
from rltrace.trace.errors import RltraceError, WrongUsage
from rltrace.trace.schema import TABLES, WIDTH_BYTES, Column
from rltrace.trace.untrusted_files import NONSENSE
from rltrace.trace.vocabulary import OTLP_PREFIX, Stage, word

Attributes = dict[str, Any]
_Found = tuple[Attributes, dict[str, Any]]
"""The attributes of what sent a span, and the span."""


def read(path: Path, mapping: Path | None = None) -> ImportedRun:
    """By a mapping; what rltrace exported needs none. Errors: `RltraceError` for what is no export,
    or no mapping, or has none of the names that are mapped."""
    objects = read_objects(path)
    found = list(_spans(objects.objects))
    if not found:
        raise RltraceError(f"{path} is no OTLP JSON of spans: no resourceSpans with spans in it")
    if mapping is None:
        return _own(path, objects, found)
    names = read_names(mapping)
    chosen, notes = mapped(path, names, ((span["name"], (about, span)) for about, span in found))
    return traced_run(
        path,
        names.framework,
        names.framework,
        "OTLP JSON",
        (_placed(*each, stage, names) for stage, each in chosen),
        objects,
        placement=names.placement,
        notes=notes,
    )


def _own(path: Path, objects: Objects, found: list[_Found]) -> ImportedRun:
    rows: list[PlacedSpan | PlacedRow | None] = []
    senders: list[Attributes] = []  # of those
    for about, span in found:
        try:
            rows.append(_row(about, span, _attributes(span)))
            senders.append(about)
        except NONSENSE:
            continue
    spans = [row for row in rows if isinstance(row, PlacedSpan)]
    if not spans:
        raise WrongUsage(f"what the names in {path} mean has to be said: give a file with --map")
    framework = _most_said(senders, "framework") or "trace"
    damaged = len(found) - len(rows)
    return traced_run(
        path,
        framework,
        framework,
        "OTLP JSON of rltrace",
        spans,
        objects,
        rows=[row for row in rows if isinstance(row, PlacedRow)],
        placement=_most_said(senders, "placement"),
        never_told=("devices",),
        notes=[f"{damaged} spans that are damaged: left out"] * (damaged > 0),
    )


def _most_said(senders: list[Attributes], fact: str) -> str:
    said = Counter(
        str(about[OTLP_PREFIX + fact]) for about in senders if OTLP_PREFIX + fact in about
    )
    return max(said, key=said.__getitem__, default="")


def _spans(exports: list[dict[str, Any]]) -> Iterator[_Found]:
    """Each span with the attributes of what sent it."""
    for export in exports:
        for resource in _list(export, "resourceSpans"):
            about = _attributes(resource.get("resource"))
            for scope in _list(resource, "scopeSpans"):
                for span in _list(scope, "spans"):
                    if isinstance(span.get("name"), str):
                        yield about, span


def _list(holder: Any, name: str) -> list[dict[str, Any]]:
    found = holder.get(name) if isinstance(holder, dict) else None
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _attributes(holder: Any) -> dict[str, Any]:
    """Attributes as a mapping; a number in a text is one, as JSON has no 64 bits."""
    return {
        str(pair.get("key")): next(iter(value.values()))
        for pair in _list(holder, "attributes")
        if isinstance(value := pair.get("value"), dict) and value
    }


def _placed(about: Attributes, span: dict[str, Any], stage: Stage, names: SpanNames) -> PlacedSpan:
    service = str(about.get("service.name", "process"))
    pid = about.get("process.pid", about.get("service.instance.id"))
    name = service if pid is None else f"{service} {pid}"
    process = LoggedProcess(name, names.role_of(service), str(about.get("host.name", "")))
    attributes = _attributes(span)
    return PlacedSpan(
        process=process,
        lane=lane_of(attributes.get("thread.id", span.get("traceId"))),
        name=span["name"],
        stage=stage,
        start_ns=_ns(span.get("startTimeUnixNano")),
        end_ns=_ns(span.get("endTimeUnixNano")),
        step=names.step_of(attributes, span["name"]),
    )


def _ns(value: object) -> int:
    """Unix ns, which OTLP JSON writes as a text; 0, which is none, for anything else."""
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    return value if isinstance(value, int) and 0 < value < 1 << 63 else 0


# --- what rltrace itself exported: the run again, row by row

_TOO_LARGE = {kind: 1 << 8 * width - 1 for kind, width in WIDTH_BYTES.items()}


def _row(
    about: Attributes, span: dict[str, Any], attributes: Attributes
) -> PlacedSpan | PlacedRow | None:
    """None for a span of no table; `about`: what sent it. Errors: `NONSENSE` where damaged."""
    table = TABLES.get(str(attributes.get(f"{OTLP_PREFIX}table")))
    if table is None:
        return None
    columns: dict[str, float | str] = {
        column.name: _stored(column, attributes[OTLP_PREFIX + column.name])
        for column in table.columns
        if OTLP_PREFIX + column.name in attributes
    }
    start_ns, end_ns = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
    if not 0 < start_ns <= end_ns < _TOO_LARGE["q"]:
        raise ValueError(f"no time: {start_ns} to {end_ns}")
    process = _process(about)
    if table.name == "spans":
        stage, step = Stage(int(columns.pop("stage"))), int(columns.pop("step", -1))
        name, lane = str(columns.pop("name")), int(columns.pop("lane"))
        more = {column: int(value) for column, value in columns.items()}
        return PlacedSpan(process, lane, name, stage, start_ns, end_ns, step, more)
    if table.columns[0].name == "time_ns":
        columns["time_ns"] = start_ns
    else:
        columns |= {"start_ns": start_ns, "end_ns": end_ns}
    for event in span.get("events", ()):
        if table.name == "trajectories" and event.get("name") == "first token":
            columns["first_token_ns"] = int(event["timeUnixNano"])
    return PlacedRow(process, table.name, columns)


def _process(about: Attributes) -> LoggedProcess:
    rank = about.get(f"{OTLP_PREFIX}rank")
    return LoggedProcess(
        name=str(about.get("service.instance.id", "process")),
        role=str(about.get(f"{OTLP_PREFIX}role", "")) or str(about.get("service.name", "")),
        host=str(about.get("host.name", "")),
        rank=None if rank is None else int(rank),
    )


def _stored(column: Column, value: Any) -> float | str:
    if column.codes:
        codes = {word(member): int(member) for member in getattr(vocabulary, column.codes)}
        return codes[str(value)]
    if column.is_name:
        return str(value)
    if column.kind in "fd":
        return float(value)
    number = int(value)
    if not -_TOO_LARGE[column.kind] <= number < _TOO_LARGE[column.kind]:
        raise ValueError(f"{column.name} cannot be {number}")
    return number
