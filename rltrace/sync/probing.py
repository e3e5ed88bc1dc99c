"""What this machine's memory carries: the floor under every update on one host."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np

from rltrace.hooks.recorder import active, describe
from rltrace.hooks.sample_api import counter
from rltrace.sync.copying import copy_bytes

COUNTER = "sync memcpy bytes/s"
"""The counter's name in the trace."""

_BYTES = 64 << 20  # a buffer that no cache holds
_ROUNDS = 5
_THREADS = 2


@cache
def memory_bytes_per_s() -> float:
    """Bytes that two threads of memcpy copy in a second, the best of five: about 0.2 s, once a
    process. An update to N receivers takes (1 + N) copies of the weights at least."""
    source, to = (np.ones(_BYTES, dtype=np.uint8) for _ in range(2))
    begins, part = [int(a.__array_interface__["data"][0]) for a in (to, source)], _BYTES // _THREADS

    def copy(thread: int) -> None:
        copy_bytes(begins[0] + thread * part, begins[1] + thread * part, part)

    taken = []
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="rltrace.sync") as pool:
        for _ in range(_ROUNDS):
            start = time.perf_counter()
            for done in [pool.submit(copy, thread) for thread in range(_THREADS)]:
                done.result()
            taken.append(time.perf_counter() - start)
    return _BYTES / min(taken)


def record_memory() -> None:
    """Notes that rate in the trace of this process, where there is one. No room or no thread to
    spare for the probe costs the reading only."""
    recorder = active()
    if recorder is None:
        return
    try:
        counter(COUNTER, memory_bytes_per_s())
    except Exception as error:  # the job goes on
        recorder.problem("not-recorded", target=COUNTER, detail=describe(error))
