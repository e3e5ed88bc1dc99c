"""Protobuf wire format for whole columns: a million packets by a few numpy stores.

A `WireRecord` is the same message for many rows, all of one width: varints are padded to what the
column's largest value needs, which is legal. A row is the copy of a template, and one store for
each column. Field numbers come from the official descriptors.

Perfetto closes the slices of a track like a stack. At one instant therefore first come the ends of
slices that began earlier, then whole slices of no length, then the begins, outer slices first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    DebugAnnotation,
    Trace,
    TracePacket,
    TrackEvent,
)

from rltrace.report.perfetto.scene import OPEN, Ints, Note, Points, Slices, factor, outer_first

Bytes = NDArray[np.uint8]  # shape (rows, width): one encoded message a row


class WireColumn(Protocol):
    """Encoded values, `width` bytes a row."""

    width: int

    def store(self, into: Bytes, at: int, rows: NDArray[Any]) -> None:
        """Lays the values of `rows` down, from byte `at` of each row of `into` on."""


class Varints:
    """Integers as varints of 1, 2, 4, 8 or 10 bytes. Rows not `known` may hold anything."""

    def __init__(self, values: NDArray[Any], known: NDArray[np.bool_] | None = None) -> None:
        asked: Any = True if known is None else known
        low = int(values.min(initial=0, where=asked))
        bits = 64 if low < 0 else int(values.max(initial=0, where=asked)).bit_length()
        self.width = next(w for w in (1, 2, 4, 8, 10) if bits <= 7 * w)
        self._values = values

    def store(self, into: Bytes, at: int, rows: NDArray[Any]) -> None:
        rest = self._values[rows].astype(f"<u{min(self.width, 8)}")  # of a negative one all 64 bits
        for byte in range(at, at + self.width):
            more = np.uint8(0 if byte == at + self.width - 1 else 128)
            into[:, byte] = rest.astype(np.uint8) & np.uint8(127) | more
            rest >>= rest.dtype.type(7)


class Fixed64:
    """Eight bytes of each value as they are: a fixed64 or double."""

    width = 8

    def __init__(self, values: NDArray[Any]) -> None:
        self._values = values
        self._kind = values.dtype.newbyteorder("<")

    def store(self, into: Bytes, at: int, rows: NDArray[Any]) -> None:
        _place(into, at, self._kind)[:] = self._values[rows]


class Repeated64:
    """A repeated fixed64 field: the `count` values from `first[row]` on, each with its tag."""

    def __init__(self, tag: bytes, values: NDArray[Any], first: NDArray[Any], count: int) -> None:
        self._tag, self._values, self._first, self._count = tag, values, first, count
        self.width = count * (len(tag) + 8)

    def store(self, into: Bytes, at: int, rows: NDArray[Any]) -> None:
        step = len(self._tag) + 8
        into[:, at : at + self.width] = np.frombuffer(self._tag.ljust(step) * self._count, np.uint8)
        first = self._first[rows]
        for nth in range(self._count):
            place = _place(into, at + nth * step + len(self._tag), np.dtype("<u8"))
            place[:] = self._values[first + nth]


Part = bytes | WireColumn  # a piece of a record: the same bytes in every row, or one value a row
_VARINT, _FIXED64, _LENGTH = 0, 1, 2


def varint(value: int) -> bytes:
    """One non-negative integer as the shortest varint."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


@cache
def _tag(message: Any, field: str, kind: int) -> bytes:
    number: int = message.DESCRIPTOR.fields_by_name[field].number
    return varint(number << 3 | kind)


def integer(message: Any, field: str, values: int | WireColumn) -> list[Part]:
    """A varint field of a protobuf message class: a constant, or one value a row."""
    tag = _tag(message, field, _VARINT)
    return [tag + varint(values)] if isinstance(values, int) else [tag, values]


def fixed64(message: Any, field: str, values: WireColumn) -> list[Part]:
    return [_tag(message, field, _FIXED64), values]


def fixed64s(
    message: Any, field: str, values: NDArray[Any], first: NDArray[Any], count: int
) -> list[Part]:
    """A repeated fixed64 field: of each row the `count` values from `first` on."""
    return [Repeated64(_tag(message, field, _FIXED64), values, first, count)]


