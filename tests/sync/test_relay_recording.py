"""Every hop of a traced node is in its trace: which version, how many bytes, and on the wire."""

from __future__ import annotations

from pathlib import Path

from rltrace import open_run
from rltrace.testing.inside.hooks import Recorder
from tests.sync.relays import job, nudge


def test_each_version_that_a_node_takes_on_is_a_relays_row(
    memory: Path, recorder: Recorder, run_path: Path
) -> None:
    with job(memory) as j:
        node = j.follow(j.root().address)
        node.wait(j.publish())
        nudge(j.state, 1)
        node.wait(j.publish())
        # Arrived is not yet written down: the next version is watched for after that.
        size = j.publisher.layout.bytes
        wire = [received.progress.wire_bytes for received in j.received]
        buckets = [received.progress.buckets for received in j.received]
        checksums = [int(r.manifest.root, 16) & (1 << 63) - 1 for r in j.received]
    found = (
        open_run(run_path)
        .sql(
            "select version, transport, bytes, wire_bytes, buckets, checksum, stall_ns"
            " from syncs where role = 'relay' order by start_ns"
        )
        .fetchall()
    )
    assert found == [
        (1, "tcp", size, wire[0], buckets[0], checksums[0], 0),
        (2, "tcp", size, wire[1], buckets[1], checksums[1], 0),
    ]
    assert wire[0] == size
    assert wire[1] < 0.01 * size


def test_the_bytes_of_the_phases_add_up_on_both_sides_of_a_hop(
    memory: Path, recorder: Recorder, run_path: Path
) -> None:
    with job(memory, blocks=20) as j:
        node = j.follow(j.root().address, streams=3)
        node.wait(j.publish())
        size = j.publisher.layout.bytes
    run = open_run(run_path)
    found = dict(
        run.sql(
            "select name, sum(bytes) from spans where stage = 'sync' and phase = 'transfer'"
            " and name in ('send', 'receive') group by name"
        ).fetchall()
    )
    assert found == {"send": size, "receive": size}
    within = run.sql(
        "select count(*) from spans w join spans s on w.name = 'relay' and s.name = 'receive'"
        " and s.start_ns >= w.start_ns and s.end_ns <= w.end_ns and s.end_ns > s.start_ns"
    ).fetchall()
    assert within == [(3,)]
