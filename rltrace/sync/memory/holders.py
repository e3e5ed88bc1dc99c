"""The policies in this host's memory: their size and their holders."""

from __future__ import annotations

import os
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rltrace.sync.memory.control import CONTROL, PRESENT, WRITER, Control, enter, leave, slot_of
from rltrace.sync.memory.locks import Lock
from rltrace.sync.memory.policy_memory import JOINED, folder_of, shared_memory, where_of
from rltrace.sync.transfer.shared_relay_files import sweep
from rltrace.trace.errors import RltraceError, WrongUsage

_PROC = Path("/proc")


@dataclass(frozen=True)
class Holder:
    """A process that has a policy open, to publish or to read it; it may stand still (SIGSTOP)."""

    pid: int
    command: str
    publishes: bool
    is_stopped: bool


@dataclass(frozen=True)
class HeldPolicy:
    where: str
    version: str  # the latest; "": none
    step: int  # the learner's; -1: none
    bytes: int  # of a version
    memory_bytes: int  # of all files
    is_held: bool  # without `holders`: by processes that this user, or container, cannot see
    holders: tuple[Holder, ...]
    trouble: str = ""  # why it has no version


def policies(*places: str) -> list[HeldPolicy]:
    """Those at the given places, or all that bear a name. Errors: `RltraceError` for no policy."""
    known = {where: folder_of(where) for where in places}
    for where, folder in known.items():
        if not (folder / PRESENT).exists() and not (folder / CONTROL).exists():
            raise WrongUsage(f"there is no policy at {where}")
    root = shared_memory()
    if not places:
        known = {where_of(path.parent.name): path.parent for path in root.glob(f"*/{PRESENT}")}
        for users in (root / JOINED).glob("*.users"):  # its folder may be still to come
            known |= {f"shm://{users.stem}": root / users.stem}
    opened: dict[str, set[int]] = defaultdict(set)  # by whom each file is
    for link in _PROC.glob("[0-9]*/fd/*"):
        with suppress(OSError):
            opened[os.readlink(link)].add(int(link.parts[2]))
    return [_held(where, folder, opened) for where, folder in sorted(known.items())]


def remove(held: HeldPolicy) -> bool:
    folder = folder_of(held.where)
    with suppress(RltraceError):  # a stopped process keeps everyone out
        enter(folder).release()
    gone = not Lock.is_held(folder / PRESENT) and leave(folder)
    sweep()
    return gone


def _held(where: str, folder: Path, opened: dict[str, set[int]]) -> HeldPolicy:
    version, step, size, trouble = "", -1, 0, "no version yet"
    try:
        control = Control(folder / CONTROL)
        size = control.layout.bytes
        if control.latest:
            manifest, is_sound = control.manifest(slot_of(control.latest))
            version, step = str(manifest.version), manifest.step
            trouble = "" if is_sound else "something else has written to it"
    except FileNotFoundError:
        pass
    except RltraceError as error:
        trouble = str(error)
    writers = opened[str(folder / WRITER)]
    users = shared_memory() / JOINED / f"{folder.name}.users"
    pids = writers | opened[str(folder / PRESENT)] | opened[str(users)]
    memory = 0
    for path in folder.glob("*"):
        with suppress(FileNotFoundError):
            memory += path.stat().st_blocks * 512
    is_held = bool(pids) or any(Lock.is_held(path) for path in (folder / PRESENT, users))
    holders = tuple(_holder(pid, pid in writers) for pid in sorted(pids))
    return HeldPolicy(where, version, step, size, memory, is_held, holders, trouble)


def _holder(pid: int, publishes: bool) -> Holder:
    words, state = b"", ""
    with suppress(OSError):  # it has ended since
        words = (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ")
        state = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(") ")[2][:1]
    command = " ".join(words.decode(errors="replace").split())
    return Holder(pid, command, publishes, state in ("T", "t"))