def nested(message: Any, field: str, parts: Sequence[Part]) -> list[Part]:
    """A field that holds a message made of parts."""
    tag = _tag(message, field, _LENGTH)
    width = sum(len(part) if isinstance(part, bytes) else part.width for part in parts)
    return [tag + varint(width), *parts]


class WireRecord:
    """The parts of a message. `in_time` is the one column with a value for each place in time."""

    def __init__(self, parts: Sequence[Part], in_time: WireColumn | None = None) -> None:
        self._columns: list[tuple[int, WireColumn]] = []
        self._in_time = in_time
        self._template = bytearray()
        for part in parts:
            if isinstance(part, bytes):
                self._template += part
            else:
                self._columns.append((len(self._template), part))
                self._template += bytes(part.width)

    def lay(self, rows: NDArray[Any], places: NDArray[Any]) -> Bytes:
        """The message for each of `rows`, which stand at `places`. Shape (rows, width)."""
        out = np.frombuffer(self._template * len(rows), np.uint8)
        out = out.reshape(len(rows), len(self._template))
        for at, column in self._columns:
            column.store(out, at, places if column is self._in_time else rows)
        return out


def merge(messages: Sequence[tuple[NDArray[np.int64], Bytes]], count: int) -> Bytes:
    """Messages of different widths as flat bytes: `(places, rows)` puts `rows[i]` at `places[i]`;
    all places together are 0 .. count-1, each once."""
    widths = np.zeros(count, np.int64)
    for places, rows in messages:
        widths[places] = rows.shape[1]
    ends = np.cumsum(widths)
    out = np.empty(int(ends[-1]) if count else 0, np.uint8)
    for places, rows in messages:
        # Seen as one item of that width at every byte, a row is a single copy.
        item = np.dtype((np.void, rows.shape[1]))
        items = np.ndarray(len(out) - rows.shape[1] + 1, item, out.data, strides=1)
        items[ends[places] - rows.shape[1]] = rows.view(item)[:, 0]
    return out


def _place(into: Bytes, at: int, kind: np.dtype[Any]) -> NDArray[Any]:
    """Byte `at` of each row, and the next, as one number."""
    words: NDArray[Any] = np.ndarray(len(into), kind, into.data, at, into.strides[:1])
    return words


Shapes = list[list[Part]]  # the shapes that events have: each is the fields of a TrackEvent
SEQUENCE = 1  # id of the one sequence that all packets belong to: what they intern is its state
_AT_ONCE = 1 << 16  # events: enough for numpy to be quick, few enough to need only megabytes
_LOOKED_AT = 64  # times between those that tell where as many events end


