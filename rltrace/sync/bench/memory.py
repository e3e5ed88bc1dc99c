"""What copying weights takes on this machine, now, by the C library's memcpy."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from rltrace.sync.bench.models import Weights
from rltrace.sync.copying import copy_bytes


def seconds(do: Callable[[], object]) -> float:
    """Wall time of a call."""
    start = time.perf_counter()
    do()
    return time.perf_counter() - start


class Memory:
    """Copies of some weights into others of the same shapes, all pages of which are there."""

    def __init__(self, weights: Weights, into: Weights) -> None:
        self._kept = weights, into
        self._pairs = [
            (into[name].data_ptr(), tensor.data_ptr(), tensor.nbytes)
            for name, tensor in weights.items()
        ]
        self._second = ThreadPoolExecutor(1, thread_name_prefix="rltrace.sync")

    def one_thread_s(self) -> float:
        """By one thread, tensor by tensor."""
        return seconds(lambda: self._copy(0, 1))

    def two_threads_s(self) -> float:
        """Half of each tensor by each of two threads."""

        def both() -> None:
            second = self._second.submit(self._copy, 1, 2)
            self._copy(0, 2)
            second.result()

        return seconds(both)

    def close(self) -> None:
        """Ends the second thread."""
        self._second.shutdown()

    def _copy(self, part: int, parts: int) -> None:
        for to, source, size in self._pairs:
            start, end = size * part // parts, size * (part + 1) // parts
            copy_bytes(to + start, source + start, end - start)
