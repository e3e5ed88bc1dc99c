"""A run as a timeline for Perfetto (https://ui.perfetto.dev): native protobuf, times in Unix ns.

Processes with a track for each lane of spans; trajectories, rewards and weight updates on rows of
their own; the learner's steps on top; counters; and an arrow from each sample to its use. The few
packets that describe all this are made by the official protobufs; the events, millions of them, are
laid down column by column (`perfetto_wire`) in time order.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    BUILTIN_CLOCK_BOOTTIME,
    BUILTIN_CLOCK_MONOTONIC,
    BUILTIN_CLOCK_REALTIME,
    CounterDescriptor,
    Trace,
    TracePacket,
)

from rltrace.report import perfetto_slices as slices_of
from rltrace.report.perfetto_events import SEQUENCE, in_time_order
from rltrace.report.perfetto_scene import Interned, Points, Scene, Track
from rltrace.report.perfetto_tracks import OPEN
from rltrace.trace.errors import RltraceError
from rltrace.trace.run import Run


@dataclass(frozen=True)
class TimelineCounts:
    """What a timeline holds. `spans` counts steps too; `unended` slices of any kind have no end."""

    processes: int
    tracks: int
    spans: int
    trajectories: int
    rewards: int
    syncs: int
    uses: int
    samples: int
    unended: int
    bytes: int  # size of the file

    @property
    def slices(self) -> int:
        """Everything but the counter readings."""
        return self.spans + self.trajectories + self.rewards + self.syncs + self.uses


def write(run: Run, path: Path) -> TimelineCounts:
    """Writes the timeline of a run to `path`, gzipped where the name ends in `.gz`.

    Errors: `RltraceError` where nothing can be written there; an existing file is then left as is.
    """
    scene = Scene()
    _add_processes(scene, run)
    # All tables are loaded by now: only then are all names known.
    texts: dict[int, str] = dict(run.connection.sql("SELECT id, text FROM names").fetchall())
    steps = slices_of.steps(scene, run)
    spans = slices_of.spans(scene, run, texts)
    trajectories = slices_of.trajectories(scene, run)
    rewards = slices_of.rewards(scene, run, texts)
    syncs = slices_of.syncs(scene, run)
    uses = slices_of.uses(scene, run)
    points = _points(scene, run, texts)
    slices = [s for s in (steps, spans, trajectories, rewards, syncs, uses) if len(s)]
    starts = [int(x.min()) for x in (*(s.start for s in slices), points.time) if len(x)]
    with _file(path) as file:
        file.write(_header(scene, min(starts, default=0)))
        for events in in_time_order(slices, points):
            file.write(events.data)
    return TimelineCounts(
        processes=len(scene.processes),
        tracks=len(scene.tracks) - len(scene.processes),
        spans=len(steps) + len(spans),
        trajectories=len(trajectories),
        rewards=len(rewards),
        syncs=len(syncs),
        uses=len(uses),
        samples=len(points.time),
        unended=sum(int((s.end == OPEN).sum()) for s in slices),
        bytes=path.stat().st_size,
    )


@contextmanager
def _file(path: Path) -> Iterator[BinaryIO]:
    """The file to write; it takes its place only once it is whole."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as plain:
            if path.name.endswith(".gz"):
                # Level 1: a third larger than level 9 and ten times quicker.
                with gzip.GzipFile("", "wb", 1, plain, mtime=0) as packed:
                    yield cast(BinaryIO, packed)
            else:
                yield plain
        os.replace(part, path)
    except OSError as error:
        raise RltraceError(
            f"Cannot write the timeline to {path}: {error.strerror or error}; "
            "choose another place with -o.",
            exit_code=4,
        ) from error
    finally:
        part.unlink(missing_ok=True)


def _add_processes(scene: Scene, run: Run) -> None:
    query = """SELECT process, host, pid, coalesce(role, 'child of ' || child_of), rank
        FROM processes ORDER BY process"""
    for process, host, pid, role, rank in run.sql(query).fetchall():
        title = " ".join(str(x) for x in (role or "process", rank) if x not in (None, -1))
        scene.process(process, f"{title} ({host}:{pid})", (f"host {host}", f"pid {pid}"))


_UNITS = {
    "bytes": "bytes",
    "ns": "ns",
    "seconds": "s",
    "hz": "Hz",
    "percent": "%",
    "watts": "W",
    "joules": "J",
}
"""The unit that the last word of a counter's name states."""


def _points(scene: Scene, run: Run, texts: dict[int, str]) -> Points:
    columns = run.sql(
        "SELECT process, counter, device, time_ns, value FROM raw_samples WHERE NOT isnan(value)"
    ).fetchnumpy()
    process, counter, device, time = (
        np.asarray(columns[c]).astype(np.int64, copy=False)
        for c in ("process", "counter", "device", "time_ns")
    )

    def track(process: int, counter: int, device: int) -> int:
        name = texts.get(counter, "?")
        unit = _UNITS.get(name.rpartition("_")[2], "")
        return scene.counter(process, name if device < 0 else f"{name} {device}", unit)

    return Points(
        track=scene.each(track, process, counter, device),
        time=time,
        value=np.asarray(columns["value"], np.float64),
    )


def _header(scene: Scene, start: int) -> bytes:
    """The packets before the events: the clock, the interned texts, the tracks."""
    trace = Trace()
    clocks = trace.packet.add().clock_snapshot
    # Events carry Unix time: the trace's own clock and real time are said to agree.
    for clock in (BUILTIN_CLOCK_BOOTTIME, BUILTIN_CLOCK_MONOTONIC, BUILTIN_CLOCK_REALTIME):
        clocks.clocks.add(clock_id=clock, timestamp=start)
    clocks.primary_trace_clock = BUILTIN_CLOCK_BOOTTIME

    texts = trace.packet.add(
        trusted_packet_sequence_id=SEQUENCE,
        sequence_flags=TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        | TracePacket.SEQ_NEEDS_INCREMENTAL_STATE,
    ).interned_data
    _intern(scene.categories, texts.event_categories.add)
    _intern(scene.names, texts.event_names.add)
    _intern(scene.titles, texts.debug_annotation_names.add)
    for text, iid in scene.words.ids.items():
        texts.debug_annotation_string_values.add(iid=iid, str=text.encode())

    # A process and its tracks together, the steps first.
    for track in sorted(scene.tracks, key=lambda t: (t.parent or (t.pid and t.uuid), t.uuid)):
        _describe(trace.packet.add(trusted_packet_sequence_id=SEQUENCE), track)
    encoded: bytes = trace.SerializeToString()
    return encoded


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
    if track.parent:
        described.parent_uuid = track.parent
    if track.unit == "bytes":
        described.counter.unit = CounterDescriptor.UNIT_SIZE_BYTES
    elif track.unit is not None:
        described.counter.unit_name = track.unit
