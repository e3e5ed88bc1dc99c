"""Telling a signal that was sent to us alone from one that was sent to our whole process group.

What a signal carries does not say. So a second process of ours stays in the group, with every
signal blocked, and tells which ones reach it: those were sent to the group (a terminal's Ctrl-C,
`kill -- -PGID`, `timeout`, a batch system), and the command, which is in the group too, has them.
"""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress

_PING, _ANSWER = signal.SIGRTMAX, 0
"""Answered last: waiting signals are taken in the order of their numbers. One that others send is
told by its number."""

_GRACE_S = 0.05
"""How much later the group may get a signal that we got: `timeout` sends to both, one by one."""

_ANSWER_S = 1.0
_LOOK_S = 0.5
"""How often the canary looks whether we are still there."""


class Canary:
    """The second process; errors: OSError when it cannot be made. It holds no descriptor but its
    pipe and ends with us, however we end."""

    def __init__(self) -> None:
        reader, writer = os.pipe()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        parent = os.getpid()
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _sing(writer, parent)
        except OSError:
            os.close(reader)
            raise
        finally:
            os.close(writer)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._reader = reader
        self._heard: set[int] = set()

    def heard(self, number: int) -> bool | None:
        """Whether a signal that we have just received went to the group; `None` when the canary
        does not answer. What we get of it from the group meanwhile counts as the same signal."""
        try:
            self._listen(number, _GRACE_S)
            while number in self._heard and signal.sigtimedwait({number}, 0) is not None:
                pass
            self._heard.discard(_ANSWER)
            os.kill(self.pid, _PING)
            settled = self._listen(_ANSWER, _ANSWER_S)
        except OSError:
            return None
        told = number in self._heard
        self._heard.discard(number)
        return told if told or settled else None

    def end(self, gone: bool) -> None:
        """Ends the canary; `gone`: it has been reaped already."""
        os.close(self._reader)
        if not gone:
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)

    def _listen(self, number: int, seconds: float) -> bool:
        """Whether the canary has told of a signal, or does so in time. Errors: OSError."""
        wait = 0.0  # first what is there already
        while True:
            ready, _, _ = select.select([self._reader], [], [], wait)
            if ready:
                told = os.read(self._reader, 64)
                if not told:
                    raise OSError("the canary is gone")
                self._heard.update(told)
            elif number in self._heard or wait:
                return number in self._heard
            wait = 0.0 if number in self._heard else seconds


def _sing(writer: int, parent: int) -> None:
    """The life of the canary."""
    try:
        os.chdir("/")
        for name in os.listdir("/proc/self/fd"):
            if int(name) != writer:
                with suppress(OSError):
                    os.close(int(name))
        while os.getppid() == parent:
            received = signal.sigtimedwait(signal.valid_signals(), _LOOK_S)
            if received is not None:
                pinged = received.si_signo == _PING and received.si_pid == parent
                os.write(writer, bytes([_ANSWER if pinged else received.si_signo]))
    finally:
        os._exit(0)
