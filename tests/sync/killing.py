"""Forks publishers and subscribers, kills some at random moments, and counts what the others see.
Every element of version n is n, so a mixture of two versions shows.

    python -m tests.sync.killing readers|publishers|subscribers|leases|ranks WHERE COUNT
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from threading import Timer
from typing import Any

import numpy as np

from rltrace.sync import (
    PoisonedError,
    Publisher,
    Subscriber,
    Version,
    commit_together,
    layout_of,
)
from rltrace.testing.inside.trace import RltraceError

SHAPES = {"first": (300_000,), "second": (701,), "third": (100_000,)}


def weights() -> dict[str, np.ndarray[Any, Any]]:
    return {name: np.zeros(shape, dtype=np.float32) for name, shape in SHAPES.items()}


LAYOUT = layout_of(weights())

held: list[Reader] = []
"""Those that hold the policy until this process is killed, too."""


def publish_next(publisher: Publisher, source: dict[str, np.ndarray[Any, Any]]) -> None:
    for array in source.values():
        array[:] = publisher.arena.control.counter + 1
    publisher.publish(source)


class Reader:
    """Pulls, and counts what must not be."""

    def __init__(self, where: str) -> None:
        self.subscriber = Subscriber.connect(where, threads=1)
        self.target = weights()
        self.last: Version | None = None
        self.counts = {"pulls": 0, "torn": 0, "backward": 0, "versions": 0}

    def pull(self) -> None:
        version = self.subscriber.pull_into(self.target)
        arrays = self.target.values()
        whole = all(a.min() == a.max() == version.counter for a in arrays)
        self.counts["pulls"] += 1
        self.counts["torn"] += not whole
        self.counts["backward"] += self.last is not None and version < self.last
        self.counts["versions"] += version != self.last
        self.last = version


def forked(do: Callable[[], None]) -> int:
    pid = os.fork()
    if not pid:
        try:
            do()
        finally:
            os._exit(0)
    return pid


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def readers(where: str, count: int) -> dict[str, int]:
    """Two readers pull `count` times each while versions follow each other without a pause."""
    source, pipes = weights(), []
    with Publisher.open(LAYOUT, where, threads=1) as publisher:
        publish_next(publisher, source)
        for _ in range(2):
            out, into = os.pipe()

            def read(into: int = into) -> None:
                reader = Reader(where)
                while reader.counts["pulls"] < count:
                    reader.pull()
                os.write(into, json.dumps(reader.counts).encode())

            pipes.append((forked(read), out))
        running = [pid for pid, _ in pipes]
        while running:
            publish_next(publisher, source)
            running = [pid for pid in running if os.waitpid(pid, os.WNOHANG)[0] == 0]
        found = [json.loads(os.read(out, 1000)) for _, out in pipes]
        total = {name: sum(one[name] for one in found) for name in found[0]}
        return {**total, "skipped": publisher.skipped}


def publishers(where: str, count: int) -> dict[str, int]:
    """A publisher is killed `count` times, now and then in the middle of a copy."""

    def publish() -> None:
        publisher, source = Publisher.open(LAYOUT, where, threads=1), weights()
        while True:
            publish_next(publisher, source)

    pid, reader, in_copy = forked(publish), None, 0
    for _ in range(count):
        reader = reader or Reader(where)
        last = reader.last
        while reader.subscriber.latest() == last:
            time.sleep(0.0002)
        time.sleep(random.random() * 0.005)
        kill(pid)
        control = reader.subscriber._arena.control
        in_copy += sum(not control.holds(n, control._records.item(n, 1)) for n in range(2))
        reader.pull()
        pid = forked(publish)
    kill(pid)
    assert reader is not None
    held.append(reader)
    return {**reader.counts, "in_copy": in_copy, "slots": reader.subscriber._arena.control.slots}


def subscribers(where: str, count: int) -> dict[str, int]:
    """Subscribers are killed `count` times in the middle of whatever they do."""
    source = weights()
    with Publisher.open(LAYOUT, where, threads=1) as publisher:
        publish_next(publisher, source)

        def read() -> None:
            reader = Reader(where)
            while True:
                reader.pull()

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
        published = publisher.arena.control.counter - last
        return {**reader.counts, "published_after": published, "skipped": publisher.skipped}


def leases(where: str, count: int) -> dict[str, int]:
    """Subscribers are killed while they hold every slot but one."""
    source, skipped, published = weights(), 0, 0
    with Publisher.open(LAYOUT, where, spare=0, threads=1, patience_s=0.01) as publisher:
        for _ in range(count):
            publish_next(publisher, source)
            out, into = os.pipe()

            def hold(into: int = into) -> None:
                views = Subscriber.connect(where, threads=1).lease()
                os.write(into, b"held")
                time.sleep(600)
                views.release()

            pid = forked(hold)
            os.read(out, 4)
            publish_next(publisher, source)
            before = publisher.skipped
            publish_next(publisher, source)
            skipped += publisher.skipped - before
            kill(pid)
            last = publisher.arena.control.counter
            publish_next(publisher, source)
            published += publisher.arena.control.counter - last
    return {"skipped": skipped, "published_after": published}


class Rank:
    """A rank in a process of its own, behind a pipe."""

    def __init__(self, where: str) -> None:
        self.pipe, theirs = Pipe()

        def serve() -> None:
            self.pipe.close()
            subscriber, held = Subscriber.connect(where, threads=1), weights()
            while True:
                what, version = theirs.recv()
                if what == "stage":
                    theirs.send(subscriber.stage(held, version))
                elif what == "commit":
                    theirs.send(subscriber.commit())
                elif what == "abort":
                    theirs.send(subscriber.abort())
                else:
                    theirs.send({float(x) for a in held.values() for x in (a.min(), a.max())})

        self.pid = forked(serve)
        theirs.close()

    def ask(self, what: str, version: Version | None = None) -> Any:
        self.pipe.send((what, version))
        return self.pipe.recv()

    def stage(self, version: Version) -> Any:
        return self.ask("stage", version)

    def commit(self) -> Any:
        return self.ask("commit")

    def abort(self) -> None:
        self.ask("abort")


def ranks(where: str, count: int) -> dict[str, int]:
    """One of three ranks is killed while they take a version on together. The others are either
    both at the old version, where the leader was told that none has changed, or both at the new."""
    source, seen = weights(), {"none": 0, "all": 0, "others": 0, "mixed": 0}
    with Publisher.open(LAYOUT, where, spare=3, threads=1) as publisher:
        publish_next(publisher, source)
        for _ in range(count):
            three = [Rank(where) for _ in range(3)]
            first = publisher.arena.latest()
            assert first is not None
            commit_together(three, first)
            publish_next(publisher, source)
            new = publisher.arena.latest()
            assert new is not None
            killer = Timer(random.random() * 0.006, os.kill, (three[1].pid, signal.SIGKILL))
            killer.start()
            try:
                commit_together(three, new)
                outcome, expected = "all", new
            except PoisonedError:
                outcome, expected = "others", new
            except RltraceError:
                outcome, expected = "none", first
            seen[outcome] += 1
            held = [three[n].ask("values") for n in (0, 2)]
            seen["mixed"] += held != [{float(expected.counter)}] * 2
            killer.join()
            for rank in three:
                with suppress(ProcessLookupError):
                    os.kill(rank.pid, signal.SIGKILL)
                os.waitpid(rank.pid, 0)
                rank.pipe.close()
    return seen


if __name__ == "__main__":
    case, place, number = sys.argv[1:]
    print(json.dumps(globals()[case](place, int(number))), flush=True)
    if case == "publishers":
        os.kill(os.getpid(), signal.SIGKILL)  # so that nobody is left to clear up
