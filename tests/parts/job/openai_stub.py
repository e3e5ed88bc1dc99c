"""Stands where vLLM's server would: chat completions, with the token ids and log-probabilities that
vLLM adds when it is asked for them; or without, as other servers answer."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

from job_stamps import stamp
from json_server import serving

PROMPT = [11, 12, 13, 14, 15]
_random = random.Random(0)


def complete(request: dict[str, Any]) -> dict[str, Any]:
    """An answer. Whose it is, the request says as `user`; whether with ids, as its `model`."""
    tokens = [_random.randint(20, 90) for _ in range(_random.choice([3, 5, 30]))]
    time.sleep(0.005 * len(tokens))
    whole = request["model"] != "plain"
    message = {"role": "assistant", "content": "4" * len(tokens)}
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "message": message}
    usage = {"prompt_tokens": len(PROMPT), "completion_tokens": len(tokens)}
    usage["total_tokens"] = sum(usage.values())
    answer: dict[str, Any] = {"id": f"answer-{_random.random()}", "object": "chat.completion"}
    answer |= {"created": 0, "model": request["model"], "choices": [choice], "usage": usage}
    if whole:
        answer["prompt_token_ids"] = PROMPT
        choice["token_ids"] = tokens
        content = [{"token": "4", "logprob": -1.0, "bytes": [52], "top_logprobs": []}]
        choice["logprobs"] = {"content": content * len(tokens), "refusal": None}
    stamp("answered", attempt=request["user"], prompt=len(PROMPT), tokens=len(tokens), whole=whole)
    return answer


def start() -> str:
    server = serving(lambda _, request: complete(request))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/v1"
