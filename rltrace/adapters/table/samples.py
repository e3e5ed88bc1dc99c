"""How a sample ended, and what was said of it: what all frameworks' samples have in common."""

from __future__ import annotations

from asyncio import CancelledError
from typing import Any

from rltrace.hooks.hook import Call
from rltrace.trace.vocabulary import Finish, Outcome

_FINISHES = {
    "stop": Finish.STOP,
    "tool_calls": Finish.STOP,
    "completed": Finish.STOP,
    "length": Finish.LENGTH,
    "truncated": Finish.LENGTH,
    "abort": Finish.ABORT,
    "aborted": Finish.ABORT,
    "error": Finish.ERROR,
    "failed": Finish.ERROR,
}
"""What engines and frameworks call the end of a generation."""


def finish(word: object) -> dict[str, int]:
    """The column of a sample that ended so; none for a word that does not say how."""
    known = _FINISHES.get(str(word))
    return {} if known is None else {"finish": known}


def cut_short(error: BaseException) -> dict[str, int]:
    """The column of a sample that raised: by an error, or since nobody wants it any more."""
    return {"finish": Finish.ABORT if isinstance(error, CancelledError) else Finish.ERROR}


def score(value: float | None) -> dict[str, Any]:
    """The columns of a verdict. A NaN that a reward function gave is one, and an alarm; none at all
    is its error."""
    return {"outcome": Outcome.ERROR} if value is None else {"value": value, "outcome": Outcome.OK}


def verdict(
    call: Call,
    trajectory: int,
    component: object,
    value: float | None,
    times_ns: tuple[int, int] | None = None,
    **more: int,
) -> None:
    """A verdict on a sample; one whose time is not known is an event at the end of the call."""
    start_ns, end_ns = times_ns or (call.end_ns, call.end_ns)
    columns = {"start_ns": start_ns, "end_ns": end_ns, **score(value), **more}
    name = call.recorder.name(str(component))
    call.recorder.append("rewards", trajectory=trajectory, component=name, **columns)
