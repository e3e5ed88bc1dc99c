"""When a part of this package worked, by its own clock: one line of JSON each.

They know nothing of rltrace, so that a trace can be held against them.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any


def stamp(what: str, start_ns: int, **more: Any) -> None:
    """Writes that `what` has run from `start_ns` until now, if the environment names a folder."""
    folder = os.environ.get("OPENRLHF_CPU_STAMPS")
    if folder is None:
        return
    times = {"start_ns": start_ns, "end_ns": time.time_ns()}
    line = {"what": what, "pid": os.getpid(), **times, **more}
    with open(f"{folder}/{what}-{os.getpid()}.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")
