"""Spans of OpenTelemetry as OTLP JSON: one export, or one a line as the collector's file exporter
writes them. What the names mean, a mapping says; names that it does not have are left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rltrace.importers import otlp_own
from rltrace.importers.chrome import lane_of
from rltrace.importers.fitting import counted
from rltrace.importers.json_text import Objects, read_objects
from rltrace.importers.placed import Names, PlacedRow, PlacedSpan, Process, read_names
from rltrace.importers.run_writer import ImportedRun, traced_run
from rltrace.trace.errors import RltraceError, WrongUsage

_Found = tuple[dict[str, Any], dict[str, Any]]
"""The attributes of what sent a span, and the span."""


def read(path: Path, mapping: Path | None = None) -> ImportedRun:
    """Reads exported spans by a mapping; what rltrace exported needs none. Errors: `RltraceError`
    for what is no export, or no mapping, or has none of the names that are mapped."""
    objects = read_objects(path)
    found = list(_spans(objects.objects))
    if not found:
        raise RltraceError(f"{path} is no OTLP JSON of spans: no resourceSpans with spans in it")
    if mapping is None:
        return _own(path, objects, found)
    names = read_names(mapping)
    left_out = Counter(span["name"] for _, span in found if names.stage_of(span["name"]) is None)
    spans = [span for each in found if (span := _placed(*each, names)) is not None]
    if not spans:
        raise RltraceError(
            f"{path} has none of the names that are mapped; it has {counted(left_out)}"
        )
    notes = [f"{left_out.total()} spans of names that are not mapped: left out"] if left_out else []
    return traced_run(
        path,
        names.framework,
        names.framework,
        "OTLP JSON",
        spans,
        objects.changed_ns,
        placement=names.placement,
        notes=(*objects.notes, *notes),
    )


def _own(path: Path, objects: Objects, found: list[_Found]) -> ImportedRun:
    spans: list[PlacedSpan] = []
    others: list[PlacedRow] = []
    frameworks: Counter[str] = Counter()
    placements: Counter[str] = Counter()
    damaged = 0
    for about, span in found:
        try:
            row = otlp_own.row(about, span, _attributes(span))
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            damaged += 1
            continue
        if isinstance(row, PlacedSpan):
            spans.append(row)
        elif row is not None:
            others.append(row)
        frameworks.update(str(v) for k, v in about.items() if k == "rltrace.framework")
        placements.update(str(v) for k, v in about.items() if k == "rltrace.placement")
    if not spans:
        raise WrongUsage(f"what the names in {path} mean has to be said: give a file with --map")
    ((framework, _),) = frameworks.most_common(1) or (("trace", 0),)
    return traced_run(
        path,
        framework,
        framework,
        "OTLP JSON of rltrace",
        spans,
        objects.changed_ns,
        rows=others,
        placement=next(iter(placements), ""),
        never_told=("devices",),
        notes=(*objects.notes, *([f"{damaged} spans that are damaged: left out"] * (damaged > 0))),
    )


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
    found = {}
    for pair in _list(holder, "attributes"):
        value = pair.get("value")
        if isinstance(value, dict) and value:
            found[str(pair.get("key"))] = next(iter(value.values()))
    return found


def _placed(about: dict[str, Any], span: dict[str, Any], names: Names) -> PlacedSpan | None:
    stage = names.stage_of(span["name"])
    start_ns, end_ns = _ns(span.get("startTimeUnixNano")), _ns(span.get("endTimeUnixNano"))
    if stage is None or start_ns is None or end_ns is None or end_ns < start_ns:
        return None
    service = str(about.get("service.name", "process"))
    pid = about.get("process.pid", about.get("service.instance.id"))
    name = service if pid is None else f"{service} {pid}"
    process = Process(name, names.role_of(service), str(about.get("host.name", "")))
    attributes = _attributes(span)
    return PlacedSpan(
        process=process,
        lane=lane_of(attributes.get("thread.id", span.get("traceId"))),
        name=span["name"],
        stage=stage,
        start_ns=start_ns,
        end_ns=end_ns,
        step=names.step_of(attributes, span["name"]),
    )


def _ns(value: object) -> int | None:
    """Unix ns, which OTLP JSON writes as a text."""
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    return value if isinstance(value, int) and 0 < value < 1 << 63 else None
