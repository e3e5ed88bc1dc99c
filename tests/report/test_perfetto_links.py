"""Arrows of a run that was started again, whose versions come twice."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from time import monotonic_ns

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

import rltrace
from rltrace.report.perfetto import write
from rltrace.testing.inside.hooks import Recorder, identify
from rltrace.testing.inside.trace import Fate, Run, SyncRole, create_run
from tests.report.timelines import events

US = 1000
AGAIN = 1000  # when the second attempt began, us


def started_again(directory: Path) -> Run:
    """Two attempts at versions 1 and 2, with a sample each."""
    create_run(str(directory), ["python", "train.py"], {}, rltrace.__version__)
    base = monotonic_ns()
    for attempt in (0, AGAIN):
        learner = Recorder(str(directory))
        learner.describe(role="learner")

        def at(moment: int, attempt: int = attempt) -> int:
            return base + (attempt + moment) * US

        for version, begins in ((1, 100), (2, 200)):
            parts = ((SyncRole.SOURCE, 0, 10), (SyncRole.SINK, 5, 30))
            for role, begun, ended in parts:
                times = {"start_ns": at(begins + begun), "end_ns": at(begins + ended)}
                learner.append("syncs", version=version, role=role, **times)
        sample = {"trajectory": identify(attempt)}
        generated = {"start_ns": at(110), "end_ns": at(150), "first_version": 1, "last_version": 1}
        learner.append("trajectories", **generated, **sample)
        use = {"step": 1, "version": 1, "fate": Fate.TRAINED}
        learner.append("uses", time_ns=at(190), **use, **sample)
    return rltrace.open_run(directory)


def test_a_sample_leads_to_the_version_that_was_made_of_it(tmp_path: Path) -> None:
    run = started_again(tmp_path / "run")
    counts = write(run, tmp_path / "t.pftrace")
    assert counts.versions == 4, "two versions, twice each"
    trace = Trace.FromString((tmp_path / "t.pftrace").read_bytes())
    texts = next(p.interned_data for p in trace.packet if p.HasField("interned_data"))
    names = {entry.iid: entry.name for entry in texts.event_names}
    first, _ = next(events(trace))
    arrows: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for moment, event in events(trace):
        for arrow in event.flow_ids:
            moment_us = (moment - first) // US + 100  # the first update begins at 100
            arrows[arrow].append((names[event.name_iid], moment_us))
    expected = []
    for attempt in (0, AGAIN):
        use = ("trained", attempt + 190)
        expected += [[("trajectory v1", attempt + 110), use]]
        expected += [[use, ("v2 on its way", attempt + 200)]]
        for version, begins in ((1, attempt + 100), (2, attempt + 200)):
            on_its_way = (f"v{version} on its way", begins)
            expected += [[on_its_way, (f"weights v{version}", begins + at)] for at in (0, 5)]
    assert sorted(arrows.values()) == sorted(expected)
