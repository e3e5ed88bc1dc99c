"""All ranks take a version on, or none does; so do hosts, by torch.distributed: here each of them
is a process and a place."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.distributed as dist

from rltrace.sync import (
    Group,
    PoisonedError,
    Publisher,
    Subscriber,
    Version,
    commit_together,
    layout_of,
)
from rltrace.sync.transfer.broadcast_group import BUCKET_BYTES
from rltrace.testing.inside.sync import version_Manifest as Manifest
from rltrace.testing.inside.trace import RltraceError
from tests.patience import PATIENCE_S
from tests.sync.pairs import line, running

pytestmark = pytest.mark.slow

SIZE = BUCKET_BYTES + 700_001  # two buckets, of which the second is short


def weights(value: int) -> dict[str, np.ndarray[Any, Any]]:
    """Every element says which version it is of."""
    return {"body": np.full(SIZE, value, np.uint8), "odd": np.full((3, 7), value, np.float32)}


def pulled(where: str) -> list[float]:
    """The values that are in what a worker of that place pulls."""
    held = weights(0)
    with Subscriber.connect(where, timeout_s=5) as subscriber:
        subscriber.pull_into(held, verify=True)
    return sorted({float(x) for a in held.values() for x in np.unique(a)})


def group_of(store: str, rank: int, size: int, where: str) -> Group:
    return Group(dist.FileStore(store, size), rank, size, where, timeout_s=PATIENCE_S)


def moved(group: Group) -> int | str:
    """What comes of a move."""
    try:
        return group.move().counter
    except RltraceError as error:
        return str(error)


def test_every_host_gets_each_version_whole_and_says_why_where_it_cannot(memory: Path) -> None:
    places = [f"shm://{memory}/{rank}" for rank in range(3)]

    def member(rank: int) -> Group:
        return group_of(str(memory / "store"), rank, 3, places[rank])

    with (
        Publisher.open(layout_of(weights(0)), places[0]) as publisher,
        ThreadPoolExecutor(3) as members,
        ExitStack() as opened,
    ):
        groups = [opened.enter_context(group) for group in members.map(member, range(3))]
        here, *there = members.map(moved, groups)
        assert "nothing is published yet" in str(here)
        assert there == [here, here]
        for number in (1, 2, 3):
            publisher.publish(weights(number))
            assert list(members.map(moved, groups)) == [number] * 3
            assert [pulled(place) for place in places[1:]] == [[float(number)]] * 2
        assert list(members.map(moved, groups)) == [3] * 3  # they have it
        # Readers of one host hold every slot: no host changes.
        for number in (4, 5, 6):
            reader = opened.enter_context(Subscriber.connect(places[1], timeout_s=5))
            opened.enter_context(reader.lease())
            publisher.publish(weights(number))
            said = list(members.map(moved, groups))
            assert said == [number] * 3 or number == 6
        assert all("rank 1: workers hold every slot" in str(each) for each in said)
        assert [pulled(place) for place in places[1:]] == [[5.0]] * 2


MEMBER = """
import sys
from tests.sync.test_group import group_of
group = group_of(sys.argv[1], 1, 2, sys.argv[2])
print(group.move().counter, flush=True)
group.move()
"""


def test_a_lost_member_leaves_whole_versions_and_ends_the_group(memory: Path) -> None:
    store, places = str(memory / "store"), [f"shm://{memory}/{rank}" for rank in range(2)]
    with (
        running(MEMBER, store, places[1]) as other,
        Publisher.open(layout_of(weights(0)), places[0]) as publisher,
        group_of(store, 0, 2, places[0]) as group,
    ):
        publisher.publish(weights(1))
        assert moved(group) == 1
        assert line(other) == "1"
        publisher.publish(weights(2))
        other.kill()
        other.wait()
        aborter = threading.Timer(1.0, group.abort)  # it died before it said what it can do
        aborter.start()
        with pytest.raises(RltraceError, match=r"lost|aborted"):
            group.move()
        aborter.cancel()
        group.close()
        with pytest.raises(RltraceError, match="this group has ended"):
            group.move()
        assert pulled(places[1]) == [1.0]


def listens_at(port: int) -> set[str]:
    """The addresses at which somebody listens there, as the kernel writes them."""
    lines = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()
    ]
    ends = {one[1] for one in lines if one[3] == "0A"}
    return {end.split(":")[0] for end in ends if end.endswith(f":{port:04X}")}


def test_members_of_one_host_meet_where_others_cannot_reach(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    address, places = f"tcp://127.0.0.1:{port}/policy", [f"shm://{memory}/{n}" for n in (0, 1)]

    def join(rank: int) -> Group:
        return Group.join(address, rank, 2, places[rank], timeout_s=PATIENCE_S)

    with ThreadPoolExecutor(1) as other, Publisher.open(layout_of(weights(0)), places[0]) as policy:
        follower = other.submit(join, 1)
        with join(0) as leader, follower.result() as follows:
            assert listens_at(port) == {"0100007F"}
            assert "GLOO_SOCKET_IFNAME" not in os.environ  # the job's own groups
            with pytest.raises(RltraceError, match=f"no group meets at {address}: "):
                join(0)
            policy.publish(weights(7))
            moving = other.submit(follows.move)
            assert leader.move() == moving.result()


def test_who_does_not_come_is_waited_for_no_longer_than_asked(memory: Path) -> None:
    store = dist.FileStore(str(memory / "store"), 2)
    with pytest.raises(RltraceError, match="not all of 2 members came within 1 s"):
        Group(store, 0, 2, f"shm://{memory}/0", timeout_s=1.0)


@pytest.mark.parametrize(("rank", "size", "backend"), [(0, 1, "gloo"), (2, 2, "gloo"), (0, 2, "x")])
def test_what_is_no_group_is_refused(rank: int, size: int, backend: str) -> None:
    with pytest.raises(RltraceError, match="it takes two or more"):
        Group(None, rank, size, backend=backend)


LAYOUT = layout_of({"w": np.zeros(300_000, dtype=np.float32), "b": np.zeros(3)})


class OnLostDevice(torch.Tensor):
    """A tensor on a device that fails the next `failures` copies to it."""

    failures = 0

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.Tensor.copy_ and cls.failures:
            cls.failures -= 1
            raise RuntimeError("the device is lost")
        return super().__torch_function__(function, types, args, kwargs)


class Rank:
    """A rank with tensors of its own, in this process."""

    def __init__(self, where: str) -> None:
        self.subscriber = Subscriber.connect(where)
        # With gaps, so that torch copies the one, and plain memory copies the other.
        self.tensors = {"w": torch.zeros(300_000), "b": torch.zeros(6).double()[::2]}
        self.commit, self.abort = self.subscriber.commit, self.subscriber.abort

    def loses_its_device(self, failures: int) -> None:
        OnLostDevice.failures = failures
        self.tensors["b"] = self.tensors["b"].as_subclass(OnLostDevice)

    def stage(self, version: Version) -> Manifest:
        return self.subscriber.stage(self.tensors, version)

    def holds(self, value: float) -> bool:
        return all(bool((tensor == value).all()) for tensor in self.tensors.values())


@pytest.fixture
def publisher(where: str) -> Iterator[Publisher]:
    with Publisher.open(LAYOUT, where) as opened:
        yield opened


@pytest.fixture
def ranks(publisher: Publisher, where: str) -> Iterator[list[Rank]]:
    made = [Rank(where) for _ in range(3)]
    yield made
    for rank in made:
        rank.subscriber.close()


def publish(publisher: Publisher, value: float) -> Version:
    weights = {"w": np.full(300_000, value, np.float32), "b": np.full(3, float(value))}
    return publisher.publish(weights)


def test_nothing_is_overwritten_before_the_commit(publisher: Publisher, ranks: list[Rank]) -> None:
    version = publish(publisher, 1)
    ranks[0].stage(version)
    publish(publisher, 2)
    publish(publisher, 3)
    assert ranks[0].holds(0)
    assert ranks[0].commit().version == version
    assert ranks[0].holds(1)
    with pytest.raises(RltraceError, match="nothing is staged"):
        ranks[0].commit()


def test_where_one_rank_cannot_stage_none_changes(publisher: Publisher, ranks: list[Rank]) -> None:
    version = publish(publisher, 1)
    lost = ranks[1].tensors.pop("b")
    with pytest.raises(RltraceError, match=r"rank 1: .* b was published"):
        commit_together(ranks, version)
    assert all(rank.holds(0) for rank in ranks)
    ranks[1].tensors["b"] = lost
    manifest = commit_together(ranks, version)
    assert manifest.version == version
    assert all(rank.holds(1) for rank in ranks)
    assert {rank.subscriber.applied for rank in ranks} == {manifest}


def test_a_rank_that_died_is_told_by_what_its_pipe_gives(
    publisher: Publisher, ranks: list[Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    version = publish(publisher, 1)
    for error, said in (EOFError(), "EOFError$"), (OSError(32, "Broken pipe"), "Broken pipe"):
        monkeypatch.setattr(ranks[1], "stage", Mock(side_effect=error))
        with pytest.raises(RltraceError, match=f"rank 1: .*{said}"):
            commit_together(ranks, version)
    assert all(rank.holds(0) for rank in ranks)
    monkeypatch.undo()
    monkeypatch.setattr(ranks[1], "commit", Mock(side_effect=EOFError()))
    with pytest.raises(PoisonedError, match=r"2 of 3 ranks: rank 1: EOFError"):
        commit_together(ranks, version)
    assert [rank.holds(1) for rank in ranks] == [True, False, True]
    with pytest.raises(RltraceError, match="no rank"):
        commit_together([], version)


def test_a_rank_whose_copy_fails_applies_again(publisher: Publisher, ranks: list[Rank]) -> None:
    for failures in (1, 2, 3):
        ranks[2].loses_its_device(failures)
        commit_together(ranks, publish(publisher, failures))
        assert all(rank.holds(failures) for rank in ranks)
        assert not any(rank.subscriber.poisoned for rank in ranks)


def test_a_rank_that_cannot_apply_is_poisoned(publisher: Publisher, ranks: list[Rank]) -> None:
    ranks[0].loses_its_device(100)
    with pytest.raises(PoisonedError, match=r"2 of 3 ranks: rank 0: .*the device is lost"):
        commit_together(ranks, publish(publisher, 1))
    assert ranks[0].subscriber.poisoned
    assert ranks[1].holds(1)
    OnLostDevice.failures = 0
    commit_together(ranks, publish(publisher, 2))
    assert all(rank.holds(2) for rank in ranks)
    assert not ranks[0].subscriber.poisoned
