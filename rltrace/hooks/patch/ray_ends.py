"""Tells how Ray actors ended: by their id, once each, with why where nobody wanted it."""

from __future__ import annotations

import re
import signal
from functools import wraps
from time import time_ns
from typing import Any

from rltrace.hooks import recorder as recording
from rltrace.hooks.watch.child_exits import then
from rltrace.trace.job_exceptions import contained

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
                _tell(actor_id.hex(), 0, signal.SIGKILL, before_ns, asked=True)
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
        _tell(actor, cause.pid, 0, asked=True)
    elif "low on memory" in text:
        _tell(actor, cause.pid, signal.SIGKILL, why="memory")
    else:
        node = any(words in text for words in _NODE)
        _tell(actor, cause.pid, 0, why="node" if node else "process")


def _no_memory(_: None, error: Any, *__: Any, **___: Any) -> None:
    """Tells of the actors that Ray ended to have memory again."""
    for found in _ACTOR.finditer(str(error).rpartition(_CHOSEN)[2]):
        _tell(found[1], 0, signal.SIGKILL, why="memory")


def _tell(
    actor: str, pid: int, number: int, at_ns: int = 0, asked: bool = False, why: str = ""
) -> None:
    recorder = recording.active()
    if recorder is None or (actor, pid) in _told:
        return
    _told.add((actor, pid))
    line: dict[str, object] = {"actor": actor, "signal": int(number), "asked": asked, "why": why}
    line |= {"pid": pid} if pid else {}
    recorder.ended(**line, real_ns=at_ns or time_ns())
