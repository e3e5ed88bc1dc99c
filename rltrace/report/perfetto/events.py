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

from rltrace.report.perfetto.numbering import factor
from rltrace.report.perfetto.scene import Note, Points, Slices
from rltrace.report.perfetto.tracks import OPEN, Ints, RowNumbers, outer_first
from rltrace.report.perfetto.wire import (
    Bytes,
    Part,
    fixed64,
    fixed64s,
    integer,
    merge,
    nested,
    record,
)

SEQUENCE = 1
"""Id of the one sequence that all packets belong to: what they intern is its state."""

_AT_ONCE = 1 << 17  # events: enough for numpy to be quick, few enough to need only megabytes

Records = list[tuple[Ints, Bytes]]
"""Positions among the events asked for, and the record of each."""


def in_time_order(slices: Sequence[Slices], points: Points) -> Iterator[Bytes]:
    """All events as encoded packets; writing the chunks one after the other makes the trace."""
    series = _series(slices, points)
    if not series:
        return
    times = [s.time() for s in series]
    sizes = [len(time) for time in times]
    first = np.cumsum([0, *sizes])
    order = np.argsort(np.concatenate(times), kind="stable")
    kind_of = np.repeat(np.arange(len(series), dtype=np.uint16), sizes)
    del times
    for at in range(0, len(order), _AT_ONCE):
        chunk = order[at : at + _AT_ONCE]
        kinds = kind_of[chunk]
        records: Records = []
        for kind, one in enumerate(series):
            places = np.flatnonzero(kinds == kind)
            if len(places):
                rows = chunk[places] - first[kind]
                records += [(places[p], r) for p, r in one.encode(rows)]
        yield merge(records, len(chunk))


class _Series(Protocol):
    """Events of one kind; at equal times they keep their order."""

    def time(self) -> Ints: ...

    def encode(self, rows: Ints) -> Records: ...

    def __len__(self) -> int: ...


def _series(slices: Sequence[Slices], points: Points) -> list[_Series]:
    """Everything to write. A stable sort by time keeps the order of this list at equal times."""
    ends: list[_Series] = []
    begins: list[_Series] = []
    for s in slices:
        everything = np.arange(len(s), dtype=np.int32)
        if s.moments:
            begins.append(_Edges(s, everything, TrackEvent.TYPE_INSTANT))
            continue
        flat = s.end == s.start
        ends.append(_Edges(s, everything[~flat & (s.end != OPEN)], TrackEvent.TYPE_SLICE_END))
        begun = everything[~flat]
        begun = begun[outer_first(s.start[begun], s.end[begun])]
        begins.append(_Flat(s, everything[flat]))
        begins.append(_Edges(s, begun, TrackEvent.TYPE_SLICE_BEGIN))
    return [x for x in (*ends, *begins, _Readings(points)) if len(x)]


@dataclass(frozen=True)
class _Edges:
    """The begins, the ends, or the moments of some slices."""

    slices: Slices
    which: RowNumbers
    kind: int

    def __len__(self) -> int:
        return len(self.which)

    def time(self) -> Ints:
        """Unix ns."""
        is_end = self.kind == TrackEvent.TYPE_SLICE_END
        return (self.slices.end if is_end else self.slices.start)[self.which]

    def encode(self, rows: Ints) -> Records:
        which = self.which[rows]
        if self.kind == TrackEvent.TYPE_SLICE_END:
            event = _edge(self.slices, which, self.kind)
            return [(np.arange(len(rows)), _packets(self.slices.end[which], event))]
        records: Records = []
        for same, notes, arrows in _alike(self.slices, which):
            event = _edge(self.slices, which[same], self.kind, notes, arrows)
            records.append((same, _packets(self.slices.start[which[same]], event)))
        return records


class _Flat:
    """Slices of no length: each begin is followed by its end."""

    def __init__(self, slices: Slices, which: RowNumbers) -> None:
        kinds = (TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_SLICE_END)
        self._sides = [_Edges(slices, which, kind) for kind in kinds]

    def __len__(self) -> int:
        return 2 * len(self._sides[0])

    def time(self) -> Ints:
        """Unix ns."""
        return np.repeat(self._sides[0].time(), 2)

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
        self._points = points

    def __len__(self) -> int:
        return len(self._points.time)

    def time(self) -> Ints:
        """Unix ns."""
        return self._points.time

    def encode(self, rows: Ints) -> Records:
        event = [
            *integer(TrackEvent, "type", TrackEvent.TYPE_COUNTER),
            *integer(TrackEvent, "track_uuid", self._points.track[rows]),
            *fixed64(TrackEvent, "double_counter_value", self._points.value[rows]),
        ]
        return [(np.arange(len(rows)), _packets(self._points.time[rows], event))]


def _alike(slices: Slices, which: RowNumbers) -> Iterator[tuple[Ints, list[Note], int]]:
    """Slices of which the same things are known: their records have the same fields."""
    known = slices.known[which].astype(np.int64)
    if slices.flows is not None:
        known |= slices.flows.count[which] << len(slices.notes)
    patterns, pattern = factor(known)
    for nth, what in enumerate(patterns.tolist()):
        notes = [note for bit, note in enumerate(slices.notes) if what >> bit & 1]
        same = np.arange(len(which)) if len(patterns) == 1 else np.flatnonzero(pattern == nth)
        yield same, notes, what >> len(slices.notes)


def _edge(
    slices: Slices, which: RowNumbers, kind: int, notes: Sequence[Note] = (), arrows: int = 0
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
    if arrows and slices.flows is not None:
        ids = slices.flows.first[which][:, None] + np.arange(arrows)
        event += fixed64s(TrackEvent, "flow_ids", slices.flows.ids[ids])
    return event


_VALUE_FIELDS = {"integer": "int_value", "word": "string_value_iid"}


def _annotation(note: Note, which: RowNumbers) -> list[Part]:
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
