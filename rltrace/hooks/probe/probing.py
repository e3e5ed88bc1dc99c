"""Delays stages by known doses at random steps (`wrap --probe`).

A run that is not probed imports nothing of this. `start` puts what delays in the place of what only
records: hooks become `ProbingObserver`s, and spans of the API `DosedSpan`s. A dose that cannot be
given is written to the run's problems, and the job goes on without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from rltrace.hooks import recorder as recording
from rltrace.hooks import span_api
from rltrace.hooks import spans as _spans
from rltrace.hooks.hook import Call, Hook, stage_code
from rltrace.hooks.patch import call_observer, span_decorator
from rltrace.hooks.patch.call_observer import Observer
from rltrace.hooks.probe.delays import Delays, Design, Stay
from rltrace.hooks.span_api import LoopSpan
from rltrace.trace.job_exceptions import contained, from_outside
from rltrace.trace.segment import row_at
from rltrace.trace.vocabulary import Stage, word

_ITERATION = 0x20 | 0x200  # code flags of generators and async generators

_delays: Delays | None = None


def start(run_dir: str, design: str) -> None:
    """Probes this process from now on; `design` is a `Design.text()`."""
    global _delays

    def no_doses(error: Exception) -> None:
        _not_probed("this process", f"it gets no doses: {error}")

    with contained(OSError, ValueError, tell=no_doses):
        _delays = Delays(Design.of(design), run_dir)
        call_observer.kind = ProbingObserver
        span_api.begin_span = _begin_dosed  # type: ignore[assignment]
        span_api.on_step = _delays.publish
        span_decorator.dosed = dosed


class _Dosed(NamedTuple):
    """A call under way: what the observer keeps of it, and its stay."""

    call: Any
    stay: Stay


class ProbingObserver(Observer):
    __slots__ = ("_delayed", "_iterates")

    delays = True

    def __init__(self, hook: Hook) -> None:
        super().__init__(hook)
        self._delayed = self._stage if hook.dose is None else stage_code(hook.dose or None)
        self._iterates: bool | None = None

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = super().begin(args, kwargs)
        delays = _delays
        if delays is None or not self.on or recording._active is None:
            return call
        try:
            if isinstance(call, Call) and call.stage == Stage.STEP:
                delays.publish(call.recorder.step)
                return call
            stage = self._delayed
            if self._stage_decides and self.hook.dose is None and call is not None:
                stage = call.stage
            if stage == -1 or self._whole():
                return call
            return _Dosed(call, delays.enter(stage))
        except Exception as error:
            if from_outside(error):
                raise
            recording.failed(error)
            return call

    def end(self, call: Any, result: Any) -> None:
        if type(call) is _Dosed and _delays is not None:
            _delays.sleep(call.stay)
        super().end(_left(call), result)

    async def delay(self, call: Any) -> None:
        if type(call) is _Dosed and _delays is not None:
            await _delays.sleep_aside(call.stay)

    def fail(self, call: Any, error: BaseException) -> None:
        super().fail(_left(call), error)

    def cut(self, call: Any) -> None:
        super().cut(_left(call))

    def drop(self, call: Any) -> None:
        super().drop(_left(call))

    def _whole(self) -> bool:
        """Whether a call is a whole iteration: whoever goes over the items has a part in it."""
        if self._iterates is None:
            flags = getattr(getattr(self.function, "__code__", None), "co_flags", 0)
            self._iterates = bool(flags & _ITERATION) and not self.per_item
            if self._iterates:
                _not_probed(self.hook.target, "a whole iteration cannot be delayed")
        return self._iterates


def _left(call: Any) -> Any:
    """What the observer keeps of a call that gets no dose."""
    if type(call) is not _Dosed:
        return call
    if _delays is not None:
        _delays.leave(call.stay)
    return call.call


class DosedSpan(LoopSpan):
    """A span of the API that is delayed at its end: `with` sleeps, `async with` lets other tasks go
    on. A `with` in a coroutine is not delayed: nobody knows whether it waits in there."""

    __slots__ = ("_holds_thread", "_stay")

    _stay: Stay
    _holds_thread: bool

    def end(self) -> None:
        with contained(tell=recording.failed):
            if _delays is not None and self._stay.is_open:
                in_loop = _spans.running_loop is not None and _spans.running_loop() is not None
                if self._holds_thread or not in_loop:
                    _delays.sleep(self._stay)
                elif _delays.has_dose(self._stay):
                    what = "inside of a coroutine only `async with rltrace.span(...)` is delayed"
                    _not_probed(word(Stage(self._stay.stage)), what)
                _delays.leave(self._stay)
        super().end()

    def __exit__(self, kind: object, value: object, traceback: object) -> None:
        if kind is not None:
            self._leave()
        self.end()

    async def __aexit__(self, *error: object) -> None:
        if error and error[0] is not None:
            self._leave()
        if _delays is not None:
            await _delays.sleep_aside(self._stay)
        super().end()

    def discard(self) -> None:
        self._leave()
        super().discard()

    def _leave(self) -> None:
        if _delays is not None:
            _delays.leave(self._stay)


def dosed(span: Any, holds_thread: bool = False) -> Any:
    """A span that has just begun, as a delayed one; `holds_thread`: of a function that is no
    coroutine function, which lets no other task go on anyway."""
    with contained(tell=recording.failed):
        if _delays is not None and type(span) in (LoopSpan, _spans.Span):
            again: DosedSpan = row_at(DosedSpan, span._batch, span._slot)
            again._holds_thread = holds_thread
            again._stay = _delays.enter(*_spans.stored(span, "stage"))
            return again
    return span


_begin: Callable[..., LoopSpan] = span_api.begin_span


def _begin_dosed(*facts: Any) -> LoopSpan:
    span: LoopSpan = dosed(_begin(*facts))
    return span


def _not_probed(target: str, detail: str) -> None:
    recording.problem("not-probed", target=target, detail=detail)
