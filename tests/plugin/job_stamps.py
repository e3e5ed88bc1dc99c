"""When a part of a job worked, by its own clock: one line of JSON each.

They know nothing of rltrace, so that a trace can be held against them.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any


def stamp(what: str, start_ns: int = 0, **more: Any) -> None:
    """Writes that `what` has run from `start_ns` until now, or is now, if `JOB_STAMPS` names a
    folder."""
    folder = os.environ.get("JOB_STAMPS")
    if folder is None:
        return
    end_ns = time.time_ns()
    line = {"pid": os.getpid(), "start_ns": start_ns or end_ns, "end_ns": end_ns, **more}
    with open(f"{folder}/{what}-{os.getpid()}.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")
