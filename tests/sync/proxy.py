"""A link that can be made bad: it damages, cuts, holds back or slows down what a parent sends."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from rltrace.testing.inside.sync import Address


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
        self.connections = 0
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
            self.connections += 1
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


def until(holds: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    """Waits for something to become true. Errors: `TimeoutError`."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.005)
