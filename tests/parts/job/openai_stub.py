"""Stands where vLLM's server would: chat completions, with the token ids and log-probabilities that
vLLM adds when it is asked for them; or without, as other servers answer."""

from __future__ import annotations

import json
import random
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ledger import note

PROMPT = [11, 12, 13, 14, 15]
_random = random.Random(0)


def complete(request: dict[str, Any]) -> dict[str, Any]:
    """An answer. Whose it is, the request says as `user`; whether with ids, as its `model`."""
    tokens = [_random.randint(20, 90) for _ in range(_random.choice([3, 5, 30]))]
    time.sleep(0.005 * len(tokens))
    whole = request["model"] != "plain"
    choice: dict[str, Any] = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": "4" * len(tokens)},
    }
    answer: dict[str, Any] = {
        "id": f"answer-{_random.random()}",
        "object": "chat.completion",
        "created": 0,
        "model": request["model"],
        "choices": [choice],
        "usage": {
            "prompt_tokens": len(PROMPT),
            "completion_tokens": len(tokens),
            "total_tokens": len(PROMPT) + len(tokens),
        },
    }
    if whole:
        answer["prompt_token_ids"] = PROMPT
        choice["token_ids"] = tokens
        content = [{"token": "4", "logprob": -1.0, "bytes": [52], "top_logprobs": []}]
        choice["logprobs"] = {"content": content * len(tokens), "refusal": None}
    note("answered", attempt=request["user"], prompt=len(PROMPT), tokens=len(tokens), whole=whole)
    return answer


class Handler(BaseHTTPRequestHandler):
    """JSON in, JSON out."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Says nothing."""

    def do_POST(self) -> None:
        """A completion."""
        length = int(self.headers.get("Content-Length", 0))
        body = json.dumps(complete(json.loads(self.rfile.read(length)))).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def start() -> str:
    """Starts it in a thread; its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/v1"
