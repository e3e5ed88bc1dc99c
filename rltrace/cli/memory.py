"""Memory that a question of a long run has freed is used again by its next step."""

from __future__ import annotations

import os
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's <malloc.h>
_KEPT_BYTES = 256 << 20  # free at the end of the heap before any of it is given back
_APART_BYTES = 64 << 20  # blocks from this size on are given back at once


@cache
def reuse_freed() -> None:
    """Tells the allocator of this process, where it is glibc's and the user has not told it
    himself, to keep what is freed for the next block.

    By itself it gives a block of some megabytes back as soon as it is freed, and the next one is
    new pages, each of which the kernel fills with zeros first: on a run of 100 million rows that is
    every seventh second of a report. Only commands do so, never a process in which rltrace is a
    guest.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # another C library: macOS, musl, Windows
        return
    mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_MMAP_THRESHOLD, _APART_BYTES)
