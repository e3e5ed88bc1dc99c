"""A tool for verl's own agent loop, which loads this file by its path."""

from __future__ import annotations

import time

from job_stamps import stamp
from verl.tools.function_tool import function_tool


@function_tool
def add(a: int, b: int) -> str:
    """Adds two numbers.

    Args:
        a: The one.
        b: The other.
    """
    start_ns = time.time_ns()
    time.sleep(0.02)
    stamp("tool", start_ns)
    return str(a + b)
