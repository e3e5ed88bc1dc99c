"""`@rltrace.span(...)`: one span a call, whatever kind of function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rltrace.hooks import recorder as _recorder
from rltrace.hooks.hook import Hook
from rltrace.hooks.patch.call_observer import Observer
from rltrace.hooks.patch.wrapping import stand_in
from rltrace.trace.job_exceptions import from_outside
from rltrace.trace.vocabulary import Phase, Stage, word

Counts = tuple[int | None, int | None, int | None]
"""Tokens, bytes and items of each call, where they are known."""

dosed: Callable[[Any, bool], Any] | None = None
"""Makes a delayed span; a probe sets its own. The other argument: the span holds its thread."""


def decorate(
    function: Callable[..., Any], name: int, stage: int, phase: int, counts: Counts
) -> Callable[..., Any]:
    """Has each call of a function be a span with these counts. Coroutine functions and generators
    stay what they are; a generator's span covers its iteration."""
    active = _recorder.active()
    text = active.text(name) if active is not None else "?"
    made: Callable[..., Any] = stand_in(function, DecoratedObserver(stage, phase, text, counts))
    return made


class DecoratedObserver(Observer):
    __slots__ = ("_counts", "_key", "delays")

    def __init__(self, stage: int, phase: int, text: str, counts: Counts) -> None:
        named = None if phase == -1 else Phase(phase)
        super().__init__(Hook("", Stage(stage), name=text, phase=named, per_item=False))
        self._key = (word(Stage(stage)), text)
        self._counts = counts
        self.delays = dosed is not None

    is_plain = property(lambda self: not self.delays)  # a "step" is a span like others here

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of the function in another process is recorded there."""
        return DecoratedObserver, (self._stage, self._phase, self._key[1], self._counts)

    def begin(self, args: tuple[Any, ...], kwargs: Any) -> Any:
        recorder = _recorder._active
        if recorder is None:
            return None
        try:
            # Ids belong to a process; a forked child resolves them anew.
            ids = recorder.labels.get(self._key) or recorder.label(*self._key)
            tokens, size, items = self._counts
            # Not `*self._counts`: after a call of that form something can strike (`outside`).
            span = recorder.begin(ids[0], self._stage, self._phase, None, None, tokens, size, items)
            return dosed(span, True) if self.delays and dosed is not None else span
        except Exception as error:
            if from_outside(error):
                raise
            recorder.failed(error)
            return None

    async def delay(self, call: Any) -> None:
        if call is not None:
            await call.__aexit__(None, None, None)

    def fail(self, call: Any, error: BaseException) -> None:
        if call is not None:
            call.__exit__(type(error), error, None)
