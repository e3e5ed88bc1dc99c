"""Traces in Chrome's format, whole or cut short."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rltrace.adapters.log_table import LoggedProcess, PlacedSpan, SpanNames, is_real_ns, lane_of, ns
from rltrace.importers.formats.json_text import Objects, read_objects
from rltrace.importers.placed_events import mapped, read_names
from rltrace.importers.run_writer import ImportedRun, traced_run
from rltrace.trace.errors import RltraceError
from rltrace.trace.vocabulary import Stage

_UNIX_US = 1e14  # microseconds after this are of a date, those before of some clock's start

_Event = tuple[dict[str, Any], float, float]
"""What the trace has of a complete event, when it began, and how long it took (µs)."""


def read(path: Path, mapping: Path) -> ImportedRun:
    """Reads a trace by a mapping. Errors: `RltraceError` for what is no trace, no mapping, or where
    none of the names in the mapping is in the trace."""
    names = read_names(mapping)
    objects = read_objects(path, "traceEvents")
    return lay_out(path, objects, names, names.framework)


def lay_out(path: Path, objects: Objects, names: SpanNames, trainer: str) -> ImportedRun:
    """The run that a trace tells of. Errors: as `read`."""
    events = list(_complete(objects.objects))
    if not events:
        raise RltraceError(f"{path} is no trace in Chrome's format: no event in it has a duration")
    chosen, notes = mapped(path, names, ((_name(event[0]), event) for event in events))
    base_ns, said = _base_ns([event for _, event in chosen], objects)
    processes = _processes(objects.objects, names)
    spans = (_span(event, stage, names, processes, base_ns) for stage, event in chosen)
    return traced_run(
        path, names.framework, trainer, "Chrome trace", spans, objects,
        placement=names.placement, notes=(*said, *notes),
    )  # fmt: skip


def _complete(objects: Iterable[dict[str, Any]]) -> Iterator[_Event]:
    """Events with a duration: those that state it, and pairs of a beginning and an end."""
    begun: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for found in objects:
        phase = found.get("ph")
        time: Any = found.get("ts")
        length: Any = found.get("dur")
        if ns(time, 1e3) is None:
            continue
        if phase == "X" and ns(length, 1e3) is not None:
            yield found, float(time), max(float(length), 0.0)
        elif phase in ("B", "b"):
            begun.setdefault(_pair(found), []).append(found)
        elif phase in ("E", "e") and begun.get(_pair(found)):
            start = begun[_pair(found)].pop()
            yield start, float(start["ts"]), max(float(time) - float(start["ts"]), 0.0)


def _pair(found: dict[str, Any]) -> tuple[str, ...]:
    """What a beginning and its end have in common: a thread, or an id."""
    names = ("pid", "cat", "id", "name") if found["ph"] in ("b", "e") else ("pid", "tid")
    return tuple(str(found.get(name)) for name in names)


def _name(told: dict[str, Any]) -> str:
    return str(told.get("name", ""))


def _base_ns(events: list[_Event], objects: Objects) -> tuple[int, tuple[str, ...]]:
    """What has to be added to the trace's times to make them Unix ns, and what is to be said."""
    if min(start_us for _, start_us, _ in events) > _UNIX_US:
        return 0, ()
    base = objects.beside.get("baseTimeNanoseconds")
    if isinstance(base, int) and is_real_ns(base):
        return base, ()
    last_ns = round(max(start_us + length_us for _, start_us, length_us in events) * 1e3)
    said = "the trace's clock has no date: its end is put at the file's last change"
    return objects.changed_ns - last_ns, (said,)


def _processes(objects: Iterable[dict[str, Any]], names: SpanNames) -> dict[str, LoggedProcess]:
    found = {}
    for event in objects:
        if event.get("ph") == "M" and event.get("name") == "process_name":
            told = event.get("args")
            name = str(told.get("name", "")) if isinstance(told, dict) else ""
            found[str(event.get("pid"))] = LoggedProcess(name, names.role_of(name))
    return found


def _span(
    event: _Event, stage: Stage, names: SpanNames, processes: Mapping[str, LoggedProcess],
    base_ns: int,
) -> PlacedSpan:  # fmt: skip
    told, start_us, length_us = event
    name, attributes = _name(told), told.get("args")
    unnamed = f"process {told.get('pid')}"
    process = processes.get(str(told.get("pid")), LoggedProcess(unnamed, names.role_of(unnamed)))
    start_ns = base_ns + round(start_us * 1e3)
    lane = lane_of(told.get("id", told.get("tid")) if told["ph"] == "b" else told.get("tid"))
    step = names.step_of(attributes if isinstance(attributes, dict) else {}, name)
    end_ns = start_ns + round(length_us * 1e3)
    return PlacedSpan(process, lane, name, stage, start_ns, end_ns, step)
