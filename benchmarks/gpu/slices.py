"""The slices of a timeline that `rltrace timeline` wrote, as Perfetto would show them."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Slice:
    """One slice: Unix ns, the process that it stands in (a uuid), and Kineto's correlation of a
    launch and what it launched (-1: none)."""

    name: str
    category: str
    process: int
    start_ns: int
    end_ns: int
    correlation: int


def slices_of(path: Path) -> list[Slice]:
    """All slices that have an end."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

    data = path.read_bytes()
    trace = Trace.FromString(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    texts = next(p.interned_data for p in trace.packet if p.HasField("interned_data"))
    names = {one.iid: one.name for one in texts.event_names}
    categories = {one.iid: one.name for one in texts.event_categories}
    titles = {one.iid: one.name for one in texts.debug_annotation_names}
    parents = {}
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            parents[track.uuid] = track.parent_uuid or track.uuid
    open_: dict[int, list[tuple[int, Any]]] = {}
    found = []
    for moment, event in _events(trace):
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            open_.setdefault(event.track_uuid, []).append((moment, event))
        elif event.type == TrackEvent.TYPE_SLICE_END and open_.get(event.track_uuid):
            start, begun = open_[event.track_uuid].pop()
            kinds = [categories.get(number, "") for number in begun.category_iids]
            notes = {titles.get(n.name_iid): n.int_value for n in begun.debug_annotations}
            process = parents.get(begun.track_uuid, 0)
            found.append(
                Slice(
                    names.get(begun.name_iid, begun.name),
                    kinds[0] if kinds else "",
                    parents.get(process, process),
                    start,
                    moment,
                    notes.get("correlation", -1),
                )
            )
    return found


def _events(trace: Any) -> Iterator[tuple[int, Any]]:
    """Events and when they are, Unix ns: each tells the time since the last."""
    state = next(p for p in trace.packet if p.HasField("trace_packet_defaults"))
    clock = state.trace_packet_defaults.timestamp_clock_id
    snapshot = next(p.clock_snapshot for p in trace.packet if p.HasField("clock_snapshot"))
    now = next(c.timestamp for c in snapshot.clocks if c.clock_id == clock)
    for packet in trace.packet:
        if packet.HasField("track_event"):
            now += packet.timestamp
            yield now, packet.track_event
