"""Hangs that a job is asked for, each until somebody opens a pipe and closes it.

They know nothing of rltrace, so that what it says of a job that hangs can be held against them.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from contextlib import suppress

from job_stamps import stamp

_calls: Counter[str] = Counter()
_counting = threading.Lock()


def may_hang(where: str) -> None:
    """Reads a pipe, `release` in `JOB_STAMPS`, if `JOB_HANGS` is `WHERE:CALL`, this is that call of
    its process (the first is 1), and no other process was there before."""
    with _counting:
        _calls[where] += 1
        hangs = os.environ.get("JOB_HANGS") == f"{where}:{_calls[where]}"
    pipe = f"{os.environ.get('JOB_STAMPS')}/release"
    with suppress(FileExistsError):
        if hangs:
            os.mkfifo(pipe)
            stamp("hangs")
            with open(pipe, "rb") as file:
                file.read()
