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


def _events(shapes: Shapes, slices: Sequence[Slices], points: Points) -> list[_Events]:
    """Everything to write. A stable sort by time keeps the order of this list at equal times."""
    ends: list[_Events] = []
    begins: list[_Events] = []
    for s in slices:
        rows = np.arange(len(s), dtype=np.int32)
        shape, end = _shapes(shapes, s)
        if s.moments:
            begins.append(_Events(s.start, rows, shape))
            continue
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
    shapes.append(_reading(points))
    reading = np.full(count, len(shapes) - 1, np.int32)
    return [*ends, *begins, _Events(points.time, np.arange(count, dtype=np.int32), reading)]


def _shapes(shapes: Shapes, s: Slices) -> tuple[NDArray[np.int32], int]:
    """The shape of the begin of each slice, which those share of which the same is known; and that
    of the ends, which say only of which track."""
    track = wire.integer(TrackEvent, "track_uuid", wire.Varints(s.track))
    names = [
        *wire.integer(TrackEvent, "category_iids", wire.Varints(s.category)),
        *wire.integer(TrackEvent, "name_iid", wire.Varints(s.name)),
    ]
    notes = [_noted(note) for note in s.notes]
    known = s.known.astype(np.int64)
    if s.flows is not None:
        known |= s.flows.count << len(notes)
    patterns, pattern = factor(known)
    first, kind = len(shapes), TrackEvent.TYPE_SLICE_BEGIN
    if s.moments:
        kind = TrackEvent.TYPE_INSTANT
    for what in patterns.tolist():
        event = [*wire.integer(TrackEvent, "type", kind), *track, *names]
        for bit, note in enumerate(notes):
            if what >> bit & 1:
                event += note
        if s.flows is not None and (arrows := what >> len(notes)):
            event += wire.fixed64s(TrackEvent, "flow_ids", s.flows.ids, s.flows.first, arrows)
        shapes.append(event)
    shapes.append([*wire.integer(TrackEvent, "type", TrackEvent.TYPE_SLICE_END), *track])
    return (first + pattern).astype(np.int32), len(shapes) - 1


def _noted(note: Note) -> list[wire.Part]:
    if note.kind == "colour":
        ids = wire.Varints(note.values, note.known)
        return wire.integer(TrackEvent, "correlation_id_str_iid", ids)
    title = wire.integer(DebugAnnotation, "name_iid", note.title)
    if note.kind == "double":
        value = wire.fixed64(DebugAnnotation, "double_value", wire.Fixed64(note.values))
    else:
        field = {"integer": "int_value", "word": "string_value_iid"}[note.kind]
        value = wire.integer(DebugAnnotation, field, wire.Varints(note.values, note.known))
    return wire.nested(TrackEvent, "debug_annotations", title + value)


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
