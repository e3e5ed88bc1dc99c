"""Running one child in our place, in a process that does more than that."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from rltrace.run.child import run_child


def _wait_until_it_is_over(pid: int) -> None:
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)


def test_a_child_that_is_over_before_it_is_waited_for() -> None:
    """The kernel then tells any thread that takes the signal, and nobody else."""
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        command = [sys.executable, "-c", "raise SystemExit(7)"]
        code = run_child(
            command[0], command, dict(os.environ), _wait_until_it_is_over, lambda number: None
        )
    finally:
        done.set()
        other.join()
    assert code == 7
