"""Slices and counter readings as Perfetto packets, in time order, a chunk of bytes at a time.

Perfetto reads the file in order, and closes the slices of a track like a stack. At one instant
therefore first come the ends of slices that began earlier, then whole slices of no length, then the
begins, outer slices first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    DebugAnnotation,
    Trace,
    TracePacket,
    TrackEvent,
)

from rltrace.report.perfetto import wire
from rltrace.report.perfetto.scene import Note, Points, Slices
from rltrace.report.perfetto.tracks import OPEN, Ints, factor, outer_first

Shapes = list[list[wire.Part]]
"""The shapes that events have: each is the fields of a TrackEvent."""

SEQUENCE = 1
"""Id of the one sequence that all packets belong to: what they intern is its state."""

_AT_ONCE = 1 << 17  # events: enough for numpy to be quick, few enough to need only megabytes


def in_time_order(slices: Sequence[Slices], points: Points) -> Iterator[wire.Bytes]:
    """All events as encoded packets; writing the chunks one after the other makes the trace. The
    timestamp of each says how long after the one before it, the first says 0."""
    shapes: Shapes = []
    events = _events(shapes, slices, points)
    time = np.concatenate([e.time for e in events])
    order = np.argsort(time, kind="stable")
    time = time[order]
    time[1:] -= time[:-1].copy()
    time[:1] = 0
    since = wire.Varints(time)
    del time
    records = [_packet(event, since) for event in shapes]
    row_of = np.concatenate([e.row for e in events])
    shape_of = np.concatenate([e.shape for e in events])
    if len(records) < 1 << 16:
        shape_of = shape_of.astype(np.uint16)  # so few are sorted by counting
    for at in range(0, len(order), _AT_ONCE):
        chunk = order[at : at + _AT_ONCE]
        shape = shape_of[chunk]
        together = np.argsort(shape, kind="stable")
        counts = np.bincount(shape, minlength=len(records))
        alike = np.split(together, np.cumsum(counts)[:-1])
        yield wire.merge(
            [
                (places, record.lay(row_of[chunk[places]], places + at))
                for record, places in zip(records, alike, strict=True)
                if len(places)
            ],
            len(chunk),
        )


@dataclass(frozen=True)
class _Events:
    """Events in the order that they keep at equal times: Unix ns, the row of the columns that each
    takes its values from, and the number of its shape."""

    time: Ints
    row: NDArray[np.int32]
    shape: NDArray[np.int32]


def _added(shapes: Shapes, event: list[wire.Part]) -> int:
    shapes.append(event)
    return len(shapes) - 1


def _events(shapes: Shapes, slices: Sequence[Slices], points: Points) -> list[_Events]:
    """Everything to write. A stable sort by time keeps the order of this list at equal times."""
    ends: list[_Events] = []
    begins: list[_Events] = []
    for s in slices:
        known = _Known(s)
        rows = np.arange(len(s), dtype=np.int32)
        if s.moments:
            shape = known.shapes(shapes, TrackEvent.TYPE_INSTANT)
            begins.append(_Events(s.start, rows, shape))
            continue
        shape = known.shapes(shapes, TrackEvent.TYPE_SLICE_BEGIN)
        end = _added(shapes, known.where(TrackEvent.TYPE_SLICE_END))
        flat = s.end == s.start
        ended = rows[~flat & (s.end != OPEN)]
        ends.append(_Events(s.end[ended], ended, np.full(len(ended), end, np.int32)))
        whole = rows[flat]
        both = np.column_stack([shape[whole], np.full(len(whole), end, np.int32)])
        begins.append(_Events(np.repeat(s.start[whole], 2), np.repeat(whole, 2), both.ravel()))
        begun = rows[~flat]
        begun = begun[outer_first(s.start[begun], s.end[begun])]
        begins.append(_Events(s.start[begun], begun, shape[begun]))
    count = len(points.time)
    reading = _added(shapes, _reading(points))
    every = np.arange(count, dtype=np.int32)
    return [*ends, *begins, _Events(points.time, every, np.full(count, reading, np.int32))]


class _Known:
    """What is known of slices: those of which the same is known have events of one shape."""

    def __init__(self, slices: Slices) -> None:
        self._slices = slices
        self._track = wire.Varints(slices.track)
        self._category = wire.Varints(slices.category)
        self._name = wire.Varints(slices.name)
        self._notes = [_annotation(note) for note in slices.notes]

    def where(self, kind: int) -> list[wire.Part]:
        """The fields of an end, which says only of which track."""
        track = wire.integer(TrackEvent, "track_uuid", self._track)
        return [*wire.integer(TrackEvent, "type", kind), *track]

    def shapes(self, shapes: Shapes, kind: int) -> NDArray[np.int32]:
        """The shape of the begin of each slice."""
        notes = self._slices.notes
        known = self._slices.known.astype(np.int64)
        if self._slices.flows is not None:
            known |= self._slices.flows.count << len(notes)
        patterns, pattern = factor(known)
        numbers = [
            _added(shapes, self._begin(kind, what, what >> len(notes)))
            for what in patterns.tolist()
        ]
        return np.array(numbers, np.int32)[pattern]

    def _begin(self, kind: int, known: int, arrows: int) -> list[wire.Part]:
        event = self.where(kind)
        event += wire.integer(TrackEvent, "category_iids", self._category)
        event += wire.integer(TrackEvent, "name_iid", self._name)
        for bit, note in enumerate(self._notes):
            if known >> bit & 1:
                event += wire.nested(TrackEvent, "debug_annotations", note)
        flows = self._slices.flows
        if arrows and flows is not None:
            event += wire.fixed64s(TrackEvent, "flow_ids", flows.ids, flows.first, arrows)
        return event


def _annotation(note: Note) -> list[wire.Part]:
    title = wire.integer(DebugAnnotation, "name_iid", note.title)
    if note.kind == "double":
        return title + wire.fixed64(DebugAnnotation, "double_value", wire.Fixed64(note.values))
    field = {"integer": "int_value", "word": "string_value_iid"}[note.kind]
    return title + wire.integer(DebugAnnotation, field, wire.Varints(note.values, note.known))


def _reading(points: Points) -> list[wire.Part]:
    return [
        *wire.integer(TrackEvent, "type", TrackEvent.TYPE_COUNTER),
        *wire.integer(TrackEvent, "track_uuid", wire.Varints(points.track)),
        *wire.fixed64(TrackEvent, "double_counter_value", wire.Fixed64(points.value)),
    ]


def _packet(event: Sequence[wire.Part], since: wire.Varints) -> wire.Record:
    packet = [
        *wire.integer(TracePacket, "trusted_packet_sequence_id", SEQUENCE),
        *wire.integer(TracePacket, "sequence_flags", TracePacket.SEQ_NEEDS_INCREMENTAL_STATE),
        *wire.integer(TracePacket, "timestamp", since),
        *wire.nested(TracePacket, "track_event", event),
    ]
    return wire.Record(wire.nested(Trace, "packet", packet), since)
