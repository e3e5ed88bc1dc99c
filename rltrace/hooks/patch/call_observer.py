"""Records a hooked call: its span, and what the hook's readers say.

Nothing here raises into the job. What goes wrong is written to the run's problems, once per hook.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from time import monotonic_ns, thread_time_ns
from typing import Any

from rltrace.hooks import recorder as recording
from rltrace.hooks.hook import Call, Hook, phase_code, split_target, stage_code
from rltrace.hooks.patch.safe_repr import describe
from rltrace.trace.job_exceptions import Clock, clock, contained, from_outside
from rltrace.trace.run_dir import STEP_FAILED
from rltrace.trace.schema import EVENT_TABLES
from rltrace.trace.vocabulary import STEP_SPAN, Stage

_NO_SPAN = -1
_STEP = int(Stage.STEP)

ROOM = 8  # calls within each other for which the recursion limit stays
_MORE_ROOM = 64
_ONE_IN = 256  # calls that are read is timed, in the end
_OWN_FRAMES = 16  # what recording takes while it is at work

_REVIVE = (
    "(lambda observer: observer and observer({!r}, {!r}))"
    "(getattr(__import__('sys').modules.get('rltrace.hooks.boot'), 'observer', None))"
)


kind: type[Observer] | None = None
"""What `Observer(hook)` makes instead; a probe sets its own."""

_took: dict[str, list[int]] = {}  # by recorder: CPU ns of calls that are read, and how often timed
_FEW = 16


def _count(recorder: recording.Recorder, cpu_ns: int) -> None:
    """Tells the process's file what they took, ever more rarely, beside the events by then: a
    report takes as much for each of the others."""
    took = _took.setdefault(recorder.who, [0, 0])
    took[0] += cpu_ns
    took[1] += 1
    if took[1] >= _FEW and not took[1] & (took[1] - 1):
        events = sum(recorder.tables[name].rows for name in EVENT_TABLES)
        recorder.describe(readers_cpu_ns=took[0], readers_events=events)


class _TimedCall(Call):
    """One whose end is timed as its beginning was."""

    __slots__ = ()


class Observer:
    """Records the calls of one hooked function. `begin` gives what `end`, `fail` (it raised) or
    `drop` (there was no call after all) are given back; `on` is False once unpatched."""

    __slots__ = (
        *("_after", "_before", "_name", "_phase", "_reads", "_stage", "_stage_decides"),
        *("_times", "_untimed", "deep", "depth", "function", "hook", "on", "per_item", "room"),
    )

    clock: Clock = clock

    delays = False  # whether `delay` is awaited where a coroutine has come to its end

    def __new__(cls, *_: Any) -> Observer:
        return object.__new__((cls is Observer and kind) or cls)

    def __init__(self, hook: Hook) -> None:
        """Errors: `ValueError` for a stage or phase that is no word of the vocabulary."""
        self.hook = hook
        self.function: Any = None
        self.on = True
        self.per_item = hook.per_item
        # Kept apart from the hook: a call of the job finds our code cold in every cache, so each
        # function and object on its way counts.
        self._before = hook.before
        self._after = hook.after
        self._stage_decides = callable(hook.stage)
        self._stage = _NO_SPAN if callable(hook.stage) else stage_code(hook.stage)
        self._phase = phase_code(hook.phase)
        step = self._stage == _STEP
        self._name = STEP_SPAN if step else hook.name or split_target(hook.target)[1]
        self._reads = bool(hook.before or hook.after or callable(hook.stage) or step)
        self._times, self._untimed = 1, 1  # what the first call imports is no cost of each
        self.depth = 0  # calls that are running, in all threads
        self.room = ROOM
        self.deep = False

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process is hooked if that is traced and was asked for the same hook,
        else passes on. `eval`: rltrace may not be importable there. Readers stay behind."""
        if callable(self.hook.stage) or self.hook.before or self.hook.after:
            return type(None), ()
        return eval, (_REVIVE.format(self.hook.target, self.hook.stage_word),)

    @property
    def is_plain(self) -> bool:
        """Whether a call is only its span, which the replacement ends by itself."""
        return not (self._reads or self.delays)

    def begin(self, args: tuple[Any, ...], kwargs: Any) -> Any:
        recorder = recording._active
        if recorder is None or not self.on:
            return None
        try:
            if not self._reads:
                if self._stage == _NO_SPAN:
                    return None
                return recorder.begin(recorder.name(self._name), self._stage, self._phase)
            if self._untimed > 0:  # two threads may take it below
                self._untimed -= 1
            else:
                return self._timed(recorder, Observer.begin, args, kwargs)
            call = Call(self.function, args, kwargs, recorder)
            stage = self._stage
            if self._stage_decides:
                try:
                    stage = stage_code(self.hook.stage(call))  # type: ignore[misc, operator]
                except Exception as error:
                    if from_outside(error):
                        raise
                    self._report("stage", error)
            call.stage = stage
            if stage == _STEP:
                recorder.step = self._number(call)
            call.start_ns = monotonic_ns()
            if stage != _NO_SPAN:
                name = recorder.name(self._name)
                call.span = recorder.begin(name, stage, self._phase)
        except Exception as error:
            if from_outside(error):
                raise
            recorder.failed(error)
            return None
        try:
            if self._before is not None:
                self._before(call)
        except Exception as error:
            if from_outside(error):
                self.drop(call)  # the call does not come to pass
                raise
            self._report("before", error)
        if self._after is None:
            call.args, call.kwargs = (), {}  # what a call was given is not kept for nobody
        return call

    def end(self, call: Any, result: Any) -> None:
        if call is None:
            return
        if type(call) is not Call:
            if type(call) is _TimedCall:
                call.__class__ = Call  # type: ignore[assignment]
                self._timed(call.recorder, Observer.end, call, result)
            else:
                call.end()
            return
        call.end_ns = monotonic_ns()
        # A step that was cut short is no step to measure: its span stays open, as after a kill.
        if call.exception is not None and call.stage == _STEP:
            call.recorder.cut_short(STEP_FAILED, call.recorder.step, call.exception)
        elif call.span is not None:
            call.span.end()
        call.result = result
        if self._after is not None:
            try:
                self._after(call)
            except Exception as error:
                if from_outside(error):
                    raise
                self._report("after", error)

    def _timed(self, recorder: recording.Recorder, work: Any, *given: Any) -> Any:
        """Begins or ends a call, and counts what that costs the job, for those untimed too: for so
        many more from call to call, up to a limit."""
        thread_time_ns()  # the clock, too, is cold: what its first reading takes is no call's cost
        began_ns = thread_time_ns()
        if work is Observer.begin:  # and not one of a subclass, which has called this one
            self._times = self._untimed = min(self._times + 1, _ONE_IN)
        call = work(self, *given)
        if type(call) is Call:
            call.__class__ = _TimedCall
        _count(recorder, self._times * (thread_time_ns() - began_ns))
        return call

    def fail(self, call: Any, error: BaseException) -> None:
        if isinstance(call, Call):
            call.exception = error
        self.end(call, None)
        if isinstance(call, Call):
            call.exception = None  # else the frames it holds would live as long as the call

    def watched(self, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call's result, with its iterator, if any, replaced by one whose items are calls."""
        if self.on and recording._active is not None:
            with contained(tell=partial(self._report, "stream")):
                return watch_items(result, self.hook.stream, self, args, kwargs)
        return result

    def cut(self, call: Any) -> None:
        """Something has struck in `end`: the call is over all the same."""
        span = getattr(call, "span", call)
        if span is not None and span._batch.columns[1][span._slot] == -1:
            span.end()

    def unended(self, error: BaseException) -> None:
        """A span's end could not be stored: its batch is another process's, or is not mapped."""
        if from_outside(error):
            raise error

    def tell_compiled(self) -> None:
        if self.on:
            recording.not_compiled(self.hook.target or self._name)

    def more_room(self) -> None:
        """Calls are nested deeply: the recursion limit grows by our frames, so the job's fit."""
        more = _MORE_ROOM if self.deep else _MORE_ROOM + ROOM + _OWN_FRAMES
        self.room += _MORE_ROOM
        self.deep = True
        _move_limit(more)

    def less_room(self) -> None:
        more, self.room, self.deep = self.room + _OWN_FRAMES, ROOM, False
        _move_limit(-more)

    def drop(self, call: Any) -> None:
        """There was nothing to record: the producer had no further item."""
        span = getattr(call, "span", call)
        if span is not None:
            span.discard()

    def _number(self, call: Call) -> int:
        if self.hook.step is not None:
            with contained(tell=partial(self._report, "step")):
                return int(self.hook.step(call))
        return call.recorder.step + 1

    def _report(self, which: str, error: Exception) -> None:
        said, stage = f"{which}: {describe(error)}", self.hook.stage_word
        with contained(tell=recording.failed):
            recording.problem("hook-failed", target=self.hook.target, stage=stage, detail=said)


_limit = 0
"""The recursion limit that we set; another one is the job's, which stays."""


def _move_limit(frames: int) -> None:
    """Moves the recursion limit by frames of ours that are in use, or no more."""
    global _limit
    now = sys.getrecursionlimit()
    if frames > 0 or now == _limit:
        with contained(RecursionError):  # another function is deeper than that
            sys.setrecursionlimit(now + frames)
            _limit = now + frames


def watch_items(
    result: Any, place: int | None, observer: Observer, args: tuple[Any, ...], kwargs: Any
) -> Any:
    """`result`, with the iterator at `place` (-1: itself) replaced by a generator of its items: how
    long one takes, and its size, shows only while somebody consumes it."""
    if place is None or place < 0:
        return _items(result, observer, args, kwargs) if _is_iterator(result) else result
    if type(result) is not tuple or len(result) <= place or not _is_iterator(result[place]):
        return result
    items = _items(result[place], observer, args, kwargs)
    return (*result[:place], items, *result[place + 1 :])


def _is_iterator(value: Any) -> bool:
    """Only what can be gone over once: a list or a view may be asked for its length."""
    return hasattr(type(value), "__next__") and hasattr(type(value), "__iter__")


def _items(
    iterator: Iterator[Any], observer: Observer, args: tuple[Any, ...], kwargs: Any
) -> Iterator[Any]:
    try:
        while True:
            call = observer.begin(args, kwargs)
            try:
                item = next(iterator)
            except StopIteration:
                observer.drop(call)
                return
            except BaseException as error:
                observer.fail(call, error)
                raise
            observer.end(call, item)
            yield item
    finally:
        close = getattr(iterator, "close", None)
        if close is not None:
            close()
