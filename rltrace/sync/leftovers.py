"""Who is there, and the removal of what nobody holds any more.

Everyone who opens a policy holds a shared lock on its file `rltrace-present`. Where that lock can
be had exclusively nobody does, and the folder goes: the last one out removes it, and what killed
processes have left goes when the next policy is opened beside it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from rltrace.sync.control import CONTROL
from rltrace.sync.locks import Lock, hold
from rltrace.sync.slots import SLOT_FILES
from rltrace.trace.outside import from_outside

PRESENT = "rltrace-present"
WRITER = "rltrace-writer"

_OURS = (CONTROL, f"{CONTROL}.new", WRITER, PRESENT)  # the last last: until then none can enter


def enter(folder: Path) -> Lock:
    """Holds the folder: it is not removed until the lock is released. The folder must be there, or
    have been until now. Errors: `OSError`; `RltraceError` where a process that is stopped has its
    removal half done."""

    def make() -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileNotFoundError):  # removed in between
            for name in (PRESENT, WRITER):
                os.close(os.open(folder / name, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))

    return hold(folder / PRESENT, make)


def leave(folder: Path) -> bool:
    """Removes the folder if nobody holds it; tells whether it did."""
    present = Lock.take(folder / PRESENT)
    if present is None:
        return False
    with present:
        for path in (*folder.glob(SLOT_FILES), *(folder / name for name in _OURS)):
            path.unlink(missing_ok=True)
    try:
        folder.rmdir()
    except OSError as error:
        if from_outside(error):
            raise
        return False  # it holds something of the user's
    return True


def reclaim(root: Path, but: Path | None = None) -> None:
    """Removes what dead processes have left among the policies of a folder, `but` one."""
    for folder in sorted(path.parent for path in root.glob(f"*/{PRESENT}")):
        if folder != but:
            leave(folder)
