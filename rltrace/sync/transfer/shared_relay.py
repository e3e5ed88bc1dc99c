"""A relay of this host that all subscribers to an address share.

It is a process that ends when nobody uses it. After a kill whoever notices first starts another.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from weakref import finalize

from rltrace.sync.memory.arena import Arena
from rltrace.sync.memory.locks import Lock
from rltrace.sync.transfer.relay import Relay
from rltrace.sync.transfer.shared_relay_files import JoinedFiles, sweep
from rltrace.sync.transfer.wire import TOKEN, Address
from rltrace.trace.errors import CANNOT_TELL, OK, RltraceError
from rltrace.trace.job_exceptions import contained

_log = logging.getLogger("rltrace.sync")
_DENSE = "--dense"
_LOOK_S = 0.5
_GRACE_S = 2.0  # a subscriber that goes may be followed by another one
_AFTER_ERROR_S = 5.0
_MOST_SAID_BYTES = 1 << 20


def place_of(parent: str) -> str:
    """Where a policy served elsewhere has its slots here. Errors: `RltraceError` for no address."""
    address = Address.parse(parent)
    return "shm://" + re.sub(r"[^\w.-]", "-", f"{address.policy}-{address.host}-{address.port}")


class Joined:
    def __init__(self, parent: str, token: str | None = None, changes: bool = True) -> None:
        """The first one starts the relay with these wishes. Errors: `RltraceError`."""
        self.place = place_of(parent)
        self._parent = parent
        self._command = [sys.executable, "-m", "rltrace.sync.transfer.shared_relay", parent]
        self._command += [] if changes else [_DENSE]
        self._environment = os.environ | ({} if token is None else {TOKEN: token})
        self.files = JoinedFiles(self.place)
        self._using = self.files.enter()
        sweep()
        self._started: _Started | None = None
        self._complaint: RltraceError | None = None  # of one that another has taken the place of
        self._not_before = 0.0
        self._ended = threading.Event()
        self._look()
        self._watch = threading.Thread(target=self._keep, name="rltrace.sync joined", daemon=True)
        self._watch.start()

    def attach(self, timeout_s: float) -> Arena:
        """This host's slots, once there are any. Errors: `RltraceError`: no version, and why."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return Arena.attach(self.place, _LOOK_S)
            except RltraceError as error:
                complaint = self._complaint or (self._started and self._started.complaint())
                if complaint:
                    raise complaint from error
                if time.monotonic() >= deadline:
                    said = f"nothing came from {self._parent} within {timeout_s:g} s"
                    why = self.files.told()
                    raise RltraceError(f"{said}: {why}" if why else said, CANNOT_TELL) from error

    def close(self) -> None:
        self._ended.set()
        self._watch.join()
        self._using.release()
        self.files.remove()

    def _keep(self) -> None:
        while not self._ended.wait(_LOOK_S):
            # Where no process or descriptor is to spare, the next look may have one.
            failed = partial(_log.warning, "no relay of %s can be started: %s", self._parent)
            with contained(OSError, tell=failed):
                self._look()

    def _look(self) -> None:
        """Starts a relay where there is none. Of two started at once the lock leaves one."""
        if self._started is not None:
            if self._started.runs:
                return  # or is about to
            self._complaint = self._started.complaint()
            if self._complaint is not None and time.monotonic() < self._not_before:
                return
        free = self.files.claim()
        if free is None:
            return
        free.release()
        self._not_before = time.monotonic() + _AFTER_ERROR_S
        self._started = _Started(self._parent, self._command, self._environment, self.files.log)


class _Started:
    def __init__(
        self, parent: str, command: list[str], environment: dict[str, str], log: Path
    ) -> None:
        self._parent = parent
        # A file of its own, which is still there when somebody else's has taken the name.
        self._said, path = tempfile.mkstemp(prefix=f"{log.name}.", dir=log.parent)
        finalize(self, os.close, self._said)
        os.replace(path, log)
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            start_new_session=True,  # it outlives the worker that happened to start it
        )

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def complaint(self) -> RltraceError | None:
        """What ended it; None where it runs, has ended well, or was killed."""
        code = self._process.poll()
        if code is None or code <= 0:
            return None
        lines = os.pread(self._said, _MOST_SAID_BYTES, 0).decode(errors="replace").splitlines()
        said = [line for line in lines if line.strip()] or [f"following {self._parent} failed"]
        return RltraceError(said[-1].removeprefix("rltrace: "), code)


def main(parent: str, changes: bool) -> int:
    place = place_of(parent)
    files = JoinedFiles(place)
    lock = files.claim()
    if lock is None:
        return OK
    try:
        with Relay.follow(parent, place, changes=changes) as relay:
            used_at = time.monotonic()
            told = None
            while relay.ended_by is None and time.monotonic() < used_at + _GRACE_S:
                trouble = relay.status.behind.why.removeprefix(f"{parent}: ")
                if trouble != told:
                    files.tell(told := trouble)
                time.sleep(_LOOK_S)
                if Lock.is_held(files.users):  # by some subscriber
                    used_at = time.monotonic()
            if relay.ended_by is not None:
                raise relay.ended_by
        return OK
    except RltraceError as error:
        print(f"rltrace: {error}", file=sys.stderr)
        return error.exit_code
    finally:
        files.remove(lock)
        lock.release()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], changes=_DENSE not in sys.argv))
