"""The share of digits in an answer, and 1 if the right sum is among them; with REWARD_BINARY the
score, by which groups are filtered, is 0 or 1 and 0 for every third prompt, the reward is the same,
or with REWARD_BINARY=score what it was.

OpenRLHF loads this file by its path and calls it in a thread of an engine's actor.
"""

from __future__ import annotations

import os
import time
from typing import Any

from hangs import may_hang
from job_stamps import stamp

DELAY_S = float(os.environ.get("REWARD_DELAY_S", "0"))


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict[str, Any]:
    start_ns = time.time_ns()
    time.sleep(DELAY_S)
    may_hang("reward")
    [query], [prompt], [label] = queries, prompts, labels
    answer = query.removeprefix(prompt).removesuffix("<|im_end|>")
    digits = sum(character.isdigit() for character in answer)
    score = digits / max(1, len(answer)) + float(label in answer)
    known = min(1.0, score)
    if binary := os.environ.get("REWARD_BINARY"):
        known = float(digits % 2 and sum(map(ord, prompt)) % 3 > 0)
        score = score if binary == "score" else known
    stamp("reward", start_ns, score=score, prompt=prompt)
    return {"rewards": score, "scores": known, "extra_logs": {"digits": float(digits)}}
