"""Slices and counter readings as Perfetto packets, in time order, a chunk of bytes at a time.

Perfetto reads the file in order, and closes the slices of a track like a stack. At one instant
therefore first come the ends of slices that began earlier, then whole slices of no length, then the
begins, outer slices first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    DebugAnnotation,
    Trace,
    TracePacket,
    TrackEvent,
)

from rltrace.report.perfetto_scene import Note, Points, Slices
from rltrace.report.perfetto_tracks import OPEN, Ints
from rltrace.report.perfetto_wire import Bytes, Part, fixed64, integer, merge, nested, record

SEQUENCE = 1
"""Id of the one sequence that all packets belong to: what they intern is its state."""

_AT_ONCE = 1 << 16  # events: enough for numpy to be quick, few enough to need only megabytes

Records = list[tuple[Ints, Bytes]]
"""Positions among the events asked for, and the record of each."""


def in_time_order(slices: Sequence[Slices], points: Points) -> Iterator[Bytes]:
    """All events as encoded packets; writing the chunks one after the other makes the trace."""
    series = _series(slices, points)
    if not series:
        return
    first = np.cumsum([0, *(len(s.time) for s in series)])
    order = np.argsort(np.concatenate([s.time for s in series]), kind="stable")
    for at in range(0, len(order), _AT_ONCE):
        chunk = order[at : at + _AT_ONCE]
        records: Records = []
        for one, low, high in zip(series, first[:-1], first[1:], strict=True):
            places = np.flatnonzero((chunk >= low) & (chunk < high))
            if len(places):
                records += [(places[p], r) for p, r in one.encode(chunk[places] - low)]
        yield merge(records, len(chunk))


class _Series(Protocol):
    """Events of one kind; at equal times they keep their order."""

    @property
    def time(self) -> Ints: ...

    def encode(self, rows: Ints) -> Records: ...


def _series(slices: Sequence[Slices], points: Points) -> list[_Series]:
    """Everything to write. A stable sort by time keeps the order of this list at equal times."""
    ends: list[_Series] = []
    begins: list[_Series] = []
    for s in slices:
        everything = np.arange(len(s))
        if s.moments:
            begins.append(_Edges(s, everything, s.start, TrackEvent.TYPE_INSTANT))
            continue
        flat = s.end == s.start
        ended = everything[~flat & (s.end != OPEN)]
        ends.append(_Edges(s, ended, s.end[ended], TrackEvent.TYPE_SLICE_END))
        begun = everything[~flat]
        begun = begun[np.lexsort((-s.end[begun], s.start[begun]))]
        begins.append(_Flat(s, everything[flat]))
        begins.append(_Edges(s, begun, s.start[begun], TrackEvent.TYPE_SLICE_BEGIN))
    return [x for x in (*ends, *begins, _Readings(points)) if len(x.time)]


@dataclass(frozen=True)
class _Edges:
    """The begins, the ends, or the moments of some slices."""

    slices: Slices
    which: Ints
    time: Ints
    kind: int

    def encode(self, rows: Ints) -> Records:
        which, time = self.which[rows], self.time[rows]
        if self.kind == TrackEvent.TYPE_SLICE_END:
            return [(np.arange(len(rows)), _packets(time, _edge(self.slices, which, self.kind)))]
        return [
            (same, _packets(time[same], _edge(self.slices, which[same], self.kind, notes, flow)))
            for same, notes, flow in _alike(self.slices, which)
        ]


class _Flat:
    """Slices of no length: each begin is followed by its end."""

    def __init__(self, slices: Slices, which: Ints) -> None:
        self.time = np.repeat(slices.start[which], 2)
        sides = (TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_SLICE_END)
        self._sides = [_Edges(slices, which, slices.start[which], side) for side in sides]

    def encode(self, rows: Ints) -> Records:
        records: Records = []
        for nth, side in enumerate(self._sides):
            places = np.flatnonzero(rows % 2 == nth)
            if len(places):
                records += [(places[p], r) for p, r in side.encode(rows[places] // 2)]
        return records


class _Readings:
    """Counter readings."""

    def __init__(self, points: Points) -> None:
        self.time = points.time
        self._points = points

    def encode(self, rows: Ints) -> Records:
        event = [
            *integer(TrackEvent, "type", TrackEvent.TYPE_COUNTER),
            *integer(TrackEvent, "track_uuid", self._points.track[rows]),
            *fixed64(TrackEvent, "double_counter_value", self._points.value[rows]),
        ]
        return [(np.arange(len(rows)), _packets(self.time[rows], event))]


def _alike(slices: Slices, which: Ints) -> Iterator[tuple[Ints, list[Note], bool]]:
    """Slices of which the same things are known: their records have the same fields."""
    known = np.zeros(len(which), np.int64)
    for bit, note in enumerate(slices.notes):
        known |= note.known[which].astype(np.int64) << bit
    if slices.flow is not None:
        known |= (slices.flow[which] != 0).astype(np.int64) << len(slices.notes)
    for what in np.unique(known).tolist():
        notes = [note for bit, note in enumerate(slices.notes) if what >> bit & 1]
        yield np.flatnonzero(known == what), notes, bool(what >> len(slices.notes))


def _edge(
    slices: Slices, which: Ints, kind: int, notes: Sequence[Note] = (), flow: bool = False
) -> list[Part]:
    """The fields of a track event: an end says only where, a begin also what."""
    event = [
        *integer(TrackEvent, "type", kind),
        *integer(TrackEvent, "track_uuid", slices.track[which]),
    ]
    if kind == TrackEvent.TYPE_SLICE_END:
        return event
    event += integer(TrackEvent, "category_iids", slices.category[which])
    event += integer(TrackEvent, "name_iid", slices.name[which])
    for note in notes:
        event += nested(TrackEvent, "debug_annotations", _annotation(note, which))
    if flow and slices.flow is not None:
        event += fixed64(TrackEvent, "flow_ids", slices.flow[which])
    return event


_VALUE_FIELDS = {"integer": "int_value", "word": "string_value_iid"}


def _annotation(note: Note, which: Ints) -> list[Part]:
    title = integer(DebugAnnotation, "name_iid", note.title)
    values = note.values[which]
    if note.kind == "double":
        return title + fixed64(DebugAnnotation, "double_value", values)
    return title + integer(DebugAnnotation, _VALUE_FIELDS[note.kind], values)


def _packets(time: Ints, event: Sequence[Part]) -> Bytes:
    """One packet a row."""
    packet = [
        *integer(TracePacket, "timestamp", time),
        *nested(TracePacket, "track_event", event),
        *integer(TracePacket, "trusted_packet_sequence_id", SEQUENCE),
        *integer(TracePacket, "sequence_flags", TracePacket.SEQ_NEEDS_INCREMENTAL_STATE),
    ]
    return record(nested(Trace, "packet", packet), len(time))
