"""How Ray's actors ended, as far as this process learns of it: it killed one, or asked one that was
dead for something. The process of the actor says nothing any more, and its parent is Ray's.

Told by the actor's id, once each, in `ends/<who>.jsonl`, with why where nobody of the job wanted
it.
"""

from __future__ import annotations

import re
import signal
from functools import wraps
from time import monotonic_ns, time_ns

from rltrace.hooks import recorder as recording
from rltrace.trace.outside import from_outside
from rltrace.trace.run_dir import ENDS, append_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

_INTENDED = ("ray.kill", "INTENDED", "out of scope", "owner has died", "exit_actor")
_NODE = ("node has died", "node is dead", "node died")
_ACTOR = re.compile(r"(?:Actor\(|actor ID: )([0-9a-f]{32})")
_CHOSEN = "Selected to kill:"  # what comes before it lists those that live

_told: set[tuple[str, int]] = set()


def watch_kill(worker: Any) -> None:
    """Patches `ray.kill`, where `ray._private.worker` has just been imported."""
    original = worker.kill

    @wraps(original)
    def kill(actor: Any, *args: Any, **kwargs: Any) -> Any:
        before_ns = time_ns()  # it may be started again, as another process
        result = original(actor, *args, **kwargs)
        actor_id = getattr(actor, "_ray_actor_id", None)
        if actor_id is not None:
            _guarded(lambda: _tell(actor_id.hex(), 0, signal.SIGKILL, before_ns, asked=True))
        return result

    worker.kill = kill


def watch_errors(exceptions: Any) -> None:
    """Patches the errors of `ray.exceptions` that tell of an actor's end."""
    for name, look in (("ActorDiedError", _died), ("OutOfMemoryError", _no_memory)):
        kind = getattr(exceptions, name, None)
        if kind is not None:
            kind.__init__ = _then(kind.__init__, look)


def _then(original: Callable[..., None], look: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _guarded(lambda: look(self, *(args or kwargs.values())))

    return made


def _died(error: Any, cause: Any = None) -> None:
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


def _no_memory(error: Any, *_: Any) -> None:
    for actor in _chosen(str(error)):
        _tell(actor, 0, signal.SIGKILL, why="memory")


def _chosen(text: str) -> Iterator[str]:
    """The actors that Ray ended to have memory again."""
    for found in _ACTOR.finditer(text.rpartition(_CHOSEN)[2]):
        yield found[1]


def _guarded(tell: Callable[[], None]) -> None:
    try:
        tell()
    except Exception as error:  # the job goes on
        if from_outside(error):
            raise


def _tell(
    actor: str, pid: int, number: int, at_ns: int = 0, asked: bool = False, why: str = ""
) -> None:
    recorder = recording.active()
    if recorder is None or (actor, pid) in _told:
        return
    _told.add((actor, pid))
    line: dict[str, object] = {"actor": actor, "signal": int(number), "asked": asked, "why": why}
    line |= {"monotonic_ns": monotonic_ns(), "real_ns": at_ns or time_ns()}
    line |= {"pid": pid} if pid else {}
    append_line(f"{recorder.run_dir}/{ENDS}/{recorder.who}.jsonl", line)
