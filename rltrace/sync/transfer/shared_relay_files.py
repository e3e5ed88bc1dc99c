"""The files by which a host's workers share a relay, and their removal.

    rltrace-joined/<place>.users   a shared lock of every subscriber; exclusive: nobody is left
    rltrace-joined/<place>.relay   the lock of the one relay; in it, what keeps weights from coming
    rltrace-joined/<place>.log     what it last complained of

They go with the last one out or, where processes were killed, when any address is joined.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress

from rltrace.sync.memory.locks import Lock, hold
from rltrace.sync.memory.policy_memory import JOINED, make_folder, shared_memory

_USERS = ".users"


class JoinedFiles:
    """Those of one place. Errors: `RltraceError` where their folder cannot be made."""

    def __init__(self, place: str) -> None:
        folder = shared_memory() / JOINED
        make_folder(folder)
        name = place.removeprefix("shm://")
        self.users = folder / f"{name}{_USERS}"
        self.relay = folder / f"{name}.relay"
        self.log = folder / f"{name}.log"

    def enter(self) -> Lock:
        """Uses the relay: until the lock is released the relay stays, and so do the files."""
        lock = hold(self.users, lambda: self.users.touch(mode=0o600))
        self.relay.touch(mode=0o600)
        return lock

    def claim(self) -> Lock | None:
        """The lock of the one relay; None where another has it, or the files are gone."""
        return Lock.take(self.relay)

    def tell(self, trouble: str) -> None:
        """Has the relay's users know what keeps weights from coming; "" for nothing."""
        # Where the memory is full, that is no reason for the relay to end.
        with suppress(OSError), open(self.relay, "r+b", buffering=0) as file:
            file.write(trouble.encode())  # in place: who reads meanwhile finds no empty file
            file.truncate()

    def told(self) -> str:
        try:
            return self.relay.read_text(errors="replace")
        except FileNotFoundError:  # somebody has emptied the folder by hand
            return ""

    def remove(self, mine: Lock | None = None) -> None:
        """Removes the files unless somebody is there; releases `mine`, the relay's own lock. The
        users' file goes last: who waits for its lock finds it of no file, and makes another."""
        users = Lock.take(self.users)
        if users is None:
            return
        with users:
            relay = mine or Lock.take(self.relay)
            if relay is None and self.relay.exists():
                return  # a relay that has yet to notice that nobody is left
            with relay or nullcontext():
                # A starter that was killed may have left the file that was to become the log.
                unnamed = self.log.parent.glob(f"{self.log.name}.????????")
                for path in (*unnamed, self.log, self.relay, self.users):
                    path.unlink(missing_ok=True)


def sweep() -> None:
    """Removes what killed processes have left, of every address."""
    for users in sorted((shared_memory() / JOINED).glob(f"*{_USERS}")):
        JoinedFiles(users.name.removesuffix(_USERS)).remove()
