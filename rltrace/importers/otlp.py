"""Spans of OpenTelemetry as OTLP JSON: one export, or one a line as the collector's file exporter
writes them. What the names mean, a mapping says; names that it does not have are left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rltrace.importers.chrome import lane_of
from rltrace.importers.json_text import read_objects
from rltrace.importers.placed import Names, PlacedSpan, Process, read_names
from rltrace.importers.run_writer import ImportedRun
from rltrace.importers.times import counted
from rltrace.importers.traced import traced_run
from rltrace.trace.errors import RltraceError


def read(path: Path, mapping: Path) -> ImportedRun:
    """Reads exported spans by a mapping. Errors: `RltraceError` for what is no export, or no
    mapping, or where none of the names in the mapping is in the export."""
    names = read_names(mapping)
    objects = read_objects(path)
    found = list(_spans(objects.objects))
    if not found:
        raise RltraceError(f"{path} is no OTLP JSON of spans: no resourceSpans with spans in it")
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


def _spans(exports: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each span with the attributes of what sent it."""
    for export in exports:
        for resource in _list(export, "resourceSpans"):
            about = _attributes(resource.get("resource") or {})
            for scope in _list(resource, "scopeSpans"):
                for span in _list(scope, "spans"):
                    if "name" in span:
                        yield about, span


def _list(holder: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = holder.get(name)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _attributes(holder: dict[str, Any]) -> dict[str, Any]:
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
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    return value if isinstance(value, int) and value > 0 else None
