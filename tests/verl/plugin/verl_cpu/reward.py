"""The share of digits in an answer, and 1 if the right sum is among them."""

from __future__ import annotations

import os
import time
from typing import Any

from job_stamps import stamp


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **more: Any
) -> float:
    start_ns = time.time_ns()
    time.sleep(float(os.environ.get("VERL_CPU_REWARD_SECONDS", "0")))
    digits = sum(character.isdigit() for character in solution_str)
    score = digits / max(1, len(solution_str)) + float(ground_truth in solution_str)
    stamp("reward", start_ns, score=score)
    return score
