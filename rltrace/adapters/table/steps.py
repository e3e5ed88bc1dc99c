"""Learner steps that one call begins and another ends.

Or they go on until the next begins. Such calls may say the step's number late."""

from __future__ import annotations

from time import monotonic_ns
from typing import Any

from rltrace.hooks import span_api
from rltrace.hooks.hook import Call
from rltrace.hooks.recorder import Recorder
from rltrace.trace.run_dir import STEP_FAILED


def step_begins(number: int) -> Any:
    """Ends the step that is open, if any, and begins the next; its span."""
    return span_api.step(number)


def step_is(recorder: Recorder, number: int) -> None:
    """The number of the step that is open, or, where none is, of what comes."""
    recorder.step = number
    if recorder.open_step is not None:
        recorder.open_step.set(step=number)


def step_ends(recorder: Recorder) -> None:
    step, recorder.open_step = recorder.open_step, None
    if step is not None:
        step.end()


class Loop:
    """A loop whose steps last from one request for a batch to the next."""

    running = False
    trained = False  # in the open step
    last_ns = -1  # when the open step last did something

    def begins(self) -> None:
        self.running, self.trained = True, False

    def wants_batch(self, recorder: Recorder, number: int) -> None:
        """With the batch the step of this number begins, unless the last one got none."""
        step = recorder.open_step
        if self.running and (step is None or self.trained):
            now_ns = monotonic_ns()
            if step is not None:
                step.set(end_ns=now_ns)
                recorder.open_step = None
            step_begins(number).set(start_ns=now_ns)
        self.trained = False

    def step_did_more(self, call: Call) -> None:
        """The open step lasts at least until here."""
        self.last_ns = call.end_ns

    def ends(self, call: Call) -> None:
        """A step that found no batch was none; one that an exception cut short stays open."""
        recorder = call.recorder
        step, recorder.open_step = recorder.open_step, None
        number, recorder.step = recorder.step, -1
        self.running = False
        if step is not None and call.exception is not None:
            recorder.cut_short(STEP_FAILED, number, call.exception)
        elif step is not None and self.trained:
            step.set(end_ns=self.last_ns)
        elif step is not None:
            step.discard()
