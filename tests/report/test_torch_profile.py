"""Traces of the real torch.profiler stand in the process and at the time that they are of."""

from __future__ import annotations

import gzip
import json
import os
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

import rltrace
from benchmarks.make_trace import make
from benchmarks.synthetic.workload import Workload
from rltrace.report.perfetto import write
from rltrace.report.perfetto.torch_profile import files_of, read
from rltrace.testing.inside.hooks import Recorder
from rltrace.testing.inside.trace import OpenedRun as Run
from rltrace.testing.inside.trace import RltraceError, create_run
from tests.report.timelines import events

torch = pytest.importorskip("torch")

Traced = tuple[Path, int, int]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run in which this process is a learner."""
    directory = tmp_path_factory.mktemp("profiled") / "run"
    create_run(str(directory), ["python", "train.py"], {}, rltrace.__version__)
    Recorder(str(directory)).describe(role="learner", rank=0)
    return rltrace.open_run(directory)


@pytest.fixture(scope="module")
def trace(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Traced:
    """What the profiler wrote during the run, and Unix ns just before and after the block in it."""
    from torch.profiler import ProfilerActivity, profile, record_function

    assert run.processes
    matrix = torch.ones(32, 32, requires_grad=True)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        before = time.time_ns()
        with record_function("update the policy"):
            (matrix @ matrix).sum().backward()
        after = time.time_ns()
    path = tmp_path_factory.mktemp("profile") / "rank0.pt.trace.json"
    profiler.export_chrome_trace(str(path))
    return path, before, after


def document_of(trace: Traced) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(trace[0].read_text())
    return document


def timeline(run: Run, folder: Path, document: dict[str, Any], name: str) -> Trace:
    """The run's timeline with a profile of that name."""
    (folder / name).write_text(json.dumps(document))
    write(run, folder / "t.pftrace", None, [read(folder / name)])
    return Trace.FromString((folder / "t.pftrace").read_bytes())


def timed(document: dict[str, Any]) -> list[dict[str, Any]]:
    events = document["traceEvents"]
    return [e for e in events if e["ph"] == "X" and isinstance(e["pid"], int)]


def test_every_event_is_read_at_its_unix_time(trace: Traced) -> None:
    path, before, after = trace
    profile, document = read(path), document_of(trace)
    events = timed(document)
    assert len(profile) == len(events) > 10
    assert profile.pid == os.getpid()
    assert (profile.end_ns - profile.start_ns).tolist() == [round(e["dur"] * 1000) for e in events]
    block = profile.name.index("update the policy")
    slack_ns = 50_000_000  # Kineto reads another clock, and converts
    assert before - slack_ns < profile.start_ns[block] < profile.end_ns[block] < after + slack_ns
    product = profile.name.index("aten::mm")
    assert profile.start_ns[block] <= profile.start_ns[product] < profile.end_ns[block]
    shapes = next(a for a in profile.arguments if a.title == "Input Dims")
    assert shapes.words is not None
    assert json.loads(shapes.words[shapes.values[product]]) == [[32, 32], [32, 32]]
    # Arrows lead from forward to backward.
    begun = sum(e["ph"] == "s" for e in document["traceEvents"])
    assert len(profile.arrows) == begun > 0
    for forward, backward in profile.arrows.tolist():
        assert "Backward" not in profile.name[forward]
        assert "Backward" in profile.name[backward]


def test_a_gzipped_trace_and_one_without_a_base_time(trace: Traced, tmp_path: Path) -> None:
    def same(path: Path, within_ns: int) -> None:
        other, profile = read(path), read(trace[0])
        assert other.name == profile.name
        assert int(np.abs(other.start_ns - profile.start_ns).max()) <= within_ns

    data = trace[0].read_bytes()
    (tmp_path / "packed.json.gz").write_bytes(gzip.compress(data))
    same(tmp_path / "packed.json.gz", 0)
    document = json.loads(data)  # older ones count from the Unix epoch
    base_us = document.pop("baseTimeNanoseconds") / 1000
    for event in document["traceEvents"]:
        event["ts"] += base_us
    (tmp_path / "old.json").write_text(json.dumps(document))
    same(tmp_path / "old.json", 500)  # of a double's precision
    assert files_of(tmp_path) == [tmp_path / "old.json", tmp_path / "packed.json.gz"]


