"""A run as a Perfetto timeline in native protobuf."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
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
    TrackDescriptor,
)

from rltrace.report.perfetto import counters
from rltrace.report.perfetto import slices as slices_of
from rltrace.report.perfetto.links import linked
from rltrace.report.perfetto.scene import OPEN, RUN, Points, Scene, Track
from rltrace.report.perfetto.slices import StepFindings
from rltrace.report.perfetto.torch_profile import Profile, merged
from rltrace.report.perfetto.wire import SEQUENCE, in_time_order
from rltrace.trace.errors import RltraceError
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.untrusted_files import packaged_toml
from rltrace.trace.untrusted_files import written as replaced
from rltrace.trace.vocabulary import Stage


@dataclass(frozen=True)
class TimelineCounts:
    """What a timeline holds. `spans` counts steps and the phases of weight updates too, `syncs` the
    participants' parts, `versions` policy versions on their way, `path_stretches` the critical
    path's, `profiled` events of torch.profiler, `samples` recorded readings of counters, `derived`
    those that follow from trajectories, `unended` slices of any kind without an end."""

    processes: int
    tracks: int
    spans: int
    trajectories: int
    rewards: int
    syncs: int
    uses: int
    versions: int
    path_stretches: int
    profiled: int
    arrows: int
    samples: int
    derived: int
    unended: int
    bytes: int  # size of the file

    @property
    def slices(self) -> int:
        """Everything but the counter readings and the arrows."""
        of_run = self.spans + self.trajectories + self.rewards + self.syncs + self.uses
        return of_run + self.versions + self.path_stretches + self.profiled


def write(
    run: OpenedRun,
    path: Path,
    findings: StepFindings | None = None,
    profiles: Sequence[Profile] = (),
) -> TimelineCounts:
    """Writes the timeline of a run to `path`, gzipped where the name ends in `.gz`; `findings` put
    the verdict and the critical path beside it. Errors: `RltraceError`, also for a profile of
    another time; an existing file is then left as is."""
    scene = Scene()
    for process, host, pid, role, rank, stage in run.ask(_IN_LOOP):
        title = " ".join(str(x) for x in (role, rank) if x not in (None, -1))
        scene.process(process, f"{title} ({host}:{pid})", Stage.OTHER if stage is None else stage)
    # All tables are loaded by now: only then are all names known.
    texts: dict[int, str] = dict(run.connection.sql("SELECT id, text FROM names").fetchall())
    steps = slices_of.steps(scene, run, findings)
    critical = slices_of.path(scene, findings)
    spans = slices_of.spans(scene, run, texts)
    phases = slices_of.phases(scene, run, texts)
    generated = slices_of.trajectories(scene, run)
    judged = slices_of.rewards(scene, run, texts)
    used = slices_of.uses(scene, run)
    parts = slices_of.parts(scene, run)
    of_part = slices_of.places(parts)
    versions = slices_of.versions(scene, run, parts, of_part)
    # In the order of causes: at one instant what stands first is written first.
    followed, arrows = linked([generated, judged, used, versions, parts], of_part)
    readings = counters.readings(scene, run, texts)
    derived = counters.derived(scene, run)
    profiled, more_arrows = merged(scene, run, profiles, arrows)
    everything = [steps, critical, spans, *followed, phases, *profiled]
    columns = zip(*((p.track, p.time, p.value) for p in (readings, *derived)), strict=True)
    joined = Points(*map(np.concatenate, columns))
    slices = [s for s in everything if len(s)]
    starts = [int(x.min()) for x in (*(s.start for s in slices), joined.time) if len(x)]
    first_step = int(steps.start.min()) if len(steps) else None
    with whole_file(path) as file:
        written = file.write(header(scene, min(starts, default=0), first_step))
        for events in in_time_order(slices, joined):
            written += file.write(events.data)
    return TimelineCounts(
        processes=len(scene.processes),
        tracks=len(scene.tracks) - len(scene.processes),
        spans=len(steps) + len(spans) + len(phases),
        trajectories=len(generated),
        rewards=len(judged),
        syncs=len(parts),
        uses=len(used),
        versions=len(versions),
        path_stretches=len(critical),
        arrows=arrows + more_arrows,
        profiled=sum(len(s) for s in profiled),
        samples=len(readings.time),
        derived=sum(len(p.time) for p in derived),
        unended=sum(int((s.end == OPEN).sum()) for s in everything),
        bytes=path.stat().st_size if path.is_file() else written,
    )


_IN_LOOP: str = packaged_toml("report/perfetto/slices.toml")["in_loop"].format(Stage=Stage)


_SINCE_LAST = 64  # the clock of the events, the first id that a sequence may give to one of its own


def header(scene: Scene, start: int, first_step: int | None) -> bytes:
    """The clock, the interned texts and the tracks, for events from `start` (Unix ns) on. All
    tracks and texts have to be known by now."""
    trace = Trace()
    clocks = trace.packet.add(trusted_packet_sequence_id=SEQUENCE).clock_snapshot
    # The trace's own clock is Unix time: it and real time are said to agree.
    for clock in (BUILTIN_CLOCK_BOOTTIME, BUILTIN_CLOCK_MONOTONIC, BUILTIN_CLOCK_REALTIME):
        clocks.clocks.add(clock_id=clock, timestamp=start)
    clocks.clocks.add(clock_id=_SINCE_LAST, timestamp=start, is_incremental=True)
    clocks.primary_trace_clock = BUILTIN_CLOCK_BOOTTIME
    if first_step is not None:  # where viewers begin; what was before is a scroll to the left
        began = trace.packet.add(trusted_packet_sequence_id=SEQUENCE, timestamp=first_step)
        began.timestamp_clock_id = BUILTIN_CLOCK_BOOTTIME
        began.service_event.tracing_started = True

    flags = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED | TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
    state = trace.packet.add(trusted_packet_sequence_id=SEQUENCE, sequence_flags=flags)
    state.trace_packet_defaults.timestamp_clock_id = _SINCE_LAST
    texts = state.interned_data
    names = texts.event_categories, texts.event_names, texts.debug_annotation_names
    for of, named in zip((scene.categories, scene.names, scene.titles), names, strict=True):
        for text, iid in of.ids.items():
            named.add(iid=iid, name=text)
    strings = texts.debug_annotation_string_values, texts.correlation_id_str
    for of, told in zip((scene.words, scene.colours), strings, strict=True):
        for text, iid in of.ids.items():
            told.add(iid=iid, str=text.encode())

    root = trace.packet.add(trusted_packet_sequence_id=SEQUENCE).track_descriptor
    root.uuid = 0
    if hasattr(root, "process_ordering"):  # as perfetto 0.57 has it, and Perfetto v57
        root.process_ordering = TrackDescriptor.PROCESS_ORDERING_EXPLICIT
    of_run = trace.packet.add(trusted_packet_sequence_id=SEQUENCE).track_descriptor
    of_run.uuid, of_run.name, of_run.child_ordering = RUN, "run", TrackDescriptor.EXPLICIT

    def place(track: Track) -> tuple[int, int, int]:
        """By process, the top first: the engine puts a thread into the last process of its id."""
        owner = 0 if track.parent == RUN else track.parent or track.uuid
        return (owner, track.order if track.parent else -1, track.uuid)

    for track in sorted(scene.tracks, key=place):
        _describe(trace.packet.add(trusted_packet_sequence_id=SEQUENCE), track)
    encoded: bytes = trace.SerializeToString()
    return encoded


def _describe(packet: TracePacket, track: Track) -> None:
    described = packet.track_descriptor
    described.uuid = track.uuid
    if track.tid:
        described.thread.pid, described.thread.tid = track.pid, track.tid
        described.thread.thread_name = track.name
    else:
        described.sibling_order_rank = track.order
        if track.pid:
            described.process.pid, described.process.process_name = track.pid, track.name
        else:
            described.name = track.name
    if track.parent:
        described.parent_uuid = track.parent
    if track.unit == "bytes":
        described.counter.unit = CounterDescriptor.UNIT_SIZE_BYTES
    elif track.unit is not None:
        described.counter.unit_name = track.unit


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """The file to write, gzipped where its name ends in `.gz`; it takes its place only once it is
    whole. Errors: `RltraceError`."""
    try:
        with replaced(path) as plain:
            packs = path.name.endswith(".gz")
            # Level 1: a third larger than level 9 and ten times quicker.
            with (
                gzip.GzipFile("", "wb", 1, plain, mtime=0) if packs else nullcontext(plain) as file
            ):
                yield cast(BinaryIO, file)
    except OSError as error:
        said = f"cannot write the timeline to {path}: {error.strerror or error}"
        raise RltraceError(f"{said}; choose another place with -o") from error
