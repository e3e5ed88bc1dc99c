"""Lets another process see in which line a thread of this one waits.

Python's `faulthandler` writes the stack of the thread that a signal reaches: in C, without the GIL
or a thread of ours. The signal is SIGURG, which is ignored by default: a program that took the
process's place by `exec` is not ended by it. `rltrace.run.node.thread_stacks` asks.
"""

from __future__ import annotations

import os
from _signal import SIGURG  # type: ignore[import-not-found]  # `signal` imports enum

from rltrace.trace.job_exceptions import contained
from rltrace.trace.run_dir import STACKS
from rltrace.trace.safe_open import opened

SIGNAL: int = SIGURG
_held: tuple[int, int, int] | None = None  # descriptor, device and inode of this process's file


def offer(run_dir: str, who: str) -> int:
    """Has stacks written to this process's file; its descriptor, -1 where that cannot be."""
    global _held
    with contained(OSError, ValueError, RuntimeError):
        import faulthandler  # compiled in

        with opened(
            f"{run_dir}/{STACKS}/{who}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND
        ) as file:
            kept = os.dup(file)
        faulthandler.register(SIGNAL, file=kept, all_threads=False, chain=False)
        before, status = _held, os.fstat(kept)
        _held = kept, status.st_dev, status.st_ino
        if before is not None:  # a parent's; its number may be somebody else's by now
            status = os.fstat(before[0])
            if (status.st_dev, status.st_ino) == before[1:]:
                os.close(before[0])
        return kept
    return -1
