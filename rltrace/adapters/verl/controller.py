"""Readers in the trainer's driver: its timers, its metrics, where it goes on from."""

from __future__ import annotations

import time
from typing import Any

from rltrace.adapters.verl.tables import LABELS, SEEN_BY_CALL, SEEN_ELSEWHERE
from rltrace.hooks.hook import Call


def timer_stage(call: Call) -> str | None:
    """The stage that a timer is in the process that runs it (`SEEN_ELSEWHERE` says why `wait`)."""
    label = call.argument("name")
    if label in SEEN_BY_CALL:
        return None
    stage = LABELS.get(label, "other")
    return "wait" if stage in SEEN_ELSEWHERE and label != "reshard" else stage


def timer_named(call: Call) -> None:
    """The span of a timer is named as verl names it."""
    if call.span is not None:
        call.span.set(name=call.recorder.name(call.argument("name")))


def logged(call: Call) -> None:
    """The figures of a step that verl logs, under its own names, NaN among them: a loss may be.
    Numbers of the host only, since reading one off a device would have the job wait for it."""
    recorder, now = call.recorder, time.monotonic_ns()
    for name, value in (call.argument("data") or {}).items():
        if _is_number(value):
            recorder.append("samples", time_ns=now, counter=recorder.name(name), value=float(value))


def _is_number(value: Any) -> bool:
    if type(value).__module__ == "numpy":
        return value.shape == () and value.dtype.kind in "iuf"
    return isinstance(value, float | int) and not isinstance(value, bool)


def resumed(call: Call) -> None:
    """The checkpoint, if any, is loaded: steps count on from here."""
    if call.exception is None:
        call.recorder.step = call.self.global_steps
