"""Who is there, and the removal of what nobody holds any more.

Everyone who opens a policy holds a shared lock on its file `rltrace-present`. Where that lock can
be had exclusively nobody does, and the folder goes: the last one out removes it, and what killed
processes have left goes when the next policy is opened beside it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from rltrace.sync.control import CONTROL
from rltrace.sync.locks import Lock
from rltrace.sync.slots import SLOT_FILES
from rltrace.trace.errors import CANNOT_TELL, RltraceError
from rltrace.trace.outside import from_outside

PRESENT = "rltrace-present"
WRITER = "rltrace-writer"

_OURS = (CONTROL, f"{CONTROL}.new", WRITER, PRESENT)  # the last last: until then none can enter
_PATIENCE_S = 5.0


def enter(folder: Path) -> Lock:
    """Holds the folder: it is not removed until the lock is released. The folder must be there, or
    have been until now. Errors: `OSError`; `RltraceError` where a process that is stopped has its
    removal half done."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        for name in (PRESENT, WRITER):
            try:
                os.close(os.open(folder / name, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            except FileNotFoundError:
                break  # removed in between
        lock = Lock.take(folder / PRESENT, True, deadline - time.monotonic())
        if lock is not None and lock.is_of(folder / PRESENT):
            return lock
        if lock is not None:
            lock.release()
        elif time.monotonic() >= deadline:
            said = f"a process that does not go on holds {folder / PRESENT}"
            raise RltraceError(f"{said}: end it (`rltrace sync ls` names it)", CANNOT_TELL)


def leave(folder: Path) -> bool:
    """Removes the folder if nobody holds it; tells whether it did."""
    present = Lock.take(folder / PRESENT)
    if present is None:
        return False
    with present:
        if not present.is_of(folder / PRESENT):
            return False  # another has removed it, and somebody made it anew
        for path in (*folder.glob(SLOT_FILES), *(folder / name for name in _OURS)):
            path.unlink(missing_ok=True)
    try:
        folder.rmdir()
    except OSError as error:
        if from_outside(error):
            raise
        return False  # it holds something of the user's
    return True


def reclaim(root: Path, but: Path | None = None) -> list[Path]:
    """Removes what dead processes have left among the policies of a folder, `but` one; returns what
    it was."""
    found = sorted(path.parent for path in root.glob(f"*/{PRESENT}"))
    return [folder for folder in found if folder != but and leave(folder)]