def in_time_order(slices: Sequence[Slices], points: Points) -> Iterator[Bytes]:
    """All events, encoded, by ranges of time. A timestamp is the time since the last; the first is
    0."""
    shapes: Shapes = []
    times = [points.time, *(t for s in slices for t in (s.start, s.end))]
    some = np.sort(np.concatenate([t[::_LOOKED_AT] for t in times]))
    edges = np.unique(some[some != OPEN][:: _AT_ONCE // _LOOKED_AT])[1:]
    tracks = [_InRanges(shapes, s, edges) for s in slices]
    shapes.append(_reading(points))
    ranges = _numbers(points.time, edges)
    last = min((int(t.min()) for t in times if len(t)), default=0)
    for nth in range(len(edges) + 1):
        ends: _Events = []
        begins: _Events = []
        for one in tracks:
            one.add(nth, ends, begins)
        read = np.flatnonzero(ranges == nth)
        begins.append((points.time[read], read, np.full(len(read), len(shapes) - 1)))
        # A stable sort by time keeps the order of this list at equal times.
        time, row, shape = (np.concatenate(column) for column in zip(*ends, *begins, strict=True))
        order = np.argsort(time, kind="stable")
        since = Varints(np.diff(time[order], prepend=last))
        last = int(time.max(initial=last))
        row, shape = row[order], shape[order]
        # So few are sorted by counting.
        together = np.argsort(shape.astype(np.min_scalar_type(len(shapes))), kind="stable")
        alike = np.split(together, np.cumsum(np.bincount(shape, minlength=len(shapes)))[:-1])
        yield merge(
            [
                (places, _packet(event, since).lay(row[places], places))
                for event, places in zip(shapes, alike, strict=True)
                if len(places)
            ],
            len(order),
        )


_Events = list[tuple[NDArray[Any], ...]]  # their times (Unix ns), rows and numbers of shapes


class _InRanges:
    """Slices by the range of time, of those that `edges` divide, in which they begin and end."""

    def __init__(self, shapes: Shapes, slices: Slices, edges: Ints) -> None:
        self._slices = slices
        self._shape, self._end = _shapes(shapes, slices)
        self._begin = _numbers(slices.start, edges)
        self._until = self._begin if slices.moments else _numbers(slices.end, edges)

    def add(self, nth: int, ends: _Events, begins: _Events) -> None:
        """Adds what ends, and what begins, in the nth range."""
        s, begun = self._slices, np.flatnonzero(self._begin == nth)
        if s.moments:
            begins.append((s.start[begun], begun, self._shape[begun]))
            return
        ended = np.flatnonzero(self._until == nth)
        ended = ended[s.end[ended] != s.start[ended]]
        ends.append((s.end[ended], ended, np.full(len(ended), self._end)))
        flat = s.end[begun] == s.start[begun]
        whole, begun = begun[flat], begun[~flat]
        both = np.column_stack([self._shape[whole], np.full(len(whole), self._end)])
        begins.append((np.repeat(s.start[whole], 2), np.repeat(whole, 2), both.ravel()))
        begun = begun[outer_first(s.start[begun], s.end[begun])]
        begins.append((s.start[begun], begun, self._shape[begun]))


def _numbers(times: Ints, edges: Ints) -> NDArray[Any]:
    """In which range each of the times is; -1: in none."""
    numbers = np.searchsorted(edges, times, side="right").astype(
        np.min_scalar_type(-1 - len(edges))
    )
    numbers[times == OPEN] = -1
    return numbers


def _shapes(shapes: Shapes, s: Slices) -> tuple[NDArray[Any], int]:
    """The shapes of the begins, one for each set of known values, and of the ends."""
    track = integer(TrackEvent, "track_uuid", Varints(s.track))
    names = [
        *integer(TrackEvent, "category_iids", Varints(s.category)),
        *integer(TrackEvent, "name_iid", Varints(s.name)),
    ]
    notes = [_noted(note) for note in s.notes]
    known = s.known
    if s.flows is not None:
        known = known | s.flows.count << len(notes)
    patterns, pattern = factor(known)
    first, kind = len(shapes), TrackEvent.TYPE_SLICE_BEGIN
    if s.moments:
        kind = TrackEvent.TYPE_INSTANT
    for what in patterns.tolist():
        event = [*integer(TrackEvent, "type", kind), *track, *names]
        for bit, note in enumerate(notes):
            if what >> bit & 1:
                event += note
        if s.flows is not None and (arrows := what >> len(notes)):
            event += fixed64s(TrackEvent, "flow_ids", s.flows.ids, s.flows.first, arrows)
        shapes.append(event)
    shapes.append([*integer(TrackEvent, "type", TrackEvent.TYPE_SLICE_END), *track])
    return (first + pattern).astype(np.min_scalar_type(len(shapes))), len(shapes) - 1


def _noted(note: Note) -> list[Part]:
    if note.kind == "colour":
        ids = Varints(note.values, note.known)
        return integer(TrackEvent, "correlation_id_str_iid", ids)
    title = integer(DebugAnnotation, "name_iid", note.title)
    if note.kind == "double":
        value = fixed64(DebugAnnotation, "double_value", Fixed64(note.values))
    else:
        field = {"integer": "int_value", "word": "string_value_iid"}[note.kind]
        value = integer(DebugAnnotation, field, Varints(note.values, note.known))
    return nested(TrackEvent, "debug_annotations", title + value)


def _reading(points: Points) -> list[Part]:
    return [
        *integer(TrackEvent, "type", TrackEvent.TYPE_COUNTER),
        *integer(TrackEvent, "track_uuid", Varints(points.track)),
        *fixed64(TrackEvent, "double_counter_value", Fixed64(points.value)),
    ]


def _packet(event: Sequence[Part], since: Varints) -> WireRecord:
    packet = [
        *integer(TracePacket, "trusted_packet_sequence_id", SEQUENCE),
        *integer(TracePacket, "sequence_flags", TracePacket.SEQ_NEEDS_INCREMENTAL_STATE),
        *integer(TracePacket, "timestamp", since),
        *nested(TracePacket, "track_event", event),
    ]
    return WireRecord(nested(Trace, "packet", packet), since)
