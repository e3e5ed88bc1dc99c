"""A link to a server that can be cut, and put together again."""

from __future__ import annotations

import select
import socket
import threading
from contextlib import suppress
from socketserver import BaseRequestHandler, ThreadingTCPServer

LOOKS_EVERY_S = 0.05


class Link(ThreadingTCPServer):
    """Passes TCP connections on to `port` of this machine while it is whole; `connections` counts
    those that were asked for. Cut, it breaks every connection, and hangs up on new ones."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.to = port
        self.port: int = self.server_address[1]
        self.connections = 0
        self.whole = True
        threading.Thread(target=self.serve_forever, args=[LOOKS_EVERY_S], daemon=True).start()


class _Passing(BaseRequestHandler):
    server: Link

    def handle(self) -> None:
        self.server.connections += 1
        if not self.server.whole:
            return
        near: socket.socket = self.request
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.server.to)) as far:
            while self.server.whole:
                for source in select.select([near, far], [], [], LOOKS_EVERY_S)[0]:
                    data = source.recv(65536)
                    if not data:
                        return
                    (far if source is near else near).sendall(data)
