"""Hosts that take versions on together by torch.distributed; here each is a process and a place."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

from rltrace.sync import Group, Publisher, Subscriber, layout_of
from rltrace.sync.group import BUCKET_BYTES
from rltrace.testing.inside.trace import RltraceError
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.slow

SIZE = BUCKET_BYTES + 700_001  # two buckets, of which the second is short


def weights(value: int) -> dict[str, np.ndarray[Any, Any]]:
    """Every element says which version it is of."""
    return {"body": np.full(SIZE, value, np.uint8), "odd": np.full((3, 7), value, np.float32)}


def member(pipe: Connection, store: str, rank: int, size: int, where: str) -> None:
    """A host's process: does what it is told, and answers with what came of it."""
    pipe.send("here")  # importing torch may take longer than members wait for each other
    assert pipe.recv() == "join"
    group = Group(dist.FileStore(store, size), rank, size, where, timeout_s=PATIENCE_S)  # type: ignore[attr-defined]
    pipe.send("joined")
    subscribers: list[Subscriber] = []
    while (asked := pipe.recv()) is not None:
        try:
            if asked == "move":
                pipe.send(group.move().counter)
            elif asked == "pull":
                held = weights(0)
                with Subscriber.connect(where, timeout_s=5) as subscriber:
                    subscriber.pull_into(held, verify=True)
                pipe.send(sorted({float(x) for a in held.values() for x in np.unique(a)}))
            elif asked == "hold":
                subscribers.append(Subscriber.connect(where, timeout_s=5))
                subscribers[-1].lease()
                pipe.send("held")
        except RltraceError as error:
            pipe.send(str(error))
    group.close()


class Hosts:
    """Rank 0 in this process, and the others in their own."""

    def __init__(self, folder: Path, others: int) -> None:
        self.folder, size = folder, others + 1
        store = str(folder / "store")
        context = get_context("spawn")
        self.pipes, self.processes = [], []
        for rank in range(1, size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=member, args=(theirs, store, rank, size, self.place(rank)), daemon=True
            )
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        assert self.answers() == ["here"] * others
        self.ask("join")
        self.publisher = Publisher.open(layout_of(weights(0)), self.place(0))
        self.group = Group(
            dist.FileStore(store, size), 0, size, self.place(0), timeout_s=PATIENCE_S
        )  # type: ignore[attr-defined]
        assert self.answers() == ["joined"] * others

    def place(self, rank: int) -> str:
        return f"shm://{self.folder}/{rank}"

    def ask(self, what: str | None) -> None:
        for pipe in self.pipes:
            pipe.send(what)

    def answers(self) -> list[Any]:
        return [pipe.recv() for pipe in self.pipes]

    def move(self) -> list[Any]:
        """What came of it, here and there."""
        self.ask("move")
        try:
            here: Any = self.group.move().counter
        except RltraceError as error:
            here = str(error)
        return [here, *self.answers()]

    def pulled(self) -> list[Any]:
        self.ask("pull")
        return self.answers()

    def close(self) -> None:
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            if process.is_alive():
                pipe.send(None)
            process.join()
        self.group.close()
        self.publisher.close()


@pytest.fixture
def hosts(memory: Path) -> Iterator[Callable[[int], Hosts]]:
    with ExitStack() as stack:

        def make(others: int) -> Hosts:
            made = Hosts(memory, others)
            stack.callback(made.close)
            return made

        yield make


def test_every_host_gets_each_version_whole_and_says_why_where_it_cannot(
    hosts: Callable[[int], Hosts],
) -> None:
    job = hosts(2)
    here, *there = job.move()
    assert "nothing is published yet" in here
    assert there == [here, here]
    for number in (1, 2, 3):
        job.publisher.publish(weights(number))
        assert job.move() == [number] * 3
        assert job.pulled() == [[float(number)]] * 2
    assert job.move() == [3] * 3  # they have it
    # Readers of one host hold every slot: no host changes, and the next time all do.
    job.pipes[0].send("hold")
    assert job.pipes[0].recv() == "held"
    for number in (4, 5):
        job.publisher.publish(weights(number))
        assert job.move() == [number] * 3
        job.pipes[0].send("hold")
        assert job.pipes[0].recv() == "held"
    job.publisher.publish(weights(6))
    for said in job.move():
        assert "was taken on by no host: rank 1: workers hold every slot" in said
    assert job.pulled() == [[5.0]] * 2


def test_a_lost_member_leaves_whole_versions_and_ends_the_group(
    hosts: Callable[[int], Hosts],
) -> None:
    job = hosts(2)
    job.publisher.publish(weights(1))
    assert job.move() == [1] * 3
    job.publisher.publish(weights(2))
    job.ask("move")
    pid = job.processes[1].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    job.processes[1].join()
    aborter = threading.Timer(1.0, job.group.abort)  # where it died before it said what it can do
    aborter.start()
    with pytest.raises(RltraceError, match=r"lost|aborted"):
        job.group.move()
    aborter.cancel()
    job.group.close()
    with pytest.raises(RltraceError, match="this group has ended"):
        job.group.move()
    os.kill(job.processes[0].pid or 0, signal.SIGKILL)  # it waits for the one that is gone
    job.processes[0].join()
    held = weights(0)
    for rank in (1, 2):
        with Subscriber.connect(job.place(rank), timeout_s=5) as subscriber:
            subscriber.pull_into(held, verify=True)
        assert {float(x) for a in held.values() for x in np.unique(a)} <= {1.0}


def listens_at(port: int) -> set[str]:
    """The addresses at which somebody listens there, as the kernel writes them."""
    lines = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()
    ]
    ends = {one[1] for one in lines if one[3] == "0A"}
    return {end.split(":")[0] for end in ends if end.endswith(f":{port:04X}")}


def test_members_meet_at_an_address_that_others_cannot_reach_where_it_is_this_hosts(
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
    store = dist.FileStore(str(memory / "store"), 2)  # type: ignore[attr-defined]
    with pytest.raises(RltraceError, match="not all of 2 members came within 1 s"):
        Group(store, 0, 2, f"shm://{memory}/0", timeout_s=1.0)


@pytest.mark.parametrize(("rank", "size", "backend"), [(0, 1, "gloo"), (2, 2, "gloo"), (0, 2, "x")])
def test_what_is_no_group_is_refused(rank: int, size: int, backend: str) -> None:
    with pytest.raises(RltraceError, match="it takes two or more"):
        Group(None, rank, size, backend=backend)
