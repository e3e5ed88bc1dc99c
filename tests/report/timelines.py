"""Runs with everything that a timeline can stumble over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import monotonic_ns

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

import rltrace
from rltrace.testing.inside.hooks import Recorder, identify
from rltrace.testing.inside.trace import Fate, Finish, Phase, Stage, SyncRole, Transport, create_run
from rltrace.testing.inside.trace import OpenedRun as Run

US = 1000

DURATIONS = """
    SELECT sum(end_ns - start_ns)::BIGINT FROM (
        SELECT start_ns, end_ns FROM raw_spans UNION ALL
        SELECT start_ns, end_ns FROM raw_trajectories UNION ALL
        SELECT start_ns, end_ns FROM raw_rewards UNION ALL
        SELECT start_ns, end_ns FROM raw_syncs)
    WHERE end_ns <> -1
"""
"""Of all that stands in a timeline as it was recorded."""

VERSIONS = """
    SELECT version, min(start_ns) AS start_ns, max(end_ns) AS end_ns
    FROM raw_syncs WHERE version >= 0 GROUP BY version
"""
"""The versions on their way, of a run that was not started again."""


def events(trace: Trace) -> Iterator[tuple[int, TrackEvent]]:
    """The events of a timeline and when they are, Unix ns: each tells the time since the last."""
    state = next(p for p in trace.packet if p.HasField("trace_packet_defaults"))
    clock = state.trace_packet_defaults.timestamp_clock_id
    snapshot = next(p.clock_snapshot for p in trace.packet if p.HasField("clock_snapshot"))
    (own,) = (c for c in snapshot.clocks if c.clock_id == clock)
    assert own.is_incremental
    now = own.timestamp
    for packet in trace.packet:
        if packet.HasField("track_event"):
            now += packet.timestamp
            yield now, packet.track_event


def names_of(trace: Trace) -> dict[int, str]:
    """The names of its events, by the number that stands for each."""
    texts = next(p.interned_data for p in trace.packet if p.HasField("interned_data"))
    return {entry.iid: entry.name for entry in texts.event_names}


def read(path: Path) -> Trace:
    trace: Trace = Trace.FromString(path.read_bytes())
    return trace


def awkward(directory: Path) -> Run:
    """Two processes of one pid, spans that cross, touch, last no time and never end."""
    create_run(str(directory), ["python", "train.py"], {}, rltrace.__version__)
    rollout, learner = Recorder(str(directory)), Recorder(str(directory))
    rollout.describe(role="rollout", rank=0)
    learner.describe(role="learner")
    base = monotonic_ns()

    def span(start: int, end: int | None, stage: Stage = Stage.ROLLOUT, **columns: int) -> None:
        recorder = learner if stage in (Stage.STEP, Stage.TRAIN) else rollout
        given = {"name": recorder.name(stage.name.lower()), "stage": stage, "lane": 5, **columns}
        end_ns = -1 if end is None else base + end * US
        recorder.append("spans", start_ns=base + start * US, end_ns=end_ns, **given)

    span(0, 100, step=3, version=300, tokens=10**12)
    span(10, 50, Stage.ENV)
    span(50, 60, bytes=5)  # begins as the one before it ends
    span(60, 60)  # no length
    span(60, 100, Stage.SYNC, phase=Phase.LOAD)  # ends with its parent
    span(100, 200)
    span(150, 250)  # crosses the one before it
    span(300, None)  # never ended
    span(310, 320, step=0, version=0, tokens=0)  # zero is known
    span(20, 30, lane=6)
    span(20, 40, Stage.TRAIN)
    span(0, 500, Stage.STEP, step=0)
    span(500, 900, Stage.STEP, step=1)
    for i in range(5):
        times = {"start_ns": 0, "end_ns": 100, "first_token_ns": 10}
        times = {name: base + (moment + i) * US for name, moment in times.items()}
        known = {"first_version": 1, "last_version": 1 + i % 2, "response_tokens": 17}
        known |= {"trajectory": identify(i), "group": identify("g"), "finish": Finish.LENGTH}
        rollout.append("trajectories", **times, **known)
        use = {"trajectory": identify(i), "step": 1, "fate": Fate.TRAINED if i else Fate.STALE}
        learner.append("uses", time_ns=base + (600 + i) * US, version=3, **use)
    verdict = {"trajectory": identify(0), "component": rollout.name("exact match"), "value": 0.5}
    rollout.append("rewards", start_ns=base + 100 * US, end_ns=base + 101 * US, **verdict)
    for recorder, role, start in ((learner, SyncRole.SOURCE, 900), (rollout, SyncRole.SINK, 920)):
        update = {"version": 4, "role": role, "transport": Transport.NCCL, "bytes": 10**5}
        times = {"start_ns": base + start * US, "end_ns": base + (start + 50) * US}
        recorder.append("syncs", **times, **update)
    for i in range(3):
        reading = {"counter": learner.name("memory_bytes"), "device": 0, "value": 0.1 * i}
        learner.append("samples", time_ns=base + i * US, **reading)
    return rltrace.open_run(directory)
