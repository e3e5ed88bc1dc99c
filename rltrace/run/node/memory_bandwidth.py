"""Measures what a node's memory carries, which bounds weight updates there."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import threading
import time
from collections.abc import Mapping

from rltrace.trace.run_dir import publishes_file

COUNTER = "sync memcpy bytes/s"
"""Bytes that two threads of memcpy copy in a second. An update to N receivers takes (1 + N) copies
of the weights at least."""

_BYTES = 64 << 20  # a buffer that few caches hold
_ROUNDS, _THREADS = 5, 2
_SPARE_BYTES = 1 << 30  # so much that what the job may still want is not in the way


class MemoryFloor:
    """When to measure, and whether that was done. `cores` are those of the whole node."""

    def __init__(self, run_dir: str, node: str, cores: int) -> None:
        self._wanted_by = publishes_file(run_dir, node)
        self._cores = cores
        self._is_done = False
        self._busy_s, self._time_ns = math.nan, 0

    @property
    def is_wanted(self) -> bool:
        """Whether weights are published here and it was not measured yet."""
        return not self._is_done and os.path.exists(self._wanted_by)

    def was_calm(
        self, time_ns: int, readings: Mapping[str, float], room_bytes: float = math.inf
    ) -> bool:
        """Whether the node had cores to spare since the readings before, and has memory, of which
        this process may take `room_bytes`. `readings` are those of `read_host`."""
        busy_s = readings.get("host/cpu_busy_seconds", math.nan)
        worked_s, passed_s = busy_s - self._busy_s, (time_ns - self._time_ns) / 1e9
        self._busy_s, self._time_ns = busy_s, time_ns
        has_cores = worked_s <= (self._cores - _THREADS) * passed_s  # not known: no
        available = readings.get("host/memory_available_bytes", 0.0)
        return has_cores and min(available, room_bytes) >= _SPARE_BYTES

    def measure(self) -> float:
        """`memory_bytes_per_s`, which is not wanted again, even where this fails."""
        self._is_done = True
        return memory_bytes_per_s()


def memory_bytes_per_s() -> float:
    """The best of five rounds: 0.1 to 0.2 s, most of it for the 128 MiB that it takes meanwhile.
    Errors: OSError, RuntimeError where there is no room or no thread for it."""
    kept = [mmap.mmap(-1, _BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(2)]
    source, to = (ctypes.addressof(ctypes.c_char.from_buffer(memory)) for memory in kept)
    ctypes.memset(source, 1, _BYTES)  # memory that nobody has written is one page, and cached
    memcpy = ctypes.CDLL(None).memcpy  # called without the interpreter's lock
    memcpy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    memcpy.restype = None
    part = _BYTES // _THREADS
    fastest_s = math.inf
    for _ in range(_ROUNDS):
        second = threading.Thread(target=memcpy, args=(to + part, source + part, _BYTES - part))
        start = time.perf_counter()
        second.start()
        memcpy(to, source, part)
        second.join()
        fastest_s = min(fastest_s, time.perf_counter() - start)
    return _BYTES / fastest_s
