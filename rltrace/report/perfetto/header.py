"""The packets before the events: the clock, the interned texts, the tracks."""

from __future__ import annotations

from collections.abc import Callable

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    BUILTIN_CLOCK_BOOTTIME,
    BUILTIN_CLOCK_MONOTONIC,
    BUILTIN_CLOCK_REALTIME,
    CounterDescriptor,
    Trace,
    TracePacket,
)

from rltrace.report.perfetto.events import SEQUENCE
from rltrace.report.perfetto.scene import Interned, Scene, Track

_SINCE_LAST = 64
"""The clock of the events, the first id that a sequence may give to one of its own."""


def header(scene: Scene, start: int) -> bytes:
    """They, for events from `start` (Unix ns) on. All tracks and texts have to be known by now."""
    trace = Trace()
    clocks = trace.packet.add(trusted_packet_sequence_id=SEQUENCE).clock_snapshot
    # The trace's own clock is Unix time: it and real time are said to agree.
    for clock in (BUILTIN_CLOCK_BOOTTIME, BUILTIN_CLOCK_MONOTONIC, BUILTIN_CLOCK_REALTIME):
        clocks.clocks.add(clock_id=clock, timestamp=start)
    clocks.clocks.add(clock_id=_SINCE_LAST, timestamp=start, is_incremental=True)
    clocks.primary_trace_clock = BUILTIN_CLOCK_BOOTTIME

    state = trace.packet.add(
        trusted_packet_sequence_id=SEQUENCE,
        sequence_flags=TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        | TracePacket.SEQ_NEEDS_INCREMENTAL_STATE,
    )
    state.trace_packet_defaults.timestamp_clock_id = _SINCE_LAST
    texts = state.interned_data
    _intern(scene.categories, texts.event_categories.add)
    _intern(scene.names, texts.event_names.add)
    _intern(scene.titles, texts.debug_annotation_names.add)
    for text, iid in scene.words.ids.items():
        texts.debug_annotation_string_values.add(iid=iid, str=text.encode())

    # A process and its tracks together, what stands on top first.
    for track in sorted(scene.tracks, key=_place):
        _describe(trace.packet.add(trusted_packet_sequence_id=SEQUENCE), track)
    encoded: bytes = trace.SerializeToString()
    return encoded


def _place(track: Track) -> tuple[int, int, int]:
    """The engine puts a thread into the last process of its id, so that has to stand before it."""
    return (track.parent or (track.pid and track.uuid), track.order, track.uuid)


def _intern(interned: Interned, add: Callable[..., object]) -> None:
    for text, iid in interned.ids.items():
        add(iid=iid, name=text)


def _describe(packet: TracePacket, track: Track) -> None:
    described = packet.track_descriptor
    described.uuid = track.uuid
    if track.tid:
        described.thread.pid, described.thread.tid = track.pid, track.tid
        described.thread.thread_name = track.name
    elif track.pid:
        described.process.pid = track.pid
        described.process.process_name = track.name
        described.process.process_labels.extend(track.labels)
    else:
        described.name = track.name
        described.sibling_order_rank = track.order
    if track.parent:
        described.parent_uuid = track.parent
    if track.unit == "bytes":
        described.counter.unit = CounterDescriptor.UNIT_SIZE_BYTES
    elif track.unit is not None:
        described.counter.unit_name = track.unit
