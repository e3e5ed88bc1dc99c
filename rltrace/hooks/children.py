"""How the processes that this one started ended, as far as Python's own modules learn of it.

Only the parent knows: a worker that was sent SIGKILL says nothing any more, and one that its parent
ended by `terminate()` in the middle of its work is none that was lost. Told are processes that a
signal or an exit code above 0 ended, and those that were sent one; each is a line of
`ends/<who>.jsonl`. Of an exception a process tells itself.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import wraps
from time import monotonic_ns

from rltrace.hooks import recorder as recording
from rltrace.trace.outside import from_outside
from rltrace.trace.run_dir import ENDS, PROCESS_FAILED, THREAD_FAILED, append_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_ENDING = {int(number) for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGHUP)}


def watch_subprocess(module: Any) -> None:
    """Patches the module `subprocess`, just imported."""
    kind = module.Popen
    kind.send_signal = _sending(kind.send_signal)
    kind._handle_exitstatus = _learning(kind._handle_exitstatus)


def watch_multiprocessing(module: Any) -> None:
    """Patches the module `multiprocessing.popen_fork`, just imported."""
    kind = module.Popen
    kind._send_signal = _sending(kind._send_signal)
    kind.poll = _learning(kind.poll)


def watch_exits(module: Any) -> None:
    """Patches the module `multiprocessing.util`, just imported: a child that an exception ends runs
    its `_exit_function` while that is on its way."""
    original = module._exit_function

    @wraps(original)
    def exit_function(*args: Any, **kwargs: Any) -> Any:
        try:
            error, recorder = sys.exc_info()[1], recording.active()
            if isinstance(error, SystemExit) and error.code:
                error = error.__context__  # as of what `torch.multiprocessing` runs
            if recorder is not None:
                recorder.cut_short(PROCESS_FAILED, os.getpid(), error)
        except Exception as second:  # the job goes on
            if from_outside(second):
                raise
        return original(*args, **kwargs)

    module._exit_function = exit_function


def watch_threads(module: Any) -> None:
    """Patches the module `threading`, just imported: a thread that an exception ends goes by its
    `excepthook`, unless the job has put another there."""
    original = module.excepthook

    @wraps(original)
    def excepthook(args: Any) -> Any:
        try:
            if (recorder := recording.active()) is not None:
                recorder.cut_short(THREAD_FAILED, getattr(args.thread, "name", ""), args.exc_value)
        except Exception as error:  # the job goes on
            if from_outside(error):
                raise
        return original(args)

    module.excepthook = excepthook


def _sending(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that sends a signal to a child."""

    @wraps(method)
    def send(self: Any, sig: int, *args: Any, **kwargs: Any) -> Any:
        result = method(self, sig, *args, **kwargs)
        try:
            if self.returncode is None and int(sig) in _ENDING:
                _tell(self.pid, int(sig), asked=True)
        except Exception as error:  # the job goes on
            if from_outside(error):
                raise
        return result

    return send


def _learning(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that may learn how a child ended."""

    @wraps(method)
    def learn(self: Any, *args: Any, **kwargs: Any) -> Any:
        known = getattr(self, "returncode", None)
        result = method(self, *args, **kwargs)
        try:
            code = self.returncode
            if known is None and code:
                _tell(self.pid, max(0, -code), asked=False, code=max(0, code))
        except Exception as error:  # the job goes on
            if from_outside(error):
                raise
        return result

    return learn


def _tell(pid: int, number: int, asked: bool, code: int = 0) -> None:
    recorder = recording.active()
    if recorder is not None:
        line = {"pid": pid, "signal": number, "asked": asked, "monotonic_ns": monotonic_ns()}
        line |= {"code": code} if code else {}
        append_line(f"{recorder.run_dir}/{ENDS}/{recorder.who}.jsonl", line)
