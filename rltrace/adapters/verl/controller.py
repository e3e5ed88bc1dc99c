"""Readers in the trainer's driver: its timers, its metrics, where it goes on from."""

from __future__ import annotations

from rltrace.adapters.table.logged import record_figures
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
    """The figures of a step that verl logs, under its own names."""
    record_figures(call, call.argument("data") or {})


def resumed(call: Call) -> None:
    """The checkpoint, if any, is loaded: steps count on from here."""
    if call.exception is None:
        call.recorder.step = call.self.global_steps
