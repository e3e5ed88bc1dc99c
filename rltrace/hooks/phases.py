"""Spans that follow each other without a gap: a piece of work, every instant of it by name.

Spans that are opened one after the other leave what lies between them unexplained: a few
microseconds, or the milliseconds that a busy machine takes just there.
"""

from __future__ import annotations

from rltrace.hooks.idle import IDLE
from rltrace.hooks.span_api import LoopSpan, span


class Phases:
    """The phases of one piece of work in this thread or task; a context manager that ends the last.
    Each begins at the very reading of the clock at which the one before ends. Spans inside of a
    phase are its own."""

    __slots__ = ("_open", "_since_ns")

    def __init__(self, since_ns: int = -1) -> None:
        """`since_ns`: where the first phase begins, if not when it is opened (monotonic clock)."""
        self._since_ns = since_ns
        self._open: LoopSpan = IDLE  # type: ignore[assignment]  # it does nothing, to any call

    def begin(self, stage: str, name: str, phase: str | None = None, **known: int) -> LoopSpan:
        """The next phase, as `rltrace.span` names it, with the version and bytes that are known:
        the one before has ended. Never raises."""
        before = self._open
        before.end()  # a probe sleeps its dose here
        after = self._open = span(stage, name, phase, **known)
        if self._since_ns > 0:
            after.set(start_ns=self._since_ns)
            self._since_ns = -1
        elif after.start_ns > 0:
            before.set(end_ns=after.start_ns)
        return after

    def __enter__(self) -> Phases:
        return self

    def __exit__(self, kind: object, value: object, traceback: object) -> None:
        self._open.__exit__(kind, value, traceback)
