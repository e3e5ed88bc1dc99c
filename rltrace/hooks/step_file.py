"""The step that a node is at: three numbers in a small mapped file that its processes share.

The process that records steps writes, all others read: eight bytes of memory, no call. Mapped files
are no messages between nodes, so each node has its own; one on which nobody records steps has none.
"""

from __future__ import annotations

import mmap
import os
from time import monotonic_ns

from rltrace.trace.clock import node_id
from rltrace.trace.opened import opened

FOLDER = "probe"

_BEGAN, _FIRST, _STEP = range(3)
_NUMBERS = 3


class StepFile:
    """This node's step file of a run; made if there is none yet."""

    __slots__ = ("_map", "_numbers")

    def __init__(self, run_dir: str) -> None:
        """Errors: OSError where the file cannot be made or mapped."""
        folder = f"{run_dir}/{FOLDER}"
        os.makedirs(folder, exist_ok=True)
        with opened(f"{folder}/{node_id()}.steps", os.O_RDWR | os.O_CREAT) as file:
            os.posix_fallocate(file, 0, 8 * _NUMBERS)
            self._map = mmap.mmap(file, 8 * _NUMBERS)
        self._numbers = memoryview(self._map).cast("q")
        if not self._numbers[_BEGAN]:
            self._numbers[_BEGAN] = monotonic_ns()

    @property
    def began_ns(self) -> int:
        """When the first process of the node opened it (monotonic ns)."""
        return self._numbers[_BEGAN]

    def publish(self, step: int) -> None:
        """A step begins. Numbers are kept one up, as fresh space is 0."""
        if not self._numbers[_FIRST]:
            self._numbers[_FIRST] = step + 1
        self._numbers[_STEP] = step + 1

    def place(self) -> int:
        """How many steps after the first one the node is; -1 before any."""
        first = self._numbers[_FIRST]
        return self._numbers[_STEP] - first if first else -1
