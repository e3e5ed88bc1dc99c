"""Tells how child processes ended.

Only the parent knows: a worker that was sent SIGKILL says nothing any more, and one that its parent
ended by `terminate()` in the middle of its work is none that was lost. Told are processes that a
signal or an exit code above 0 ended, and those that were sent one, each as a line of
`ends/<who>.jsonl`. Of an exception a process tells itself.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import wraps

from rltrace.hooks import recorder as recording
from rltrace.trace.job_exceptions import contained
from rltrace.trace.run_dir import PROCESS_FAILED, THREAD_FAILED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


_ENDING = {int(number) for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGHUP)}


def watch_subprocess(module: Any) -> None:
    """Patches the module `subprocess`, just imported."""
    kind = module.Popen
    kind.send_signal = then(kind.send_signal, _sent)
    kind._handle_exitstatus = _learning(kind._handle_exitstatus)


def watch_multiprocessing(module: Any) -> None:
    """Patches the module `multiprocessing.popen_fork`, just imported."""
    kind = module.Popen
    kind._send_signal = then(kind._send_signal, _sent)
    kind.poll = _learning(kind.poll)


def watch_exits(module: Any) -> None:
    """Patches `multiprocessing.util`: an exception ends a child by its `_exit_function`."""
    original = module._exit_function

    @wraps(original)
    def exit_function(*args: Any, **kwargs: Any) -> Any:
        with contained():  # the job goes on
            error, recorder = sys.exc_info()[1], recording.active()
            if isinstance(error, SystemExit) and error.code:
                error = error.__context__  # as of what `torch.multiprocessing` runs
            if recorder is not None:
                recorder.cut_short(PROCESS_FAILED, os.getpid(), error)
        return original(*args, **kwargs)

    module._exit_function = exit_function


def watch_threads(module: Any) -> None:
    """Patches `threading`: a thread's exception goes to `excepthook`, if that is still ours."""
    module.excepthook = then(module.excepthook, _thread_failed)


def then(
    original: Callable[..., Any],
    look: Callable[..., object],
    tell: Callable[[Exception], object] | None = None,
) -> Callable[..., Any]:
    """`original`, then `look` at the result and the arguments; `tell` gets what that raises."""

    @wraps(original)
    def looked_at(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        with contained(tell=tell):
            look(result, *args, **kwargs)
        return result

    return looked_at


def _thread_failed(_: None, args: Any) -> None:
    recorder = recording.active()
    if recorder is not None:
        recorder.cut_short(THREAD_FAILED, getattr(args.thread, "name", ""), args.exc_value)


def _sent(_: object, child: Any, sig: int) -> None:
    if child.returncode is None and int(sig) in _ENDING:
        _tell(child.pid, int(sig), asked=True)


def _learning(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that may learn how a child ended."""

    @wraps(method)
    def learn(self: Any, *args: Any, **kwargs: Any) -> Any:
        known = getattr(self, "returncode", None)
        result = method(self, *args, **kwargs)
        with contained():  # the job goes on
            code = self.returncode
            if known is None and code:
                _tell(self.pid, max(0, -code), asked=False, **({"code": code} if code > 0 else {}))
        return result

    return learn


def _tell(pid: int, number: int, **more: Any) -> None:
    recorder = recording.active()
    if recorder is not None:
        recorder.ended(pid=pid, signal=number, **more)
