"""A job that was given some of a node's eight GPUs counts those, and shows those only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.testing.handmade_runs import process, rows, run_of, stating
from rltrace.testing.inside.analysis import count_devices
from rltrace.testing.inside.trace import OpenedRun as Run
from rltrace.testing.inside.trace import RunFollower as Follower
from rltrace.testing.inside.trace import compaction_compact as compact
from rltrace.testing.inside.trace import held_devices

UUIDS = [f"GPU-{n}a0b-{n}" for n in range(8)]
AGENT: dict[str, Any] = {"devices": ["Stand-in"] * 8, "uuids": UUIDS}


def run_given(path: Path, *given: list[str] | None, **agent: Any) -> Run:
    """A run on a node of eight GPUs, all of which its agent read, by processes that were given
    these."""
    watching = rows(process("agent"), "samples", time_s=2.0, counter="gpu/busy_percent",
                    device=list(range(8)), value=[10.0 * n for n in range(8)])  # fmt: skip
    rows(watching, "samples", time_s=2.0, counter="host/memory_total_bytes", value=1e12,
         device=None)  # fmt: skip
    workers = [process("learner", rank=n) for n in range(len(given))]
    run = run_of(path, watching, *workers)
    states = [AGENT | agent, *({"devices": one} for one in given)]
    return stating(run, *states)


def shown(run: Run) -> list[int]:
    """The devices whose readings are shown."""
    found = run.sql("SELECT DISTINCT device FROM samples WHERE device >= 0 ORDER BY 1").fetchall()
    return [device for (device,) in found]


ALL = list(range(8))


@pytest.mark.parametrize(
    ("given", "held", "count", "devices"),
    [
        ([["3"]], {}, 1, [3]),
        ([["3"], ["3"]], {}, 1, [3]),
        ([["3"], ["5"]], {}, 2, [3, 5]),
        ([[UUIDS[3]]], {}, 1, [3]),
        ([["GPU-3a"], ["3"], [UUIDS[5]]], {}, 2, [3, 5]),  # three names, two devices
        ([["MIG-0"]], {}, 1, ALL),  # whose it is cannot be looked up
        ([["12"]], {}, 1, ALL),
        ([None], {}, 8, ALL),
        ([None, ["3"]], {}, 1, [3]),
        ([None], {0: [3]}, 1, [3]),  # it set them itself, once it ran
        ([None, ["5"]], {0: [3]}, 2, [3, 5]),
        ([["3", "4"]], {0: [3]}, 2, [3, 4]),  # what was given is paid for
    ],
)
def test_devices_are_those_of_the_job(
    tmp_path: Path,
    given: list[list[str] | None],
    held: dict[int, list[int]],
    count: int,
    devices: list[int],
) -> None:
    run = run_given(tmp_path, *given)
    if held:
        pids = [p.pid for p in run.processes if p.role != "agent"]
        states = [AGENT | {"held": {str(pids[n]): on for n, on in held.items()}}]
        run = stating(run, *states)
    found = count_devices(run)
    assert (found.kind, found.count, found.name) == ("GPU", count, "Stand-in")
    assert shown(run) == devices
    named = {one for own in held_devices(run.processes, seen=False).values() for one in own}
    assert bool(named) == any(given), "what was only seen is not what somebody works on"
    assert run.sql("FROM samples WHERE counter LIKE 'host/%'").fetchall(), "of the node itself"


def test_a_job_that_was_given_no_gpu_counts_cores(tmp_path: Path) -> None:
    assert count_devices(run_given(tmp_path / "none", [], [])).kind == "core"
    assert count_devices(run_given(tmp_path / "some", [], None)).count == 8


def test_the_cores_are_those_of_all_ranks_however_each_is_bound(tmp_path: Path) -> None:
    run = run_of(tmp_path, *(process("learner", rank=rank) for rank in range(4)), process("agent"))
    bound = [{"cores": 0, "cpus": f"{1 << rank:x}"} for rank in (0, 1, 2, 66, 0)]
    assert count_devices(stating(run, *bound)).count == 4
    told = stating(run, {"cores": 0, "cpus": "no mask"}, *bound[1:])
    assert count_devices(told).count == 4


def test_a_host_that_shares_the_clock_has_devices_of_its_own(tmp_path: Path) -> None:
    """Two containers of a machine, each with one GPU that it calls 0."""
    first, second = [process("agent"), process("learner")], [process("agent"), process("learner")]
    states = [{"host": host, "uuids": [f"GPU-{host}"], "devices": devices}
              for host in ("a", "b") for devices in (["Stand-in"], ["0"])]  # fmt: skip
    run = stating(run_of(tmp_path, *first, *second), *states)
    assert count_devices(run).count == 2


def test_it_is_the_same_of_a_run_that_is_followed_or_compacted(tmp_path: Path) -> None:
    run = run_given(tmp_path, ["3"])
    follower = Follower(run.path)
    follower.poll()
    assert count_devices(follower).count == 1
    compact(run)
    assert shown(rltrace.open_run(run.path)) == [3]


@pytest.mark.parametrize(
    "odd", [{"uuids": "GPU"}, {"uuids": [None, 3]}, {"held": ["0"]}, {"held": {"x": 3}}]
)
def test_what_no_agent_would_say_hides_nothing(tmp_path: Path, odd: dict[str, Any]) -> None:
    assert shown(run_given(tmp_path, None, **odd)) == ALL
