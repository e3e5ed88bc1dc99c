"""Every hop of a traced node is in its trace: which version, how many bytes, and on the wire."""

from __future__ import annotations

from pathlib import Path

import pytest

from rltrace import open_run
from rltrace.hooks.recorder import Recorder
from rltrace.sync.following import Received
from tests.sync.relays import Job


def test_each_version_that_a_node_takes_on_is_a_relays_row(
    j: Job, recorder: Recorder, run_path: Path
) -> None:
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
def test_the_bytes_of_the_phases_add_up_on_both_sides_of_a_hop(
    j: Job, recorder: Recorder, run_path: Path
) -> None:
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
