"""A learner and the nodes that follow it, everything in one process or as commands, and a link that
can be made bad: it damages, cuts or holds back what a parent sends."""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rltrace.sync import Publisher, Subscriber, Version, layout_of
from rltrace.testing.inside.sync import BLOCK_BYTES, Address, Received, Relay
from tests.patience import until

COMMAND = [sys.executable, "-c", "from rltrace.cli import main; main()", "sync", "serve"]
Weights = dict[str, NDArray[np.generic]]


def weights(blocks: int = 6, seed: int = 0) -> Weights:
    """Noise in 16-bit elements, and a few odd tensors behind."""
    draws = np.random.default_rng(seed)
    return {
        "body": draws.integers(0, 65536, (blocks, BLOCK_BYTES // 2), dtype=np.uint16),
        "odd": draws.standard_normal((3, 7)).astype(np.float32),
        "count": np.arange(5, dtype=np.uint8),
    }


def nudge(state: Weights, seed: int, share: float = 0.005) -> None:
    """Moves a share of the elements to a neighbour."""
    body = state["body"].reshape(-1)
    places = np.random.default_rng(seed).integers(0, len(body), int(share * len(body)))
    body[places] += np.uint16(1)
    state["count"] += np.uint8(1)


class Job:
    """A learner that publishes `state`, and relays that end with the job."""

    def __init__(self, folder: Path, blocks: int = 6) -> None:
        self.folder = folder
        self.state = weights(blocks)
        self.publisher = Publisher.open(layout_of(self.state), self.place("policy"))
        self.received: list[Received] = []
        self._relays: list[Relay] = []
        self._names: dict[Relay, str] = {}
        self._processes: list[subprocess.Popen[str]] = []

    def place(self, name: str) -> str:
        """Where a node of that name has its slots."""
        return f"shm://{self.folder / name}"

    def publish(self, step: int = -1) -> Version:
        """Publishes the state as it is."""
        return self.publisher.publish(self.state, step)

    def next(self, seed: int = 1) -> Version:
        """Publishes the state with a few changes."""
        nudge(self.state, seed)
        return self.publish()

    def root(self, fanout: int = 0) -> Relay:
        """Serves what the learner publishes."""
        relay = Relay.serve(self.place("policy"), fanout=fanout)
        self._relays.append(relay)
        return relay

    def follow(self, parent: str, name: str = "", **wishes: object) -> Relay:
        """A node that follows another."""
        name = name or f"node-{secrets.token_hex(4)}"
        wishes = {"on_received": self.received.append, **wishes}
        relay = Relay.follow(parent, self.place(name), **wishes)
        self._relays.append(relay)
        self._names[relay] = name
        return relay

    def command(self, name: str, parent: str | None = None) -> tuple[subprocess.Popen[str], str]:
        """A node as a process of its own, and its address."""
        words = [*COMMAND, self.place(name), "--json"]
        words += ["--follow", parent] if parent else []
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self._processes.append(process)
        return process, json.loads(process.stdout.readline())["address"]

    def all_received(self, count: int) -> list[Received]:
        """What the followers have received, so many versions in all: each is told of once it is
        there for others, which may be a moment later."""
        until(lambda: len(self.received) >= count, f"{count} versions to be told of")
        return self.received

    def arrives(self, node: Relay, version: Version | None = None) -> Version:
        """Checks that a node gets a version (else the state as it is), and its workers the bits."""
        version = version or self.publish()
        assert node.wait(version) == version
        assert self.holds(self._names[node], version)
        return version

    def holds(self, name: str, at_least: Version) -> bool:
        """Whether a node's workers get the published bits."""
        with Subscriber.connect(self.place(name)) as subscriber:
            return self.pulls(subscriber, at_least)

    def pulls(self, subscriber: Subscriber, at_least: Version | int) -> bool:
        """Whether what it pulls, checked, is what was published."""
        target = {key: np.zeros_like(value) for key, value in self.state.items()}
        subscriber.pull_into(target, at_least, verify=True)
        return all((target[key] == self.state[key]).all() for key in target)

    def close(self) -> None:
        """Ends everything."""
        for process in self._processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        for relay in self._relays:
            relay.close()
        self.publisher.close()


@contextmanager
def job(folder: Path, blocks: int = 6) -> Iterator[Job]:
    """A job that is over with the block."""
    made = Job(folder, blocks)
    try:
        yield made
    finally:
        made.close()


class Proxy:
    """Stands between a child and its parent. What is set applies to connections made later.

    `damage` gets each piece that the parent sends and its offset in that connection, and may change
    it. After `cut_after` bytes a connection breaks; beyond `gate_after` nothing passes while `gate`
    is unset (the connection stays). `passed` counts what the parent sent, over all connections.
    """

    def __init__(self, parent: str) -> None:
        self._parent = Address.parse(parent)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = str(Address("127.0.0.1", self._listener.getsockname()[1], "policy"))
        self.damage: Callable[[bytearray, int], None] = lambda *_: None
        self.cut_after: int | None = None
        self.gate_after: int | None = None
        self.gate = threading.Event()
        self.passed = 0
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Breaks every connection, and takes no further ones."""
        for each in [self._listener, *self._sockets]:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                child, _ = self._listener.accept()
            except OSError:
                return
            try:
                parent = socket.create_connection((self._parent.host, self._parent.port))
            except OSError:
                child.close()
                continue
            self._sockets += [child, parent]
            threading.Thread(target=self._up, args=(child, parent), daemon=True).start()
            threading.Thread(target=self._down, args=(parent, child), daemon=True).start()

    def _up(self, child: socket.socket, parent: socket.socket) -> None:
        with suppress(OSError):
            while data := child.recv(65536):
                parent.sendall(data)
        _end(child, parent)

    def _down(self, parent: socket.socket, child: socket.socket) -> None:
        offset = 0
        with suppress(OSError):
            while data := bytearray(parent.recv(65536)):
                if self.cut_after is not None and offset + len(data) > self.cut_after:
                    child.sendall(data[: self.cut_after - offset])
                    break
                if self.gate_after is not None and offset > self.gate_after:
                    self.gate.wait(30)
                self.damage(data, offset)
                child.sendall(data)
                offset += len(data)
                self.passed += len(data)
        _end(child, parent)


def _end(*sockets: socket.socket) -> None:
    for each in sockets:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
