"""What happens at a hooked call: a span is begun and ended, and the hook's readers are run.

Nothing here raises into the job. What goes wrong is written to the run's problems, once per hook.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from rltrace.hooks import recorder as recording
from rltrace.hooks.hook import Call, Hook, phase_code, stage_code
from rltrace.hooks.streams import watch_items
from rltrace.hooks.telling import describe
from rltrace.trace.vocabulary import STEP_SPAN, Stage

if TYPE_CHECKING:
    from rltrace.hooks.recorder import Recorder

_NO_SPAN = -1

_REVIVE = (
    "(lambda observer: observer and observer({!r}, {!r}))"
    "(getattr(__import__('sys').modules.get('rltrace.hooks.boot'), 'observer', None))"
)


kind: type[Observer] | None = None
"""What `Observer(hook)` makes, if not an `Observer`; a probe sets its own."""


class Observer:
    """Records the calls of one hooked function. `begin` gives what `end`, `fail` (the call raised)
    or `drop` (there was no call after all) are given back; `on` is False once unpatched."""

    __slots__ = (
        "_after",
        "_before",
        "_name",
        "_phase",
        "_reads",
        "_stage",
        "_stage_decides",
        "function",
        "hook",
        "on",
        "per_item",
    )

    delays = False
    """Whether calls are delayed: `delay` is awaited where a coroutine has come to its end."""

    def __new__(cls, hook: Hook) -> Observer:
        """An observer, or what takes its place."""
        return object.__new__(kind or cls)

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
        step = self._stage == Stage.STEP
        self._name = STEP_SPAN if step else hook.span_name
        self._reads = bool(hook.before or hook.after or callable(hook.stage) or step)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of a hooked function in another process is hooked if that process is traced and
        was asked for the same hook, and passes calls on otherwise. `eval`, since rltrace may not be
        importable there. Readers stay behind: an adapter hooks what it knows in each process."""
        if callable(self.hook.stage) or self.hook.before or self.hook.after:
            return type(None), ()
        return eval, (_REVIVE.format(self.hook.target, self.hook.stage_word),)

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call begins."""
        recorder = recording._active
        if recorder is None or not self.on:
            return None
        try:
            if not self._reads:
                if self._stage == _NO_SPAN:
                    return None
                return recorder.begin(recorder.name(self._name), self._stage, self._phase)
            call = Call(self.function, args, kwargs, recorder)
            stage = self._stage_of(call) if self._stage_decides else self._stage
            call.stage = stage
            if stage == Stage.STEP:
                recorder.step = self._number(call)
            call.start_ns = monotonic_ns()
            if stage != _NO_SPAN:
                name = recorder.name(self._name)
                call.span = recorder.begin(name, stage, self._phase)
        except Exception as error:
            _give_up(recorder, error)
            return None
        if self._before is not None:
            try:
                self._before(call)
            except Exception as error:
                self._report(recorder, "before", error)
        return call

    def end(self, call: Any, result: Any) -> None:
        """The call has returned `result`."""
        if call is None:
            return
        if type(call) is not Call:
            call.end()
            return
        call.end_ns = monotonic_ns()
        # A step that was cut short is no step to measure: its span stays open, as after a kill.
        if call.exception is not None and call.stage == Stage.STEP:
            call.recorder.step_failed(call.recorder.step, call.exception)
        elif call.span is not None:
            call.span.end()
        call.result = result
        if self._after is not None:
            try:
                self._after(call)
            except Exception as error:
                self._report(call.recorder, "after", error)

    def fail(self, call: Any, error: BaseException) -> None:
        """The call has raised."""
        if type(call) is Call:
            call.exception = error
        self.end(call, None)
        if type(call) is Call:
            call.exception = None  # else the frames it holds would live as long as the call

    def watched(self, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the call has returned, with its iterator replaced by one whose items are calls. A
        result without one (a list, a view, another shape) stays what it is."""
        if self.on and recording._active is not None:
            try:
                return watch_items(result, self.hook.stream, self, args, kwargs)
            except Exception as error:
                self._report(recording._active, "stream", error)
        return result

    def drop(self, call: Any) -> None:
        """There was nothing to record: the producer had no further item."""
        if call is not None:
            span = call.span if type(call) is Call else call
            if span is not None:
                span.discard()

    def _stage_of(self, call: Call) -> int:
        try:
            return stage_code(self.hook.stage(call))  # type: ignore[misc, operator]
        except Exception as error:
            self._report(call.recorder, "stage", error)
            return _NO_SPAN

    def _number(self, call: Call) -> int:
        if self.hook.step is not None:
            try:
                return int(self.hook.step(call))
            except Exception as error:
                self._report(call.recorder, "step", error)
        return call.recorder.step + 1

    def _report(self, recorder: Recorder, which: str, error: Exception) -> None:
        try:
            recorder.problem(
                "hook-failed",
                target=self.hook.target,
                stage=self.hook.stage_word,
                detail=f"{which}: {describe(error)}",
            )
        except Exception as second:
            _give_up(recorder, second)


def _give_up(recorder: Recorder, error: Exception) -> None:
    try:
        recorder.failed(error)
    except Exception:
        recording.stop()
