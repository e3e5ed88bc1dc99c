"""Tells how child processes and Ray actors ended.

Only the parent knows: a worker that was sent SIGKILL says nothing any more, and one that its parent
ended by `terminate()` in the middle of its work is none that was lost. Told are processes that a
signal or an exit code above 0 ended, and those that were sent one, each as a line of
`ends/<who>.jsonl`; actors by their id, once each, with why where nobody of the job wanted it. Of an
exception a process tells itself.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from functools import wraps
from time import time_ns
from typing import TYPE_CHECKING, Any

from rltrace.hooks import recorder as recording
from rltrace.trace.job_exceptions import contained
from rltrace.trace.run_dir import PROCESS_FAILED, THREAD_FAILED

if TYPE_CHECKING:
    from collections.abc import Callable


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


_INTENDED = ("ray.kill", "INTENDED", "out of scope", "owner has died", "exit_actor")
_NODE = ("node has died", "node is dead", "node died")
_ACTOR = re.compile(r"(?:Actor\(|actor ID: )([0-9a-f]{32})")
_CHOSEN = "Selected to kill:"  # what comes before it lists those that live

_told: set[tuple[str, int]] = set()


def watch_kill(worker: Any) -> None:
    """Patches `ray.kill`, where `ray._private.worker` was just imported."""
    original = worker.kill

    @wraps(original)
    def kill(actor: Any, *args: Any, **kwargs: Any) -> Any:
        before_ns = time_ns()  # it may be started again, as another process
        result = original(actor, *args, **kwargs)
        actor_id = getattr(actor, "_ray_actor_id", None)
        if actor_id is not None:
            with contained():  # the job goes on
                _ray_ends_tell(actor_id.hex(), 0, signal.SIGKILL, before_ns, asked=True)
        return result

    worker.kill = kill


def watch_errors(exceptions: Any) -> None:
    """Patches the errors of `ray.exceptions` that tell of an actor's end."""
    for name, look in (("ActorDiedError", _died), ("OutOfMemoryError", _no_memory)):
        kind = getattr(exceptions, name, None)
        if kind is not None:
            kind.__init__ = then(kind.__init__, look)


def _died(_: None, error: Any, cause: Any = None, **__: Any) -> None:
    actor, text = getattr(error, "actor_id", None), getattr(cause, "error_message", None)
    if not actor or not isinstance(text, str):
        return  # nothing is known, or the actor failed in its own `__init__`
    if any(words in text for words in _INTENDED):
        _ray_ends_tell(actor, cause.pid, 0, asked=True)
    elif "low on memory" in text:
        _ray_ends_tell(actor, cause.pid, signal.SIGKILL, why="memory")
    else:
        node = any(words in text for words in _NODE)
        _ray_ends_tell(actor, cause.pid, 0, why="node" if node else "process")


def _no_memory(_: None, error: Any, *__: Any, **___: Any) -> None:
    """Tells of the actors that Ray ended to have memory again."""
    for found in _ACTOR.finditer(str(error).rpartition(_CHOSEN)[2]):
        _ray_ends_tell(found[1], 0, signal.SIGKILL, why="memory")


def _ray_ends_tell(
    actor: str, pid: int, number: int, at_ns: int = 0, asked: bool = False, why: str = ""
) -> None:
    recorder = recording.active()
    if recorder is None or (actor, pid) in _told:
        return
    _told.add((actor, pid))
    line: dict[str, object] = {"actor": actor, "signal": int(number), "asked": asked, "why": why}
    line |= {"pid": pid} if pid else {}
    recorder.ended(**line, real_ns=at_ns or time_ns())
