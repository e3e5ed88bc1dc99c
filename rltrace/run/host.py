"""Readings of the node itself: processors and memory, from `/proc`."""

from __future__ import annotations

import os
from collections.abc import Iterator

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
NO_DEVICE = -1
"""The device of a reading of the node itself."""


def read_host() -> Iterator[tuple[str, int, float]]:
    """Counter, device (`NO_DEVICE`: the node), value; nothing where there is no `/proc`.

    `host/cpu_busy_seconds` is cumulative over all cores: two readings give the cores that were busy
    between them. `host/runnable_threads` are those that ran or waited for a core at the moment of
    the reading, but for the reader's own: where there are more than cores, work takes turns.
    """
    try:
        with open("/proc/stat", "rb") as file:
            user, nice, system, _, _, irq, softirq = map(int, file.readline().split()[1:8])
            runnable = next(int(line.split()[1]) for line in file if line[:13] == b"procs_running")
        with open("/proc/meminfo", "rb") as file:
            memory = dict(line.split(b":", 1) for line in file)
    except (OSError, ValueError, StopIteration):
        return
    busy = (user + nice + system + irq + softirq) / _TICKS_PER_S
    yield "host/cpu_busy_seconds", NO_DEVICE, busy
    yield "host/runnable_threads", NO_DEVICE, float(max(runnable - 1, 0))
    yield "host/memory_available_bytes", NO_DEVICE, _kib(memory, b"MemAvailable")
    yield "host/memory_total_bytes", NO_DEVICE, _kib(memory, b"MemTotal")


def cpu_model() -> str:
    """What the node's processors are called; empty where the system does not tell."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = (line.partition(":")[2].strip() for line in file if line[:10] == "model name")
            return next(names, "")
    except OSError:
        return ""


def _kib(memory: dict[bytes, bytes], key: bytes) -> float:
    return int(memory.get(key, b"0").split()[0]) * 1024.0
