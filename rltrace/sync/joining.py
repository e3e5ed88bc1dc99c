"""`tcp://host:port/policy` for a subscriber: a relay of its own host that all subscribers share.

The first one starts the relay, a process of its own that follows the address and fills slots here;
it ends when nobody uses it any more. Should it be killed, whoever notices first starts another,
which goes on from the slots. Pulling is the same as from a publisher of this host.

    rltrace-joined/<place>.users   a shared lock of every subscriber; exclusive: nobody is left
    rltrace-joined/<place>.relay   the lock of the one relay
    rltrace-joined/<place>.log     what it last complained of
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

from rltrace.sync.arena import Arena
from rltrace.sync.locks import Lock
from rltrace.sync.place import make_folder, shared_memory
from rltrace.sync.relay import Relay
from rltrace.sync.wire import TOKEN, Address
from rltrace.trace.errors import CANNOT_TELL, OK, RltraceError

_FOLDER = "rltrace-joined"
_DENSE = "--dense"
_LOOK_S = 0.5
_GRACE_S = 2.0  # a subscriber that goes may be followed by another one
_AFTER_ERROR_S = 5.0


def place_of(parent: str) -> str:
    """Where a policy that is served elsewhere has its slots on this host.

    Errors: `RltraceError` for what is no address.
    """
    address = Address.parse(parent)
    return "shm://" + re.sub(r"[^\w.-]", "-", f"{address.policy}-{address.host}-{address.port}")


class Joined:
    """A subscriber's part in its host's relay."""

    def __init__(self, parent: str, token: str | None = None, changes: bool = True) -> None:
        """The relay is started with that token and those wishes by whoever is first.

        Errors: `RltraceError` for what is no address.
        """
        self.place = place_of(parent)
        self._parent = parent
        self._command = [sys.executable, "-m", "rltrace.sync.joining", parent]
        self._command += [] if changes else [_DENSE]
        self._environment = os.environ | ({} if token is None else {TOKEN: token})
        self._users, self._relay, self._log = _files(self.place)
        for path in (self._users, self._relay):
            path.touch(mode=0o600)
        self._using = Lock.take(self._users, shared=True, wait=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._not_before = 0.0
        self._ended = threading.Event()
        self._look()
        self._watch = threading.Thread(target=self._keep, name="rltrace.sync joined", daemon=True)
        self._watch.start()

    def attach(self, timeout_s: float) -> Arena:
        """The slots of this host, once the first version is on its way to them.

        Errors: `RltraceError`: what the relay complains of, or that there is none in time.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return Arena.attach(self.place, _LOOK_S)
            except RltraceError as error:
                process = self._process
                if process is not None and process.poll():
                    raise RltraceError(self._complaint(), process.returncode) from error
                if time.monotonic() >= deadline:
                    said = f"nothing came from {self._parent} within {timeout_s:g} s"
                    raise RltraceError(said, CANNOT_TELL) from error

    def close(self) -> None:
        """Leaves; the last one out ends the relay."""
        self._ended.set()
        self._watch.join()
        if self._using is not None:
            self._using.release()

    def _keep(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self._look()

    def _look(self) -> None:
        """Starts a relay where there is none. Of two started at once the lock leaves one."""
        if self._process is not None:
            if self._process.poll() is None:
                return  # it runs, or is about to
            if self._process.returncode > 0 and time.monotonic() < self._not_before:
                return
        free = Lock.take(self._relay)
        if free is None:
            return
        free.release()
        self._not_before = time.monotonic() + _AFTER_ERROR_S
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,  # it outlives the worker that happened to start it
            )

    def _complaint(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        said = lines[-1] if lines else f"following {self._parent} failed without a word"
        return said.removeprefix("rltrace: ")


def main(parent: str, changes: bool) -> int:
    """The relay's process: until nobody uses it. Returns its exit code."""
    place = place_of(parent)
    users, mine, _ = _files(place)
    lock = Lock.take(mine)
    if lock is None:
        return OK
    try:
        with Relay.follow(parent, place, changes=changes) as relay:
            used_at = time.monotonic()
            while relay.error is None and time.monotonic() < used_at + _GRACE_S:
                time.sleep(_LOOK_S)
                free = Lock.take(users)
                if free is None:
                    used_at = time.monotonic()
                else:
                    free.release()
            if relay.error is not None:
                raise relay.error
        return OK
    except RltraceError as error:
        print(f"rltrace: {error}", file=sys.stderr)
        return error.exit_code
    finally:
        lock.release()


def _files(place: str) -> tuple[Path, Path, Path]:
    folder = shared_memory() / _FOLDER
    make_folder(folder)
    name = place.removeprefix("shm://")
    return folder / f"{name}.users", folder / f"{name}.relay", folder / f"{name}.log"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], changes=_DENSE not in sys.argv))
