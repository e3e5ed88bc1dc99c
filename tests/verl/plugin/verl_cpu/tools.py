"""A tool for verl's own agent loop, which loads this file by its path."""

from __future__ import annotations

import itertools
import time

from verl.tools.function_tool import function_tool

from verl_cpu.dying import die
from verl_cpu.stamps import stamp

_calls = itertools.count(1)


@function_tool
def add(a: int, b: int) -> str:
    """Adds two numbers.

    Args:
        a: The one.
        b: The other.
    """
    start_ns = time.time_ns()
    die("agent-loop", next(_calls))
    time.sleep(0.02)
    stamp("tool", start_ns)
    return str(a + b)
