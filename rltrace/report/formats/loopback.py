"""Who may ask a server that listens on this machine only, and how many.

Another page's name may lead to 127.0.0.1, to read what is served there as its own (DNS rebinding).
The browser says which name it asked for.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.message import Message
from ipaddress import ip_address
from socketserver import ThreadingTCPServer
from typing import Any
from urllib.parse import urlsplit

MOST_AT_ONCE = 32  # connections, each in a thread
_ROOM_S = 0.05  # that a further one waits until the oldest is hung up on
SILENCE_S = 10.0  # whoever asks and says no more for so long is hung up on


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine's own to itself."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def names_loopback(headers: Message) -> bool:
    """Whether a request names one host, with or without a port, and it is such a one."""
    named = [str(one) for one in headers.get_all("Host", [])]
    if len(named) != 1 or "\t" in named[0]:  # `urlsplit` takes tabs out, and no browser has any
        return False
    try:
        return is_loopback(urlsplit(f"//{named[0]}").hostname or "")
    except ValueError:
        return False


class BoundedServer(ThreadingTCPServer):
    """Answers a few connections at once: a thread for each would be all that the job may have. One
    more takes the place of the oldest, so that slow ones shut nobody out."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 2 * MOST_AT_ONCE

    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        # No `HTTPServer`: that asks the DNS for its own name first, which may take long.
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._open: dict[int, socket.socket] = {}  # the oldest first
        self._room = threading.BoundedSemaphore(MOST_AT_ONCE)
        super().__init__(address, handler)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Answers in a thread until the block ends."""
        thread = threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.shutdown()
            self.server_close()
            thread.join()

    def process_request(self, request: Any, client_address: Any) -> None:
        while not self._room.acquire(timeout=_ROOM_S):
            for oldest in [*self._open.values()][:1]:
                with suppress(OSError):  # it has just ended
                    oldest.shutdown(socket.SHUT_RDWR)
                    oldest.settimeout(0)  # nor is it waited for while it takes its answer
        self._open[id(request)] = request
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread is to be had
            self._end(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._end(request)

    def _end(self, request: Any) -> None:
        self._open.pop(id(request), None)
        self._room.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Answers one that may fall silent."""
        request.settimeout(SILENCE_S)
        super().finish_request(request, client_address)

    def handle_error(self, request: object, client_address: object) -> None:
        """Says what failed, unless whoever asked did not wait for the answer."""
        if not isinstance(error := sys.exc_info()[1], OSError):
            print(f"rltrace: a request failed: {error!r}", file=sys.stderr)