def test_it_stands_in_the_process_that_it_is_of(trace: Traced, run: Run, tmp_path: Path) -> None:
    profile = read(trace[0])
    counts = write(run, tmp_path / "t.pftrace", None, [profile])
    assert (counts.profiled, counts.arrows) == (len(profile), len(profile.arrows))
    drawn = Trace.FromString((tmp_path / "t.pftrace").read_bytes())
    tracks = [p.track_descriptor for p in drawn.packet if p.HasField("track_descriptor")]
    names = {t.uuid: t.process.process_name for t in tracks if t.HasField("process")}
    of_torch = [t for t in tracks if t.name.startswith("torch: ")]
    assert of_torch
    assert {names[t.parent_uuid].split()[0] for t in of_torch} == {"learner"}
    begun = sorted(moment for moment, event in events(drawn) if event.name_iid)
    clock = run.clock_of(run.processes[0].node)
    assert clock is not None
    offset = clock.to_unix(np.array([time.monotonic_ns()]))[0] - time.time_ns()
    moved = np.array(begun) - np.sort(profile.start_ns)
    assert len(set(moved.tolist())) == 1, "all by the same"
    assert abs(moved[0] - offset) < 5_000_000, "onto the run's clock"


def test_an_untraced_process_has_a_track_of_its_own(
    trace: Traced, run: Run, tmp_path: Path
) -> None:
    document = document_of(trace) | {"distributedInfo": {"rank": 3}, "host_name": "another"}
    packets = timeline(run, tmp_path, document, "rank3.json").packet
    names = [p.track_descriptor.process.process_name for p in packets]
    assert "torch.profiler rank 3 (rank3.json)" in names


def test_the_clock_of_another_node_is_put_right(trace: Traced, tmp_path: Path) -> None:
    make(tmp_path / "run", Workload(nodes=2, steps=4))
    run = rltrace.open_run(tmp_path / "run")
    there = next(p for p in run.processes if p.node != run.meta["node"] and p.role == "learner")
    moment = there.start_ns + 10**10
    off_ns = 5 * 10**9  # node 1's real time is five seconds ahead
    document = document_of(trace)
    first = min(e["ts"] for e in timed(document))
    document["baseTimeNanoseconds"] = moment + off_ns - round(first * 1000)
    document["host_name"] = there.host
    for event in document["traceEvents"]:
        event["pid"] = there.pid if event["pid"] == os.getpid() else event["pid"]
    drawn = timeline(run, tmp_path, document, "node1.json")
    tracks = [packet.track_descriptor for packet in drawn.packet]
    of_torch = {track.uuid for track in tracks if "torch: " in track.name}
    begun = [moment for moment, event in events(drawn) if event.track_uuid in of_torch]
    bound_ns = 10**6  # far more than the exchanges leave open, far less than the clocks differ
    assert abs(min(begun) - moment) < bound_ns


def test_a_trace_of_another_time_is_said(trace: Traced, run: Run, tmp_path: Path) -> None:
    document = document_of(trace)
    document["baseTimeNanoseconds"] -= 10**14
    with pytest.raises(RltraceError, match=r"not recorded during this run.* before its start"):
        timeline(run, tmp_path, document, "old.json")
    assert not (tmp_path / "t.pftrace").exists()


CHROME = {"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 1, "pid": 1, "tid": 1}]}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"not JSON", "no JSON"),
        (b'{"traceEvents": [', "breaks off"),
        (b"[1, 2]", "no list `traceEvents`"),
        (json.dumps(CHROME).encode(), "another program wrote it"),
        (gzip.compress(b"{}" * 1000, mtime=0)[:-9], "compressed data"),
        (json.dumps({**CHROME, "schemaVersion": 1, "traceEvents": []}).encode(), "no event"),
        (b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "pid": 1}]}', "no name or no time"),
    ],
)
def test_what_is_no_trace_is_said_in_a_sentence(data: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(data)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RltraceError, match=says):
        read(tmp_path / "x.json")
    with pytest.raises(RltraceError, match=r"no torch\.profiler trace"):
        files_of(tmp_path / "empty")


def test_a_large_profile_takes_a_few_times_its_size(tmp_path: Path) -> None:
    """Names and shapes come again with each event: they stand once in memory."""
    said = {"Input Dims": [[16, 1024], [1024, 1024], []], "Input type": ["float", "float", ""]}
    said |= {"Concrete Inputs": ["", "", ""], "Input Strides": [[1024, 1], [1024, 1], []]}
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::addmm", "pid": 1, "tid": 1, "dur": 0.5}
    made = [{**event, "ts": place, "args": {**said, "External id": place}} for place in range(9000)]
    path = tmp_path / "large.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": made}))
    del made
    tracemalloc.start()
    try:
        found = read(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4.5 * path.stat().st_size
    shapes = next(one for one in found.arguments if one.title == "Input Dims")
    assert shapes.words == [json.dumps(said["Input Dims"])]
    assert (len(found), set(found.name)) == (9000, {"aten::addmm"})
