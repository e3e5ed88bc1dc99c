"""An HTTP server that takes JSON and answers with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def serving(answer: Callable[[str, Any], Any], port: int = 0) -> ThreadingHTTPServer:
    """One that is not started yet; `answer(path, asked)` is given `None` for a GET."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            self.answer(None)

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            self.answer(json.loads(self.rfile.read(length) or b"{}"))

        def answer(self, asked: Any) -> None:
            body = json.dumps(answer(self.path, asked)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    class Server(ThreadingHTTPServer):
        request_queue_size = 128  # else a batch that asks at once waits a second for TCP

    return Server(("127.0.0.1", port), Handler)
