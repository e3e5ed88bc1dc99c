"""How tests wait for what must come, and how long."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_S = 600
"""For a process, a file, an answer: only what hangs takes so long, whoever else has the machine."""


def until(condition: Callable[[], object], what: str = "it") -> None:
    """Waits for a condition to be true."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"{what} never came"
        time.sleep(0.01)


def stop(pid: int) -> None:
    """Stops a process, all of its threads: a signal that was sent is not one that has arrived."""
    os.kill(pid, signal.SIGSTOP)
    threads = Path(f"/proc/{pid}/task")
    until(
        lambda: all(
            path.read_text().rpartition(")")[2].split()[0] == "T" for path in threads.glob("*/stat")
        )
    )
