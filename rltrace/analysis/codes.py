"""Codes of the trace as words; a code that this version does not know is "unknown"."""

from __future__ import annotations

from enum import IntEnum
from functools import cache

from rltrace.trace.vocabulary import Stage, word


@cache
def named(kind: type[IntEnum], code: int | None) -> str:
    """The word of a code, or "unknown" (-1, or written by a later version)."""
    return word(kind(code)) if code in set(kind) else "unknown"


def stage_of(code: int) -> Stage:
    """The stage of a code; an unknown one is `OTHER`."""
    return Stage(code) if code in set(Stage) else Stage.OTHER
