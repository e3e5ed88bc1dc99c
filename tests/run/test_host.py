"""What the agent reads of its node."""

from __future__ import annotations

import subprocess
import sys
import time

from rltrace.testing.inside.run import NO_DEVICE, read_host
from tests.patience import PATIENCE_S


def test_threads_that_have_work_are_runnable() -> None:
    """Those of others come and go: with three more there must be three at least."""
    spin = [sys.executable, "-c", "while True: pass"]
    spinning = [subprocess.Popen(spin) for _ in range(3)]
    try:
        end = time.monotonic() + PATIENCE_S
        while (seen := _runnable()) < len(spinning):
            assert time.monotonic() < end, f"{seen} of {len(spinning)}"
            time.sleep(0.05)
    finally:
        for each in spinning:
            each.kill()
            each.wait()


def _runnable() -> float:
    found = {name: value for name, device, value in read_host() if device == NO_DEVICE}
    return found["host/runnable_threads"]
