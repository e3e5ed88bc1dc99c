"""Every publication, pull and hop of a traced process is in its trace, by phase, with its bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rltrace import open_run
from rltrace.sync import layout_of
from rltrace.testing.inside.hooks import Recorder
from rltrace.testing.inside.sync import Received
from tests.sync.pairs import pair, published
from tests.sync.relays import Job

pytestmark = pytest.mark.usefixtures("recorder")

WEIGHTS = {"w": np.ones(300_000, dtype=np.float32)}
LAYOUT = layout_of(WEIGHTS)


def rows(run: Path, query: str) -> list[Any]:
    return list(open_run(run).sql(query).fetchall())


def test_a_publication_and_a_pull_are_a_source_and_a_sink(
    where: str, recorder: Recorder, run_path: Path
) -> None:
    with pair(where, WEIGHTS) as (publisher, subscriber):
        publisher.publish(WEIGHTS)
        publisher.publish_async(WEIGHTS)
        publisher.gate()
        subscriber.pull_into({"w": np.zeros_like(WEIGHTS["w"])}, verify=True)
        checksum = int(subscriber.applied.root, 16) & (1 << 63) - 1
        assert recorder.version == 2
    found = rows(
        run_path,
        "select role, version, transport, bytes, wire_bytes, buckets, checksum,"
        " stall_ns >= 0 and (behind or stall_ns <= end_ns - start_ns)"
        # who waits for one behind him may do so before it begins
        " from (select *, role = 'source' and version = 2 as behind from syncs) order by start_ns",
    )
    size = LAYOUT.bytes
    updates = ("source", 1), ("source", 2), ("sink", 2)
    assert found == [
        (role, version, "shared-memory", size, size, 3, checksum, True) for role, version in updates
    ]


def test_phases_carry_bytes_and_lie_within_the_whole(where: str, run_path: Path) -> None:
    with published(where, WEIGHTS) as subscriber:
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
        ("pull", "load", "load", LAYOUT.bytes),
    ]


def test_a_version_that_was_left_out_is_no_update(
    where: str, recorder: Recorder, run_path: Path
) -> None:
    with pair(where, WEIGHTS, spare=0, patience_s=0.001) as (publisher, subscriber):
        publisher.publish(WEIGHTS)
        with subscriber.lease():
            publisher.publish(WEIGHTS)
            assert publisher.publish(WEIGHTS) is None
        assert recorder.version == 2
    assert rows(run_path, "select count(*) from syncs") == [(2,)]
    waits = "select count(*) from spans where name = 'a free slot' and stage = 'wait'"
    assert rows(run_path, waits) == [(3,)]


def test_each_version_that_a_node_takes_on_is_a_relays_row(j: Job, run_path: Path) -> None:
    node = j.follow(j.root().address)
    node.wait(j.publish())
    node.wait(j.next())
    first, second = j.all_received(2)
    j.close()  # arrived is not yet written down
    rows = open_run(run_path).sql(
        "select version, transport, bytes, wire_bytes, buckets, checksum, stall_ns"
        " from syncs where role = 'relay' order by start_ns"
    )
    size = j.publisher.layout.bytes
    assert rows.fetchall() == [
        (n, "tcp", size, r.progress.wire_bytes, r.progress.buckets, checksum_of(r), 0)
        for n, r in ((1, first), (2, second))
    ]
    assert first.progress.wire_bytes == size
    assert second.progress.wire_bytes < 0.01 * size


def checksum_of(received: Received) -> int:
    return int(received.manifest.root, 16) & (1 << 63) - 1


@pytest.mark.parametrize("j", [20], indirect=True)
def test_the_bytes_of_the_phases_add_up_on_both_sides_of_a_hop(j: Job, run_path: Path) -> None:
    j.follow(j.root().address, streams=3).wait(j.publish())
    j.close()
    size, run = j.publisher.layout.bytes, open_run(run_path)
    found = run.sql(
        "select name, sum(bytes) from spans where stage = 'sync' and phase = 'transfer'"
        " and name in ('send', 'receive') group by name order by name"
    )
    assert found.fetchall() == [("receive", size), ("send", size)]
    within = run.sql(
        "select count(*) from spans w join spans s on w.name = 'relay' and s.name = 'receive'"
        " and s.start_ns >= w.start_ns and s.end_ns <= w.end_ns and s.end_ns > s.start_ns"
    )
    assert within.fetchall() == [(3,)]
