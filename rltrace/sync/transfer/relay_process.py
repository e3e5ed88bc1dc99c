"""A relay in a process of its own, beside the one that publishes."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time

from rltrace.sync.transfer.relay import Relay
from rltrace.sync.transfer.wire import TOKEN, Address
from rltrace.trace.errors import CANNOT_TELL, OK, RltraceError

_LOOK_S = 0.5


class Beside:
    def __init__(self, where: str, host: str) -> None:
        """Serves `where`, also before it is there, at a free port of `host`; does not wait."""
        self.token = secrets.token_hex(32)  # the secret that following it takes
        self._where, self._host = where, host
        self._address = ""
        self._process = self._start(port=0)

    @property
    def address(self) -> str:
        """Where it can be followed, once it can be. Errors: `RltraceError` with the reason."""
        if not self._address:
            self._address = self._begun()
        return self._address

    def keep(self) -> None:
        """Starts it again, at its address, after a kill. Errors: `RltraceError` for another end."""
        code = self._process.poll()
        if code is None or not self._address:
            return
        if code >= 0:
            said = f"the relay that served {self._where} has ended with exit code {code}"
            raise RltraceError(said, CANNOT_TELL)
        self._process = self._start(Address.parse(self._address).port)
        self._begun()

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()

    def _start(self, port: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "rltrace.sync.transfer.relay_process"]
        return subprocess.Popen(
            [*command, self._where, self._host, str(port), str(os.getpid())],
            env=os.environ | {TOKEN: self.token},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # what is meant for the job's terminal is not for it
        )

    def _begun(self) -> str:
        assert self._process.stdout is not None
        with self._process.stdout as stdout:
            said = stdout.readline().strip()
        if not said.startswith("tcp://"):
            why = said or f"it ended with {self._process.wait()}"
            raise RltraceError(f"no relay serves at {self._host}: {why}", CANNOT_TELL)
        return said


def main(where: str, host: str, port: int, starter: int) -> int:
    try:
        with Relay.serve(where, host, port) as relay:
            print(relay.address, flush=True)
            while relay.ended_by is None and os.getppid() == starter:
                time.sleep(_LOOK_S)
            if relay.ended_by is not None:
                print(f"rltrace: {relay.ended_by}", file=sys.stderr)
                return relay.ended_by.exit_code
        return OK
    except RltraceError as error:
        print(error, flush=True)  # read by the starter
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
