"""One command at a time in a folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Two commands that write into a folder do so one after the other; one that is killed holds
    nobody up. Errors: OSError where there is no such folder."""
    file = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            pass  # a filesystem that has no locks
        yield
    finally:
        os.close(file)
