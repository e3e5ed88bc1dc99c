"""Clients that say a byte at a time, hang up in the middle, and come again where one is ended."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from tests.patience import PATIENCE_S

COUNT = 40
_HANG_UP = struct.pack("ii", 1, 0)  # by a reset, as a program that is killed does


class SlowClients:
    def __init__(self, place: tuple[str, int], said: bytes) -> None:
        self._place, self._said = place, said
        self._open = [self._new() for _ in range(COUNT)]

    def _new(self) -> socket.socket:
        return socket.create_connection(self._place, timeout=PATIENCE_S)

    def go_on(self) -> None:
        """Each says one more byte; whoever was hung up on begins anew."""
        self._said = self._said[1:] + self._said[:1]
        for at, one in enumerate(self._open):
            try:
                one.sendall(self._said[-1:])
            except OSError:
                one.close()
                self._open[at] = self._new()

    def hang_up(self) -> None:
        for one in self._open:
            with suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _HANG_UP)
            one.close()


@contextmanager
def slow_clients(place: tuple[str, int], said: bytes) -> Iterator[SlowClients]:
    """`COUNT` of them at a server, until the end of the block."""
    with ExitStack() as stack:
        made = SlowClients(place, said)
        stack.callback(made.hang_up)
        yield made
