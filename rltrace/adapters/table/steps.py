"""Learner steps where no one function is one: they begin at one call and end at another, or go on
until the next begins. What such calls say late, the step's number, is set when it is known."""

from __future__ import annotations

from typing import Any

from rltrace.hooks import span_api
from rltrace.hooks.recorder import Recorder


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
