"""Who is there, and the removal of what nobody holds any more.

Everyone who opens a policy holds a shared lock on its file `rltrace-present`. Where that lock can
be had exclusively nobody does, and the folder goes: the last one out removes it, and what killed
processes have left goes when the next policy is opened beside it.
"""

from __future__ import annotations

import os
from pathlib import Path

from rltrace.sync.control import CONTROL
from rltrace.sync.locks import Lock
from rltrace.sync.slots import SLOT_FILES

PRESENT = "rltrace-present"
WRITER = "rltrace-writer"
VERIFIER = "rltrace-verifier"

_OURS = (
    CONTROL,
    f"{CONTROL}.new",
    WRITER,
    VERIFIER,
    PRESENT,
)  # the last one last: until then none can enter


def enter(folder: Path) -> Lock:
    """Holds the folder: it is not removed until the lock is released. The folder must be there, or
    have been until now. Errors: `OSError`."""
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        for name in (PRESENT, WRITER, VERIFIER):
            try:
                os.close(os.open(folder / name, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            except FileNotFoundError:
                break  # removed in between
        lock = Lock.take(folder / PRESENT, shared=True, wait=True)
        if lock is None:
            continue
        if lock.is_of(folder / PRESENT):
            return lock
        lock.release()


def leave(folder: Path) -> bool:
    """Removes the folder if nobody holds it; tells whether it did."""
    present = Lock.take(folder / PRESENT)
    if present is None:
        return False
    with present:
        for path in folder.glob(SLOT_FILES):
            path.unlink(missing_ok=True)
        for name in _OURS:
            (folder / name).unlink(missing_ok=True)
    try:
        folder.rmdir()
    except OSError:
        return False  # it holds something of the user's
    return True


def reclaim(root: Path) -> list[Path]:
    """Removes what dead processes have left among the policies of a folder; returns what it was."""
    found = sorted(path.parent for path in root.glob(f"*/{PRESENT}"))
    return [folder for folder in found if leave(folder)]
