"""The clocks of a node: the processes that share one monotonic clock.

Events carry CLOCK_MONOTONIC, which all processes with one boot id and one time namespace share, so
their order is exact for free. A *pair* relates it to real time; nodes are related by the agents'
exchanges (`rltrace/run/`). Standard library only: traced processes read this.
"""

from __future__ import annotations

import os
import time
from time import monotonic_ns

from rltrace.trace.job_exceptions import contained

__all__ = ["boot_id", "monotonic_ns", "node_id", "pair", "time_namespace"]


def boot_id() -> str:
    """The kernel's boot id; the host's name where there is none (not Linux)."""
    with contained(OSError), open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
        return file.read().strip()
    return os.uname().nodename


def time_namespace() -> int:
    """Inode of this process's time namespace; 0 where there is none (before Linux 5.6)."""
    with contained(OSError):
        return os.stat("/proc/self/ns/time").st_ino
    return 0


def node_id() -> str:
    """Name of the monotonic clock that this process reads: `<boot id>-<time namespace>`."""
    return f"{boot_id()}-{time_namespace()}"


def pair(attempts: int = 16) -> tuple[int, int, int]:
    """One instant as `(monotonic_ns, real_ns, bracket_ns)`: wrong by at most `bracket_ns / 2`."""
    best = (0, 0, 1 << 62)
    for _ in range(attempts):
        before = monotonic_ns()
        real = time.time_ns()
        bracket = monotonic_ns() - before
        if bracket < best[2]:
            best = (before + bracket // 2, real, bracket)
    return best
