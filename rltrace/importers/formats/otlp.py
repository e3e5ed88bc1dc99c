"""Spans of OpenTelemetry as OTLP JSON: one export, or one a line.

The collector's file exporter writes the latter. What the names mean, a mapping says; names that it
does not have are left out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rltrace.adapters.log_table import LoggedProcess, PlacedSpan, SpanNames, lane_of
from rltrace.importers.formats.json_text import read_objects
from rltrace.importers.placed_events import mapped, read_names
from rltrace.importers.run_writer import ImportedRun, traced_run
from rltrace.trace.errors import RltraceError
from rltrace.trace.vocabulary import Stage

Attributes = dict[str, Any]


def read(path: Path, mapping: Path) -> ImportedRun:
    """Reads an export by a mapping. Errors: `RltraceError` for what is no export, no mapping, or
    where none of the names in the mapping is in the export."""
    objects = read_objects(path)
    found = list(_spans(objects.objects))
    if not found:
        raise RltraceError(f"{path} is no OTLP JSON of spans: no resourceSpans with spans in it")
    names = read_names(mapping)
    chosen, notes = mapped(path, names, ((span["name"], (about, span)) for about, span in found))
    spans = (_placed(*each, stage, names) for stage, each in chosen)
    return traced_run(
        path, names.framework, names.framework, "OTLP JSON", spans, objects,
        placement=names.placement, notes=notes,
    )  # fmt: skip


def _spans(exports: list[dict[str, Any]]) -> Iterator[tuple[Attributes, dict[str, Any]]]:
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


def _attributes(holder: Any) -> Attributes:
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
    lane = lane_of(attributes.get("thread.id", span.get("traceId")))
    start_ns, end_ns = (_ns(span.get(f"{at}TimeUnixNano")) for at in ("start", "end"))
    step = names.step_of(attributes, span["name"])
    return PlacedSpan(process, lane, span["name"], stage, start_ns, end_ns, step)


def _ns(value: object) -> int:
    """Unix ns, which OTLP JSON writes as a text; 0, which is none, for anything else."""
    if isinstance(value, str) and len(value) < 20 and value.isdecimal():
        value = int(value)
    return value if isinstance(value, int) and 0 < value < 1 << 63 else 0
