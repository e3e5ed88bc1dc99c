"""The hot path: a span begins and ends.

Every traced job pays for every statement here. `begin` stores the columns straight into the mapped
file, `start_ns` last: a row whose start is 0 does not exist yet. Ending a span is one more store.
Nothing of a span stays in memory.
"""

from __future__ import annotations

import sys
from _thread import get_ident

from rltrace.trace.job_exceptions import clock, from_outside
from rltrace.trace.segment import Row

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from rltrace.hooks.recorder import Recorder


running_loop: Callable[[], object | None] | None = None
current_task: Callable[[], object | None]


def _ignore(error: BaseException) -> None:
    """There is no recorder yet."""


on_failure: Callable[[BaseException], None] = _ignore
"""Gets an error in completing a row; the recorder sets its own."""

on_end: Callable[[Span], None] | None = None
"""Told of each ended span, where the process uses a GPU: see `device_completion`."""


class Span(Row):
    """An open span; a context manager that ends it."""

    __slots__ = ()

    @property
    def start_ns(self) -> int:
        """When it began, by the monotonic clock; -1 where that cannot be read any more."""
        try:
            return int(self._batch.columns[0][self._slot])
        except Exception as error:
            if from_outside(error):
                raise
            return -1

    def end(self) -> None:
        """Ends the span now. Never raises."""
        try:
            self._batch.columns[1][self._slot] = -clock
            if on_end is not None:
                on_end(self)
        except Exception as error:
            if from_outside(error):
                raise

    def set(self, **values: Any) -> None:
        """Completes the row: `tokens`, `bytes`, `items`, `version`, `step`. Never raises."""
        try:
            Row.set(self, **values)
        except Exception as error:
            if from_outside(error):
                raise
            on_failure(error)

    def discard(self) -> None:
        """Takes the row back, as if the span had not been begun."""
        try:
            self._batch.columns[0][self._slot] = 0
        except Exception as error:
            if from_outside(error):
                raise

    def __enter__(self) -> Span:
        return self

    def __exit__(self, kind: object, value: object, traceback: object) -> None:
        try:
            self._batch.columns[1][self._slot] = -clock
            if on_end is not None:
                on_end(self)
        except Exception as error:
            if from_outside(error):
                raise

    async def __aenter__(self) -> Span:
        return self.__enter__()

    async def __aexit__(self, *error: Any) -> None:
        self.__exit__(*error)


def begin(
    recorder: Recorder,
    name: int,
    stage: int,
    phase: int = -1,
    step: int | None = None,
    version: int | None = None,
    tokens: int | None = None,
    bytes: int | None = None,
    items: int | None = None,
    lane: int | None = None,
) -> Span:
    """Begins a span; `name` is an id (`Recorder.name`), `lane` the line of nesting (None: this
    thread or asyncio task). Errors: OSError when there is no space, TypeError or ValueError for
    values that are no integers or do not fit: callers (hooks and the API) guard the job."""
    batch = recorder.span_writer.batch
    slot = batch.next_slot()
    if slot >= batch.rows:
        batch, slot = recorder.span_writer.claim()
    (
        starts, _, names, stages, phases, steps, versions, lanes,
        token_counts, byte_counts, item_counts,
    ) = batch.columns  # fmt: skip
    names[slot] = name
    stages[slot] = stage
    if phase != -1:
        phases[slot] = phase
    steps[slot] = recorder.step if step is None else step
    versions[slot] = recorder.version if version is None else version
    if lane is not None:
        lanes[slot] = lane
    elif running_loop is None or running_loop() is None:
        lanes[slot] = get_ident()
    else:
        task = current_task()
        lanes[slot] = get_ident() if task is None else id(task)
    if tokens is not None:
        token_counts[slot] = tokens
    if bytes is not None:
        byte_counts[slot] = bytes
    if items is not None:
        item_counts[slot] = items
    span = Span()
    span._batch = batch
    span._slot = slot
    starts[slot] = -clock  # from here to the return nothing can strike
    return span


def stored(row: Row, *columns: str) -> list[int]:
    """What columns of a row hold. Errors: ValueError for one of the process that forked this."""
    batch = row._batch
    return [int(batch.columns[batch.places[column]][row._slot]) for column in columns]


def watch_asyncio() -> None:
    """Called once asyncio is imported: tasks interleave on a thread, so each is a lane."""
    global running_loop, current_task
    asyncio: Any = sys.modules["asyncio"]
    current_task = asyncio.current_task
    running_loop = asyncio._get_running_loop


_codes: dict[str, dict[str, int]] = {}


def codes_of(enum: str) -> dict[str, int]:
    """Code by word of an enum of the vocabulary: `codes_of("Stage")["rollout"]` is 0."""
    known = _codes.get(enum)
    if known is None:
        from rltrace.trace import vocabulary

        known = {vocabulary.word(member): int(member) for member in getattr(vocabulary, enum)}
        _codes[enum] = known
    return known
