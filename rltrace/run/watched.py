"""Whether a process still runs, whoever started it."""

from __future__ import annotations

import os
import select


class WatchedProcess:
    """A process, told apart from a later one with the same number."""

    def __init__(self, pid: int) -> None:
        self._handle = -1
        if pid > 0:
            try:
                self._handle = os.pidfd_open(pid)
            except OSError:
                return  # it has ended

    def is_alive(self) -> bool:
        if self._handle < 0:
            return False
        ended, _, _ = select.select([self._handle], [], [], 0)
        return not ended
