"""`rltrace.span` and `rltrace.step`, the most frequent calls of a loop."""

from __future__ import annotations

from _thread import get_ident

from rltrace.hooks import recorder as _recorder
from rltrace.hooks import spans as _spans
from rltrace.hooks.null_api import IDLE, stays_out_of_graphs
from rltrace.hooks.spans import Span, codes_of
from rltrace.trace.job_exceptions import clock, contained, from_outside
from rltrace.trace.run_dir import STEP_FAILED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from rltrace.hooks.recorder import Recorder


on_step: Callable[[int], None] | None = None
"""Told of each step that begins; a probe sets its own."""


class _Phases(dict[str, int]):
    """Codes of phases; the enum is loaded for the first that is named."""

    def __missing__(self, word: str) -> int:
        self.update(codes_of("Phase"))
        if word not in self:
            _recorder.unknown_word("Phase", word)
            return -1
        return self[word]


_phases = _Phases()


class LoopSpan(Span):
    """A span that a loop opened: a context manager, and a decorator."""

    __slots__ = ()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorates a function, coroutine function or generator: one span a call."""
        from rltrace.hooks.patch.span_decorator import (
            decorate,  # it needs `inspect`: not for every process
        )

        columns = ("name", "stage", "phase", "tokens", "bytes", "items")
        name, stage, phase, tokens, size, items = _spans.stored(self, *columns)
        self.discard()
        counts = [None if count == -1 else count for count in (tokens, size, items)]
        return decorate(function, name, stage, phase, (counts[0], counts[1], counts[2]))


class Step(Span):
    """An open learner step. One that an exception cuts short stays open: it is none to measure."""

    __slots__ = ()

    def __exit__(self, kind: object, value: object, traceback: object) -> None:
        recorder = _recorder._active
        if kind is None:
            self.end()
        elif recorder is not None:
            number = recorder.step if recorder.open_step is self else -1
            recorder.cut_short(STEP_FAILED, number, value)
        if recorder is not None and recorder.open_step is self:
            recorder.open_step = None
            recorder.step = -1


_active: Recorder | None = None
"""The process's recorder; a global of this module is read 10 ns faster."""


def _follow(recorder: Recorder | None) -> None:
    global _active
    _active = recorder


_recorder.follow(_follow)

# An idle object does all that these do: nothing.
_IDLE_SPAN: LoopSpan = IDLE  # type: ignore[assignment]
_IDLE_STEP: Step = IDLE  # type: ignore[assignment]


@stays_out_of_graphs
def span(
    stage: str,
    name: str | None = None,
    phase: str | None = None,
    step: int | None = None,
    version: int | None = None,
    tokens: int | None = None,
    bytes: int | None = None,
    items: int | None = None,
) -> LoopSpan:
    """A span of time, from this call to the end of the `with` block; also a decorator of functions,
    coroutine functions and generators (then one span a call).

    `stage` is one of the vocabulary's ("rollout", "env", "reward", "reference", "logprob", "value",
    "train", "sync", "switch", "wait", "data", "checkpoint", "eval", "other"); an unknown one is
    recorded as "other" under its name and said once on stderr. `name` says more ("ppo_epoch").
    `phase` is for "sync": "gather", "convert", "transfer", "load", "visible". `step` and `version`
    default to those of the process (`rltrace.step`, `rltrace.weight_update`). What is known only
    later: `with rltrace.span("rollout") as s: ...; s.set(tokens=n)`.
    """
    # Two lines, so that a call without a run sets up the smallest frame there is.
    if _active is None:
        return _IDLE_SPAN
    return begin_span(stage, name, phase, step, version, tokens, bytes, items)


