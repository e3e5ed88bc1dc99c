"""The writers that `benchmarks.timeline_scale` compares, each in a process of its own.

    python -m benchmarks.timeline_writers rltrace RUN TARGET
    python -m benchmarks.timeline_writers builder TIMELINE TARGET

Prints CPU seconds, peak resident megabytes, and what was written.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import Any

BEGIN, END, MOMENT, COUNTER = 1, 2, 3, 4  # TrackEvent.Type
Row = tuple[int, int, int, str, str, list[tuple[str, Any]], list[int], float]
"""Time (ns), type, track, name, category, annotations, arrows, reading."""


def export(run: Path, target: Path) -> tuple[float, str]:
    """The whole export, from the files of the run; CPU seconds and what it held."""
    import rltrace
    from rltrace.testing.inside.report import perfetto

    # The first question to a run imports DuckDB and pyarrow, which is not what is measured.
    rltrace.open_run(run).sql("SELECT count(*) FROM raw_samples").fetchnumpy()
    begun = time.process_time()
    counts = perfetto.write(rltrace.open_run(run), target)
    taken = time.process_time() - begun
    readings = counts.samples + counts.derived
    return taken, f"{counts.slices:,} slices, {readings:,} readings, {counts.arrows:,} arrows"


def build(rows: list[Row], descriptors: list[bytes], target: Path) -> tuple[float, str]:
    """The same timeline by the package's own writer, from values in memory."""
    from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

    begun = time.process_time()
    with target.open("wb") as file:
        builder = StreamingTraceProtoBuilder(file)
        for descriptor in descriptors:
            packet = builder.create_packet()
            packet.trusted_packet_sequence_id = 1
            packet.track_descriptor.ParseFromString(descriptor)
            builder.write_packet(packet)
        for moment, kind, track, name, category, notes, arrows, reading in rows:
            packet = builder.create_packet()
            packet.timestamp = moment
            packet.trusted_packet_sequence_id = 1
            event = packet.track_event
            event.type = kind
            event.track_uuid = track
            if kind == COUNTER:
                event.double_counter_value = reading
            elif kind != END:
                event.name = name
                event.categories.append(category)
                for title, value in notes:
                    note = event.debug_annotations.add()
                    note.name = title
                    if isinstance(value, str):
                        note.string_value = value
                    elif isinstance(value, float):
                        note.double_value = value
                    else:
                        note.int_value = value
                event.flow_ids.extend(arrows)
            builder.write_packet(packet)
    return time.process_time() - begun, f"{len(rows):,} packets"


def rows_of(timeline: Path) -> tuple[list[Row], list[bytes]]:
    """Every event of a timeline as plain values, and the descriptions of its tracks."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    rows: list[Row] = []
    descriptors: list[bytes] = []
    trace = Trace.FromString(timeline.read_bytes())
    texts = next(p.interned_data for p in trace.packet if p.HasField("interned_data"))
    names = {entry.iid: entry.name for entry in texts.event_names}
    categories = {entry.iid: entry.name for entry in texts.event_categories}
    titles = {entry.iid: entry.name for entry in texts.debug_annotation_names}
    words = {entry.iid: entry.str.decode() for entry in texts.debug_annotation_string_values}
    now = next(p.clock_snapshot.clocks[0].timestamp for p in trace.packet)
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            descriptors.append(packet.track_descriptor.SerializeToString())
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        now += packet.timestamp  # each tells the time since the last
        notes = [(titles[note.name_iid], _value(note, words)) for note in event.debug_annotations]
        category = categories[event.category_iids[0]] if event.category_iids else ""
        name, reading = names.get(event.name_iid, ""), event.double_counter_value
        where = (now, event.type, event.track_uuid)
        rows.append((*where, name, category, notes, list(event.flow_ids), reading))
    return rows, descriptors


def _value(note: Any, words: dict[int, str]) -> Any:
    if note.HasField("string_value_iid"):
        return words[note.string_value_iid]
    return note.double_value if note.HasField("double_value") else note.int_value


def main() -> None:
    """Writes once, and says what it took."""
    kind, source, target = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    if kind == "rltrace":
        seconds, held = export(source, target)
    else:
        seconds, held = build(*rows_of(source), target)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{seconds:.4f} {peak_mb:.1f} {held}")


if __name__ == "__main__":
    main()
