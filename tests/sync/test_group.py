"""All ranks take a version on, or none does; so do hosts, by torch.distributed: here each of them
is a process and a place."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from multiprocessing.connection import Connection
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
from rltrace.sync.group import BUCKET_BYTES
from rltrace.testing.inside.sync import version_Manifest as Manifest
from rltrace.testing.inside.trace import RltraceError
from tests.patience import PATIENCE_S

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


def member(pipe: Connection, *given: Any) -> None:
    """A host's process: does what it is told, and answers with what came of it."""
    pipe.send("here")  # importing torch may take longer than members wait for each other
    assert pipe.recv() == "join"
    group, where = group_of(*given), given[-1]
    pipe.send("joined")
    held = []
    while (asked := pipe.recv()) is not None:
        try:
            if asked == "move":
                pipe.send(group.move().counter)
            elif asked == "pull":
                pipe.send(pulled(where))
            elif asked == "hold":
                held.append(Subscriber.connect(where, timeout_s=5))
                held[-1].lease()
                pipe.send("held")
        except RltraceError as error:
            pipe.send(str(error))
    group.close()


class Hosts:
    """Rank 0 in this process, and the others in their own."""

    def __init__(self, folder: Path, others: int) -> None:
        self.folder, size = folder, others + 1
        store, context = str(folder / "store"), get_context("spawn")
        self.pipes, self.processes = [], []
        for rank in range(1, size):
            ours, theirs = context.Pipe()
            given = theirs, store, rank, size, self.place(rank)
            self.processes.append(context.Process(target=member, args=given, daemon=True))
            self.processes[-1].start()
            theirs.close()
            self.pipes.append(ours)
        assert self.answers() == ["here"] * others
        self.tell("join")
        self.publisher = Publisher.open(layout_of(weights(0)), self.place(0))
        self.group = group_of(store, 0, size, self.place(0))
        assert self.answers() == ["joined"] * others

    def place(self, rank: int) -> str:
        return f"shm://{self.folder}/{rank}"

    def tell(self, what: str | None) -> None:
        for pipe in self.pipes:
            pipe.send(what)

    def answers(self) -> list[Any]:
        return [pipe.recv() for pipe in self.pipes]

    def move(self) -> list[Any]:
        """What came of it, here and there."""
        self.tell("move")
        try:
            here: Any = self.group.move().counter
        except RltraceError as error:
            here = str(error)
        return [here, *self.answers()]

    def pulled(self) -> list[Any]:
        self.tell("pull")
        return self.answers()

    def close(self) -> None:
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            if process.is_alive():
                pipe.send(None)
            process.join()
        self.group.close()
        self.publisher.close()


@pytest.fixture
def hosts(memory: Path) -> Iterator[Hosts]:
    """Three of them."""
    with closing(Hosts(memory, 2)) as made:
        yield made


def test_every_host_gets_each_version_whole_and_says_why_where_it_cannot(hosts: Hosts) -> None:
    here, *there = hosts.move()
    assert "nothing is published yet" in here
    assert there == [here, here]
    for number in (1, 2, 3):
        hosts.publisher.publish(weights(number))
        assert hosts.move() == [number] * 3
        assert hosts.pulled() == [[float(number)]] * 2
    assert hosts.move() == [3] * 3  # they have it
    # Readers of one host hold every slot: no host changes.
    for number in (4, 5, 6):
        hosts.pipes[0].send("hold")
        assert hosts.pipes[0].recv() == "held"
        hosts.publisher.publish(weights(number))
        said = hosts.move()
        assert said == [number] * 3 or number == 6
    assert all("rank 1: workers hold every slot" in each for each in said)
    assert hosts.pulled() == [[5.0]] * 2


def test_a_lost_member_leaves_whole_versions_and_ends_the_group(hosts: Hosts) -> None:
    hosts.publisher.publish(weights(1))
    assert hosts.move() == [1] * 3
    hosts.publisher.publish(weights(2))
    hosts.tell("move")
    hosts.processes[1].kill()
    hosts.processes[1].join()
    aborter = threading.Timer(1.0, hosts.group.abort)  # where it died before it said what it can do
    aborter.start()
    with pytest.raises(RltraceError, match=r"lost|aborted"):
        hosts.group.move()
    aborter.cancel()
    hosts.group.close()
    with pytest.raises(RltraceError, match="this group has ended"):
        hosts.group.move()
    hosts.processes[0].kill()  # it waits for the one that is gone
    hosts.processes[0].join()
    for rank in (1, 2):
        assert set(pulled(hosts.place(rank))) <= {1.0}


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
