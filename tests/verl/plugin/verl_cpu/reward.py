"""The share of digits in an answer, and 1 if the right sum is among them; with VERL_CPU_BINARY only
whether there are many digits, which is alike in many groups."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from hangs import may_hang
from job_stamps import stamp


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **more: Any
) -> float:
    start_ns = time.time_ns()
    time.sleep(float(os.environ.get("VERL_CPU_REWARD_SECONDS", "0")))
    may_hang("reward")
    digits = sum(character.isdigit() for character in solution_str)
    score = digits / max(1, len(solution_str)) + float(ground_truth in solution_str)
    score = float(score > 0.3) if os.environ.get("VERL_CPU_BINARY") else score
    stamp("reward", start_ns, score=score)
    return score


async def compute_score_later(*given: Any, **named: Any) -> float:
    """The same, as a function that is awaited."""
    await asyncio.sleep(0.01)
    return compute_score(*given, **named)
