"""Whoever is killed, and whenever: a version is whole or not there, and the others go on.

Run as a program, a case forks publishers and subscribers, kills some at random moments, and prints
counts of what the others saw. Every element of version n is n, so a mixture of two versions shows.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from rltrace.sync import Publisher, Subscriber, Version, layout_of
from tests.patience import PATIENCE_S

SHAPES = {"first": (300_000,), "second": (701,), "third": (100_000,)}
Weights = dict[str, np.ndarray[Any, Any]]


def weights() -> Weights:
    return {name: np.zeros(shape, dtype=np.float32) for name, shape in SHAPES.items()}


def opened(where: str, **wishes: Any) -> tuple[Publisher, Weights]:
    """A publisher, and what it publishes."""
    return Publisher.open(layout_of(weights()), where, threads=1, **wishes), weights()


def publish_next(publisher: Publisher, source: Weights) -> Version:
    for array in source.values():
        array[:] = publisher.arena.control.counter + 1
    publisher.publish(source)
    return publisher.arena.latest()


class Reader:
    """Pulls, and counts what must not be."""

    def __init__(self, where: str) -> None:
        self.subscriber = Subscriber.connect(where, threads=1)
        self.target = weights()
        self.last: Version | None = None
        self.counts = {"pulls": 0, "torn": 0, "backward": 0, "versions": 0}

    def pull(self) -> None:
        version = self.subscriber.pull_into(self.target)
        whole = all(a.min() == a.max() == version.counter for a in self.target.values())
        self.counts["pulls"] += 1
        self.counts["torn"] += not whole
        self.counts["backward"] += self.last is not None and version < self.last
        self.counts["versions"] += version != self.last
        self.last = version


def forked(do: Callable[..., None], *given: Any) -> int:
    pid = os.fork()
    if not pid:
        try:
            do(*given)
        finally:
            os._exit(0)
    return pid


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def publishers(where: str, count: int) -> dict[str, int]:
    """A publisher is killed `count` times, now and then in the middle of a copy."""

    def publish() -> None:
        publisher, source = opened(where)
        while True:
            publish_next(publisher, source)

    pid, in_copy = forked(publish), 0
    reader = Reader(where)
    for _ in range(count):
        while reader.subscriber.latest() == reader.last:
            time.sleep(0.0002)
        time.sleep(random.random() * 0.005)
        kill(pid)
        control = reader.subscriber._arena.control
        in_copy += sum(not control.holds(n, control._records.item(n, 1)) for n in range(2))
        reader.pull()
        pid = forked(publish)
    kill(pid)
    seen = {**reader.counts, "in_copy": in_copy, "slots": reader.subscriber._arena.control.slots}
    print(json.dumps(seen), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)  # so that nobody is left to clear up
    return {}


def subscribers(where: str, count: int) -> dict[str, int]:
    """Subscribers are killed `count` times in the middle of whatever they do."""

    def read() -> None:
        reader = Reader(where)
        while True:
            reader.pull()

    publisher, source = opened(where)
    with publisher:
        publish_next(publisher, source)
        for _ in range(count):
            pid = forked(read)
            end = time.monotonic() + random.random() * 0.02
            while time.monotonic() < end:
                publish_next(publisher, source)
            kill(pid)
        last = publisher.arena.control.counter
        publish_next(publisher, source)
        reader = Reader(where)
        reader.pull()
        reader.subscriber.close()
        return {**reader.counts, "published_after": publisher.arena.control.counter - last}


def counted(case: Callable[[str, int], Any], where: str, count: int) -> dict[str, int]:
    command = [sys.executable, "-m", "tests.sync.test_killed", case.__name__, where, str(count)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return dict(json.loads(done.stdout))


def test_a_killed_publisher_leaves_a_whole_version(where: str, memory: Path) -> None:
    seen = counted(publishers, where, 25)
    assert seen["pulls"] == seen["versions"] == 25
    assert (seen["torn"], seen["backward"]) == (0, 0)
    assert seen["in_copy"] > 0
    assert seen["slots"] <= 3
    # What the last one has left goes when the next policy is opened beside it.
    assert [folder.name for folder in memory.iterdir()] == ["policy"]
    with Publisher.open(layout_of({"w": np.zeros(1)}), f"shm://{memory}/another"):
        assert [folder.name for folder in memory.iterdir()] == ["another"]
    assert list(memory.iterdir()) == []


def test_a_killed_subscriber_holds_nothing_up(where: str, memory: Path) -> None:
    seen = counted(subscribers, where, 25)
    assert (seen["published_after"], seen["torn"], seen["backward"]) == (1, 0, 0)
    assert list(memory.iterdir()) == []


if __name__ == "__main__":
    case, place, number = sys.argv[1:]
    print(json.dumps(globals()[case](place, int(number))), flush=True)
