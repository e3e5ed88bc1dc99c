"""What the job itself saw, one line of JSON each. It knows nothing of rltrace, so that a trace can
be held against it."""

from __future__ import annotations

import json
import os
import time
from typing import Any

FOLDER = os.environ["PARTS_LEDGER"]


def note(what: str, **seen: Any) -> None:
    line = {"pid": os.getpid(), "time_ns": time.time_ns(), **seen}
    with open(f"{FOLDER}/{what}-{os.getpid()}.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")
