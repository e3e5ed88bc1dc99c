"""The timeline: official protobufs read in it what the run holds. That Perfetto's own engine does,
too, is tested in tests/system/test_timeline.py."""

from __future__ import annotations

import gzip
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent

import rltrace
from benchmarks.make_trace import make
from benchmarks.synthetic.workload import Workload
from rltrace.report.perfetto import write
from rltrace.testing.handmade_runs import process, rows, run_of
from rltrace.testing.inside.analysis import summarize
from rltrace.testing.inside.report import find
from rltrace.testing.inside.trace import Fate, SyncRole
from tests.report.timelines import DURATIONS, VERSIONS, awkward, events, names_of, read


def test_the_packets_make_a_well_formed_trace(tmp_path: Path) -> None:
    run = awkward(tmp_path / "run")
    plain, packed = tmp_path / "t.pftrace", tmp_path / "t.pftrace.gz"
    sizes = [write(run, path).bytes for path in (plain, packed)]
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert sizes == [plain.stat().st_size, packed.stat().st_size]
    described: set[int] = set()
    processes, threads = Counter[int](), Counter[int]()
    texts: set[int] = set()
    stacks: dict[int, list[int]] = defaultdict(list)
    durations: list[int] = []
    ends_of_arrows = Counter[int]()
    trace = read(tmp_path / "t.pftrace")
    for packet in trace.packet:
        if packet.HasField("interned_data"):
            texts = {entry.iid for entry in packet.interned_data.event_names}
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            assert track.parent_uuid in described | {0}, "a parent comes before its tracks"
            described.add(track.uuid)
            processes.update([track.process.pid] if track.HasField("process") else [])
            threads.update([track.thread.tid] if track.HasField("thread") else [])
        assert not packet.HasField("track_event") or packet.track_event.track_uuid in described
    for moment, event in events(trace):
        ends_of_arrows.update(event.flow_ids)
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            assert event.name_iid in texts
            stacks[event.track_uuid].append(moment)
        elif event.type == TrackEvent.TYPE_SLICE_END:
            durations.append(moment - stacks[event.track_uuid].pop())
    assert max(processes.values()) == max(threads.values()) == 1, "made-up ids are unique"
    assert sum(len(stack) for stack in stacks.values()) == 1, "one span never ended"
    recorded = run.sql(DURATIONS).fetchall()[0][0]
    on_their_way = run.sql(f"SELECT sum(end_ns - start_ns) FROM ({VERSIONS})").fetchall()[0][0]
    assert sum(durations) == recorded + on_their_way
    assert set(ends_of_arrows.values()) == {2}, "an arrow has two ends"


def test_an_empty_run_is_an_empty_timeline(tmp_path: Path) -> None:
    empty = run_of(tmp_path)
    counts = write(empty, tmp_path / "t.pftrace", find(empty))
    assert (counts.slices, counts.tracks, counts.derived) == (0, 0, 0)
    assert not [p for p in read(tmp_path / "t.pftrace").packet if p.HasField("track_event")]


def test_steps_carry_the_verdict_and_the_path_fills_them(tmp_path: Path) -> None:
    make(tmp_path / "run", Workload(steps=8))
    run = rltrace.open_run(tmp_path / "run")
    findings, wall = find(run), summarize(run).verdict.first
    assert wall is not None
    write(run, tmp_path / "t.pftrace", findings)
    trace = read(tmp_path / "t.pftrace")
    texts = next(p.interned_data for p in trace.packet if p.HasField("interned_data"))
    titles = {entry.iid: entry.name for entry in texts.debug_annotation_names}
    words = {entry.iid: entry.str.decode() for entry in texts.debug_annotation_string_values}
    names = names_of(trace)
    begun = [p.track_event for p in trace.packet if p.HasField("track_event")]
    steps = [e for e in begun if names.get(e.name_iid, "").startswith("step ")]
    assert len(steps) == len(findings.steps) == 8
    for event in steps:
        said = {titles[note.name_iid]: note for note in event.debug_annotations}
        assert words[said["verdict.wall"].string_value_iid] == wall.name
        shares = {k: v.double_value for k, v in said.items() if k.startswith("exposed_share.")}
        assert 0.9 < sum(shares.values()) <= 1.0001
        most = max(shares, key=lambda name: shares[name])
        assert most == "exposed_share." + words[said["most_exposed"].string_value_iid]
        assert said["goodput.useful_tokens"].double_value > 0
    path = findings.path
    assert all(a.end_ns == b.start_ns for a, b in pairwise(path))


AGAIN_S = 10  # when the second attempt began


def test_a_sample_leads_to_the_version_that_was_made_of_it(tmp_path: Path) -> None:
    """A run that was started again: two attempts at versions 1 and 2, with a sample each."""
    attempts = []
    for n, begins in enumerate((0, AGAIN_S)):
        learner = process("learner", rank=n)
        rows(learner, "syncs", start_s=[begins + at for at in (1, 1.5, 3, 3.5)],
             end_s=[begins + at for at in (1.7, 2, 3.7, 4)], version=[1, 1, 2, 2],
             role=[SyncRole.SOURCE, SyncRole.SINK] * 2)  # fmt: skip
        rows(learner, "trajectories", start_s=[begins + 1.1], end_s=[begins + 1.9],
             trajectory=[n + 1], first_version=[1], last_version=[1])  # fmt: skip
        rows(learner, "uses", time_s=[begins + 2.5], trajectory=[n + 1], step=[1], version=[1],
             fate=[Fate.TRAINED])  # fmt: skip
        attempts.append(learner)
    run = run_of(tmp_path, *attempts)
    counts = write(run, tmp_path / "t.pftrace")
    assert counts.versions == 4, "two versions, twice each"
    trace = read(tmp_path / "t.pftrace")
    names = names_of(trace)
    first, _ = next(events(trace))
    arrows: dict[int, list[tuple[str, float]]] = defaultdict(list)
    for moment, event in events(trace):
        for arrow in event.flow_ids:
            moment_s = (moment - first) / 1e9 + 1  # the first update begins at 1
            arrows[arrow].append((names[event.name_iid], moment_s))
    expected = []
    for attempt in (0, AGAIN_S):
        use = ("trained", attempt + 2.5)
        expected += [[("trajectory v1", attempt + 1.1), use]]
        expected += [[use, ("v2 on its way", attempt + 3)]]
        for version, begins in ((1, attempt + 1), (2, attempt + 3)):
            on_its_way = (f"v{version} on its way", begins)
            expected += [[on_its_way, (f"weights v{version}", begins + at)] for at in (0, 0.5)]
    assert sorted(arrows.values()) == sorted(expected)
