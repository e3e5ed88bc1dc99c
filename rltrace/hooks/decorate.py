"""`@rltrace.span(...)`: one span a call, whatever kind of function it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from rltrace.hooks import recorder as _recorder
from rltrace.hooks.idle import IDLE
from rltrace.hooks.spans import Span
from rltrace.trace.vocabulary import Stage, word

dosed: Callable[[Any, bool], Any] | None = None
"""Makes a span that is delayed of one that is not; a probe sets its own. The other argument: the
span holds its thread from the beginning to the end."""


def decorate(
    function: Callable[..., Any], name: int, stage: int, phase: int, counts: dict[str, int]
) -> Callable[..., Any]:
    """Wraps a function so that each call is a span with these counts (`tokens`, `bytes`, `items`).
    A coroutine function stays one, and so do a generator (the span covers its iteration) and an
    async generator."""
    from functools import wraps  # kept out of every process's start
    from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction

    active = _recorder.active()
    text = active.text(name) if active is not None else "?"
    idle = cast("Span", IDLE)
    key = (word(Stage(stage)), text)

    def start() -> Span:
        recorder = _recorder._active
        if recorder is None:
            return idle
        try:
            # Ids belong to a process; a forked child resolves them anew.
            ids = recorder.labels.get(key) or recorder.label(*key)
            return recorder.begin(ids[0], stage, phase, **counts)
        except Exception as error:
            recorder.failed(error)
            return idle

    make = dosed
    if iscoroutinefunction(function):
        if make is not None:

            @wraps(function)
            async def delayed(*args: Any, **kwargs: Any) -> Any:
                async with make(start(), False):
                    return await function(*args, **kwargs)

            return delayed

        @wraps(function)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            with start():
                return await function(*args, **kwargs)

        return coroutine
    if isasyncgenfunction(function):

        @wraps(function)
        async def async_generator(*args: Any, **kwargs: Any) -> Any:
            with start():
                async for item in function(*args, **kwargs):
                    yield item

        return async_generator
    if isgeneratorfunction(function):

        @wraps(function)
        def generator(*args: Any, **kwargs: Any) -> Any:
            with start():
                return (yield from function(*args, **kwargs))

        return generator

    if make is not None:

        @wraps(function)
        def delayed_call(*args: Any, **kwargs: Any) -> Any:
            with make(start(), True):
                return function(*args, **kwargs)

        return delayed_call

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with start():
            return function(*args, **kwargs)

    return call
