"""A reward function that is good for a first batch, and then (`OPENRLHF_CPU_BAD`) raises or gives
nothing in turn, or hangs. OpenRLHF loads this file by its path."""

from __future__ import annotations

import os
import time
from itertools import count
from typing import Any

from openrlhf_cpu.reward import reward_func as judge
from openrlhf_cpu.stamps import stamp

GOOD = 8  # calls
HANG_S = 60  # longer than any test waits

_nth = count().__next__


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict[str, Any] | None:
    """OpenRLHF's signature; one of each."""
    nth = _nth()
    if nth < GOOD:
        return judge(queries, prompts, labels)
    stamp("bad", time.time_ns(), nth=nth)
    if os.environ["OPENRLHF_CPU_BAD"] == "hangs":
        time.sleep(HANG_S)
    elif nth % 2:
        raise RuntimeError("a verdict that cannot be given")
    return None
