"""Traces in Chrome's format, as Perfetto, Kineto (PyTorch's profiler) and many others write them.

Whole, as lines of events, or cut short: the array of a job that was killed has no end. What the
names mean, a mapping says. Names that it does not have are left out and counted: the operators of
a profiler are no stages.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltrace.importers.fitting import counted, is_real_ns, ns
from rltrace.importers.json_text import Objects, read_objects
from rltrace.importers.placed import Names, PlacedSpan, Process, read_names
from rltrace.importers.run_writer import ImportedRun
from rltrace.importers.traced import traced_run
from rltrace.trace.errors import RltraceError

_US = 1e3  # ns
_MOST_LANES = 1 << 63
_UNIX_US = 1e14  # microseconds after this are of a date, those before of some clock's start


@dataclass(frozen=True)
class Event:
    """A complete event: its process and thread as the trace has them, microseconds."""

    pid: str
    tid: Any
    name: str
    start_us: float
    length_us: float
    attributes: Mapping[str, Any]


def read(path: Path, mapping: Path) -> ImportedRun:
    """Reads a trace by a mapping. Errors: `RltraceError` for what is no trace, or no mapping, or
    where none of the names in the mapping is in the trace."""
    names = read_names(mapping)
    objects = read_objects(path, "traceEvents")
    return lay_out(path, objects, names, names.framework)


def lay_out(path: Path, objects: Objects, names: Names, trainer: str) -> ImportedRun:
    """The run that a trace tells of. Errors: as `read`."""
    events = list(_complete(objects.objects))
    if not events:
        raise RltraceError(f"{path} is no trace in Chrome's format: no event in it has a duration")
    left_out = Counter(event.name for event in events if names.stage_of(event.name) is None)
    chosen = [event for event in events if names.stage_of(event.name) is not None]
    if not chosen:
        raise RltraceError(
            f"{path} has none of the names that are mapped; it has {counted(left_out)}"
        )
    base_ns, notes = _base_ns(chosen, objects)
    processes = _processes(objects.objects, names)
    spans = (_span(event, names, processes, base_ns) for event in chosen)
    if left_out:
        notes = (*notes, f"{left_out.total()} spans of names that are not mapped: left out")
    return traced_run(
        path,
        names.framework,
        trainer,
        "Chrome trace",
        spans,
        objects.changed_ns,
        placement=names.placement,
        notes=(*objects.notes, *notes),
    )


def _complete(objects: Iterable[dict[str, Any]]) -> Iterator[Event]:
    """Events with a duration: those that state it, and pairs of a beginning and an end."""
    begun: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for found in objects:
        phase = found.get("ph")
        time: Any = found.get("ts")
        length: Any = found.get("dur")
        if ns(time, _US) is None:
            continue
        if phase == "X" and ns(length, _US) is not None:
            yield _event(found, float(time), float(length))
        elif phase in ("B", "b"):
            begun.setdefault(_pair(found), []).append(found)
        elif phase in ("E", "e") and begun.get(_pair(found)):
            start = begun[_pair(found)].pop()
            yield _event(start, float(start["ts"]), float(time) - float(start["ts"]))


def _pair(found: dict[str, Any]) -> tuple[str, ...]:
    """What a beginning and its end have in common: a thread, or an id."""
    names = ("pid", "cat", "id", "name") if found["ph"] in ("b", "e") else ("pid", "tid")
    return tuple(str(found.get(name)) for name in names)


def _event(found: dict[str, Any], start_us: float, length_us: float) -> Event:
    attributes = found.get("args")
    thread = found.get("id", found.get("tid")) if found["ph"] == "b" else found.get("tid")
    return Event(
        str(found.get("pid")),
        thread,
        str(found.get("name", "")),
        start_us,
        max(length_us, 0.0),
        attributes if isinstance(attributes, dict) else {},
    )


def _base_ns(events: list[Event], objects: Objects) -> tuple[int, tuple[str, ...]]:
    """What has to be added to the trace's times to make them Unix ns, and what is to be said."""
    if min(event.start_us for event in events) > _UNIX_US:
        return 0, ()
    base = objects.beside.get("baseTimeNanoseconds")
    if isinstance(base, int) and is_real_ns(base):
        return base, ()
    last_ns = round(max(event.start_us + event.length_us for event in events) * 1e3)
    said = "the trace's clock has no date: its end is put at the file's last change"
    return objects.changed_ns - last_ns, (said,)


def _processes(objects: Iterable[dict[str, Any]], names: Names) -> dict[str, Process]:
    """The processes that the trace names, by their pid."""
    found = {}
    for event in objects:
        if event.get("ph") == "M" and event.get("name") == "process_name":
            told = event.get("args")
            name = str(told.get("name", "")) if isinstance(told, dict) else ""
            found[str(event.get("pid"))] = Process(name, names.role_of(name))
    return found


def _span(event: Event, names: Names, processes: Mapping[str, Process], base_ns: int) -> PlacedSpan:
    stage = names.stage_of(event.name)
    assert stage is not None
    unnamed = f"process {event.pid}"
    process = processes.get(event.pid, Process(unnamed, names.role_of(unnamed)))
    start_ns = base_ns + round(event.start_us * 1e3)
    return PlacedSpan(
        process=process,
        lane=lane_of(event.tid),
        name=event.name,
        stage=stage,
        start_ns=start_ns,
        end_ns=start_ns + round(event.length_us * 1e3),
        step=names.step_of(event.attributes, event.name),
    )


def lane_of(thread: object) -> int:
    """A lane for whatever a log calls its threads."""
    if isinstance(thread, int) and not isinstance(thread, bool) and abs(thread) < _MOST_LANES:
        return thread
    return zlib.crc32(str(thread).encode("utf-8", "backslashreplace"))
