"""Every publication and pull of a traced process is in its trace, by phase, with its bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rltrace import open_run
from rltrace.hooks.recorder import Recorder
from rltrace.sync import Publisher, Subscriber, layout_of

WEIGHTS = {"w": np.ones(300_000, dtype=np.float32)}
LAYOUT = layout_of(WEIGHTS)


def rows(run: Path, query: str) -> list[Any]:
    return list(open_run(run).sql(query).fetchall())


def test_a_publication_and_a_pull_are_a_source_and_a_sink(
    where: str, recorder: Recorder, run_path: Path
) -> None:
    with Publisher.open(LAYOUT, where) as publisher, Subscriber.connect(where) as subscriber:
        publisher.publish(WEIGHTS)
        publisher.publish_async(WEIGHTS).gate()
        subscriber.pull_into({"w": np.zeros_like(WEIGHTS["w"])}, verify=True)
        assert subscriber.applied is not None
        checksum = int(subscriber.applied.root, 16) & (1 << 63) - 1
        assert recorder.version == 2
    found = rows(
        run_path,
        "select role, version, transport, bytes, wire_bytes, buckets, checksum,"
        " stall_ns >= 0 and stall_ns <= end_ns - start_ns from syncs order by start_ns",
    )
    size = LAYOUT.bytes
    expected = [
        (role, version, "shared-memory", size, size, 3, checksum, True)
        for role, version in (("source", 1), ("source", 2), ("sink", 2))
    ]
    assert found == expected


def test_phases_carry_bytes_and_lie_within_the_whole(
    where: str, recorder: Recorder, run_path: Path
) -> None:
    with Publisher.open(LAYOUT, where) as publisher, Subscriber.connect(where) as subscriber:
        publisher.publish(WEIGHTS)
        subscriber.pull_into({"w": np.zeros_like(WEIGHTS["w"])}, verify=True)
    found = rows(
        run_path,
        "select w.name, s.name, s.phase, s.bytes from spans s join spans w on w.name in"
        " ('publish', 'pull') and s.start_ns >= w.start_ns and s.end_ns <= w.end_ns"
        " and s.name <> w.name order by s.start_ns",
    )
    assert found == [
        ("publish", "a free slot", None, None),
        ("publish", "fill a slot", "transfer", LAYOUT.bytes),
        ("publish", "flip", "visible", None),
        ("pull", "verify", None, None),
        ("pull", "load", "load", LAYOUT.bytes),
    ]


def test_a_version_that_was_left_out_is_no_update(
    where: str, recorder: Recorder, run_path: Path
) -> None:
    with Publisher.open(LAYOUT, where, spare=0, patience_s=0.001) as publisher:
        publisher.publish(WEIGHTS)
        subscriber = Subscriber.connect(where)
        views = subscriber.lease()
        publisher.publish(WEIGHTS)
        assert publisher.publish(WEIGHTS) is None
        views.release()
        subscriber.close()
        assert recorder.version == 2
    assert rows(run_path, "select count(*) from syncs") == [(2,)]
    waits = rows(
        run_path, "select count(*) from spans where name = 'a free slot' and stage = 'wait'"
    )
    assert waits == [(3,)]
