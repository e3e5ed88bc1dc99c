"""The share of digits in an answer, and 1 if the right sum is among them."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

from verl_cpu.dying import die
from verl_cpu.stamps import stamp

_calls = itertools.count(1)


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **more: Any
) -> float:
    """verl's signature of a reward function."""
    start_ns = time.time_ns()
    die("reward", next(_calls))
    time.sleep(float(os.environ.get("VERL_CPU_REWARD_SECONDS", "0")))
    digits = sum(character.isdigit() for character in solution_str)
    score = digits / max(1, len(solution_str)) + float(ground_truth in solution_str)
    stamp("reward", start_ns, score=score)
    return score
