"""Runs a child in our place, and passes signals on.

All signals that can be are waited for instead of handled. Those that were sent to the whole process
group (a terminal's Ctrl-C, `kill -- -PGID`, `timeout`, a batch system) have reached the child
already; those that were sent to us alone are passed on. What a signal carries does not say which it
is. So a second process of ours, the canary, stays in the group, with every signal blocked, and
tells which ones reach it. What stops a program stops us, too, so that the shell has its terminal
back.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_WATCHED = set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}
_STOPS = {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
_SI_KERNEL = 0x80
_MEANWHILE_S = 5.0


def run_child(
    program: str,
    argv: list[str],
    environment: dict[str, str],
    started: Callable[[int], None],
    signalled: Callable[[int], None],
    meanwhile: Callable[[], None] | None = None,
) -> int:
    """The exit code of `program`, or 128 + n when signal n ended it. `started` is told its pid,
    `signalled` each signal that came for it through us. Errors: OSError: it cannot be executed."""
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else its exit status would be thrown away
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    canary: Canary | None = None
    gone: set[int] = set()
    ignored = (signal.SIGPIPE, signal.SIGXFSZ)  # by Python; the job need not
    try:
        child = os.posix_spawn(program, argv, environment, setsigmask=before, setsigdef=ignored)
        # After the child, so that nothing is heard which the child was not sent. Where no process
        # or descriptor is to spare, who sent a signal has to do.
        with suppress(OSError):
            canary = Canary()
        started(child)
        # Looked at first: another thread may have taken the word that the child has ended.
        while (status := _reaped(child, gone)) is None:
            received = signal.sigtimedwait(_WATCHED, _MEANWHILE_S)
            if received is None:
                if meanwhile is not None:
                    meanwhile()
            elif received.si_signo != signal.SIGCHLD and received.si_pid != os.getpid():
                # (What comes from ourselves is that nobody reads what we say: SIGPIPE.)
                signalled(received.si_signo)
                _pass_on(child, canary, received)
    finally:
        if canary is not None:
            canary.end(canary.pid in gone)
        while signal.sigtimedwait(_WATCHED, 0) is not None:
            pass  # what came too late (the Ctrl-C that ended the child) must not strike now
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _pass_on(child: int, canary: Canary | None, received: signal.struct_siginfo) -> None:
    """Sends the child what it has not got itself, and stops where that is what the signal does."""
    number, terminal = received.si_signo, received.si_code == _SI_KERNEL
    heard = canary.heard(number) if canary is not None else None
    heard = terminal if heard is None else heard
    with suppress(ProcessLookupError):
        if not heard or (not terminal and os.getpgid(child) != os.getpgrp()):
            os.kill(child, number)
    if number in _STOPS and signal.SIGCONT not in signal.sigpending():  # else it is to go on
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
        signal.pthread_sigmask(signal.SIG_BLOCK, {number})


def _reaped(child: int, gone: set[int]) -> int | None:
    """The child's status, once it has ended; others that have are `gone`."""
    with suppress(ChildProcessError):
        # Any child: as process 1 of a container we inherit the orphans.
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                return ended[1]
            gone.add(ended[0])
    return None


# The ping is answered last: waiting signals are taken in the order of their numbers.
_PING, _ANSWER = signal.SIGRTMAX, 0
GRACE_S = 0.05  # later the group may get a signal that we got: `timeout` sends to one by one
_ANSWER_S = 1.0
_LOOK_S = 0.5  # whether we are still there


class Canary:
    """The second process, which holds no descriptor but its pipe and ends with us, however we end.
    Errors: OSError when it cannot be made."""

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
        """Whether a signal that we have just received went to the group; None when the canary does
        not answer. What we get of it from the group meanwhile counts as the same signal."""
        try:
            self._listen(number, GRACE_S)
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
        """`gone`: it has been reaped already."""
        os.close(self._reader)
        if not gone:
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)

    def _listen(self, number: int, seconds: float) -> bool:
        """Whether the canary has told of a signal, or does so in time. Errors: OSError."""
        wait = 0.0  # first what is there already
        while True:
            if select.select([self._reader], [], [], wait)[0]:
                told = os.read(self._reader, 64)
                if not told:
                    raise OSError("the canary is gone")
                self._heard.update(told)
            elif number in self._heard or wait:
                return number in self._heard
            wait = 0.0 if number in self._heard else seconds


def _sing(writer: int, parent: int) -> None:
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


@contextmanager
def ended_by_signal() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set; the handlers of before are put back."""
    ended = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in numbers}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
