"""The queries that come with rltrace tell what weights and devices did."""

from __future__ import annotations

from pathlib import Path

from rltrace.testing.inside.trace import Phase, Run, Stage, SyncRole, Transport
from rltrace.testing.made import process, rows, run_of
from tests.analysis.asking import ask, columns

MS = 1_000_000


def synced(path: Path) -> Run:
    """One update of 10 GB that a source sends within 2 s and two sinks take, one of them late."""
    source = process("learner", rank=0)
    source.spans += process("", (Stage.SYNC, 0, 1)).spans
    begin, end, *rest = source.spans[0]
    source.spans[0] = (begin, end, "gather", int(Stage.SYNC), int(Phase.GATHER), *rest[3:])
    sinks = [process("rollout", rank=rank) for rank in range(2)]
    parts = ((source, SyncRole.SOURCE, 2.0), (sinks[0], SyncRole.SINK, 2.0))
    for made, role, end_s in (*parts, (sinks[1], SyncRole.SINK, 5.0)):
        rows(
            made,
            "syncs",
            start_s=[0.0],
            end_s=[end_s],
            version=[1],
            role=[role],
            bytes=[10_000_000_000],
            stall_ns=[100 * MS],
            transport=[Transport.NCCL],
        )
    return run_of(path, source, *sinks)


def test_an_update_lasts_from_first_to_last(tmp_path: Path) -> None:
    (found,) = ask(synced(tmp_path), "weight_updates")
    assert (found["version"], found["seconds"], found["participants"]) == (1, 5, 3)
    assert (found["bytes"], found["gb_per_s"]) == (10_000_000_000, 2)
    assert (found["longest_stall_s"], found["transports"]) == (0.1, "nccl")


def test_the_slowest_participant_comes_first(tmp_path: Path) -> None:
    found = ask(synced(tmp_path), "sync_by_rank")
    wanted = ("role", "process_role", "rank", "mean_s", "gb_per_s")
    assert columns(found, *wanted) == [
        ("sink", "rollout", 1, 5, 2),
        ("source", "learner", 0, 2, 5),
        ("sink", "rollout", 0, 2, 5),
    ]


def test_phases_of_updates(tmp_path: Path) -> None:
    found = ask(synced(tmp_path), "sync_phases")
    assert columns(found, "phase", "name", "role", "total_s") == [
        ("gather", "gather", "learner", 1)
    ]


def test_devices_and_counters(tmp_path: Path) -> None:
    agent = process("agent")
    readings = {"gpu/busy_percent": [0.0, 100.0], "gpu/energy_joules": [5000.0, 9000.0]}
    for counter, values in readings.items():
        moments = [float(n) for n in range(len(values))]
        shape = {"counter": [counter] * len(values), "device": [1] * len(values)}
        rows(agent, "samples", time_s=moments, value=values, **shape)
    run = run_of(tmp_path, agent)
    (device,) = ask(run, "gpu_utilisation")
    assert (device["device"], device["busy_percent"], device["idle_share"]) == (1, 50, 0.5)
    assert (device["energy_kj"], device["memory_gb"]) == (4, None)
    wanted = ("counter", "device", "readings", "first", "last")
    assert columns(ask(run, "counters"), *wanted) == [
        ("gpu/busy_percent", 1, 2, 0, 100),
        ("gpu/energy_joules", 1, 2, 5000, 9000),
    ]
