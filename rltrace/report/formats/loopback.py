"""Who may ask a server that listens on this machine only, and how many.

Another page's name may lead to 127.0.0.1, to read what is served there as its own (DNS rebinding).
The browser says which name it asked for.
"""

from __future__ import annotations

import socket
import threading
from ipaddress import ip_address
from socketserver import ThreadingTCPServer
from typing import Any
from urllib.parse import urlsplit

MOST_AT_ONCE = 32  # connections, each in a thread; further ones are hung up on
SILENCE_S = 10.0  # whoever asks and says no more for so long is hung up on


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine's own to itself."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def names_loopback(header: str | None) -> bool:
    """Whether the `Host` of a request, with or without a port, is such a one."""
    if "\t" in (header or ""):  # `urlsplit` takes tabs out, and no browser puts them in
        return False
    try:
        return is_loopback(urlsplit(f"//{header or ''}").hostname or "")
    except ValueError:
        return False


class BoundedServer(ThreadingTCPServer):
    """Answers a few connections at once: a thread for each would be all that the job may have."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 2 * MOST_AT_ONCE

    def __init__(self, *given: Any) -> None:
        self._room = threading.BoundedSemaphore(MOST_AT_ONCE)
        super().__init__(*given)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread is to be had
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Answers one that may fall silent."""
        if isinstance(request, socket.socket):
            request.settimeout(SILENCE_S)
        super().finish_request(request, client_address)
