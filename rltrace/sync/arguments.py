"""What a caller gives a publisher, checked before anything is done with it."""

from __future__ import annotations

from operator import index
from typing import Any

from rltrace.sync.layout import Layout
from rltrace.sync.version import RUN
from rltrace.trace.errors import WRONG_USAGE, RltraceError

_MOST_STEP = (1 << 63) - 1  # it is stored in 8 bytes


def whole_number(name: str, value: Any) -> int:
    """As Python's own; NumPy's and torch's integers are taken, too. Errors: `RltraceError`."""
    try:
        return index(value)
    except TypeError as error:
        said = f"{name} takes a whole number, not {value!r:.80}"
        raise RltraceError(said, WRONG_USAGE) from error


def learner_step(value: Any) -> int:
    """What a learner calls its step; -1: not told. Errors: `RltraceError`."""
    step = whole_number("step", value)
    if not -1 <= step <= _MOST_STEP:
        said = f"step takes a number from 0 to {_MOST_STEP}, or -1 for none, not {step}"
        raise RltraceError(said, WRONG_USAGE)
    return step


def check_opening(layout: Any, run: Any) -> None:
    """Errors: `RltraceError` for what is no layout, or no name of a run."""
    if not isinstance(layout, Layout):
        given = type(layout).__name__
        said = f"a publisher takes layout_of(weights), not an object of type {given}"
        raise RltraceError(said, WRONG_USAGE)
    if run is not None and not (isinstance(run, str) and RUN.fullmatch(run)):
        said = f"run takes 16 hexadecimal digits in lower case, not {run!r:.80}"
        raise RltraceError(f"{said}: secrets.token_hex(8) makes such", WRONG_USAGE)