def begin_span(
    stage: str,
    name: str | None,
    phase: str | None,
    step: int | None,
    version: int | None,
    tokens: int | None,
    bytes: int | None,
    items: int | None,
) -> LoopSpan:
    """What `span` does where there is a run; a probe puts its own in this place."""
    recorder = _active
    if recorder is None:  # another thread has just stopped it
        return _IDLE_SPAN
    # What `spans.begin` does, written out: calling it would cost a twentieth more.
    try:
        label = recorder.labels.get(stage if name is None else (stage, name)) or recorder.label(
            stage, name
        )
        batch = recorder.span_writer.batch
        slot = batch.next_slot()
        if slot >= batch.rows:
            batch, slot = recorder.span_writer.claim()
        (
            starts, _, names, stages, phases, steps, versions, lanes,
            token_counts, byte_counts, item_counts,
        ) = batch.columns  # fmt: skip
        names[slot], stages[slot] = label
        if phase is not None:
            phases[slot] = _phases[phase]
        steps[slot] = recorder.step if step is None else step
        versions[slot] = recorder.version if version is None else version
        if _spans.running_loop is None or _spans.running_loop() is None:
            lanes[slot] = get_ident()
        else:
            task = _spans.current_task()
            lanes[slot] = get_ident() if task is None else id(task)
        if tokens is not None:
            token_counts[slot] = tokens
        if bytes is not None:
            byte_counts[slot] = bytes
        if items is not None:
            item_counts[slot] = items
        span = LoopSpan()
        span._batch = batch
        span._slot = slot
        starts[slot] = -clock
        return span
    except Exception as error:
        if from_outside(error):
            raise
        if isinstance(error, (TypeError, ValueError, OverflowError)):
            return _piecemeal(stage, name, step, version, tokens, bytes, items)
        _spans.on_failure(error)  # not `recorder`'s: another thread may just have stopped it
        return _IDLE_SPAN


def _piecemeal(stage: object, name: object, step: Any, version: Any, *counts: Any) -> LoopSpan:
    """The span again, where a value did not fit: the interval is kept, and what can be."""
    with contained(tell=_spans.on_failure):
        words = [None if word is None else _recorder.as_word(word) for word in (stage, name)]
        opened = span(words[0] or "other", words[1])
        columns = ("step", "version", "tokens", "bytes", "items")
        given = zip(columns, (step, version, *counts), strict=True)
        opened.set(**{column: value for column, value in given if value is not None})
        return opened
    return _IDLE_SPAN


@stays_out_of_graphs
def step(number: int) -> Step:
    """One learner step. Either `with rltrace.step(n): ...`, or a call at the top of the loop, which
    ends the step before. Spans recorded in the process meanwhile belong to it. A step that an
    exception leaves is a failed one, which no figure of a usual step has in it."""
    recorder = _recorder._active
    if recorder is None:
        return _IDLE_STEP
    with contained(tell=recorder.failed):
        if (before := recorder.open_step) is not None:
            before.end()
            recorder.open_step = None
        whole = _whole(number)
        if whole is None or whole < 0:  # -1 is what has no number
            recorder.step = -1
            why = "is no integer" if whole is None else "is below 0"
            recorder.odd_value("rltrace.step", number, f"{why}: the step was not recorded")
            return _IDLE_STEP
        recorder.step = whole
        opened: Any = recorder.begin(*recorder.label("step", None))
        opened.__class__ = Step
        recorder.open_step = opened
        if on_step is not None:
            on_step(recorder.step)
        step_row: Step = opened
        return step_row
    return _IDLE_STEP


def _whole(number: Any) -> int | None:
    """A step's number as an integer (7, 7.0, a tensor, "7"); None: it is none (7.5)."""
    with contained():  # whatever it is
        whole = int(number)
        return whole if isinstance(number, (str, bytes)) or whole == number else None
    return None


class Phases:
    """The phases of one piece of work in this thread or task; a context manager that ends the last.
    Each begins at the very reading of the clock at which the one before ends, so nothing is
    unexplained between them. Spans inside of a phase are its own."""

    __slots__ = ("_open", "_since_ns")

    def __init__(self, since_ns: int = -1) -> None:
        """`since_ns`: where the first phase begins, if earlier than it is opened (monotonic)."""
        self._since_ns = since_ns
        self._open: LoopSpan = IDLE  # type: ignore[assignment]  # it does nothing, to any call

    def begin(self, stage: str, name: str, phase: str | None = None, **known: int) -> LoopSpan:
        """The next phase, named as by `rltrace.span`, with what is known of it. Never raises."""
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
