"""Readers in the trainer's driver: its timers, where it goes on from.

The trainer and the replay buffer of V1's forerunner, verl 0.8's `python -m
verl.trainer.main_ppo_sync`, are defined in the program itself, so they come to the process that
runs them by value, which no import hook sees. What they call of verl's modules tells the same: here
(`batch_given_out`) and in `fates.batch_padded`.
"""

from __future__ import annotations

from typing import Any

from rltrace.adapters.verl.tables import LABELS, SEEN_BY_CALL, SEEN_ELSEWHERE
from rltrace.hooks.hook import Call

_step: list[Any] = []
"""The span of the step in progress."""


def timer_stage(call: Call) -> str | None:
    """The stage that a timer is in the process that runs it (`SEEN_ELSEWHERE` says why `wait`)."""
    label = call.argument("name")
    if label in SEEN_BY_CALL:
        return None
    stage = LABELS.get(label, "other")
    return "wait" if stage in SEEN_ELSEWHERE and label != "reshard" else stage


def timer_named(call: Call) -> None:
    """The span of a timer is named as verl names it."""
    name = call.argument("name")
    if call.span is not None:
        call.span.set(name=call.recorder.name(name))
    if name == "step":
        _step[:] = [call.span]


def batch_given_out(call: Call) -> None:
    """`assign_non_tensor_data(prompts, "global_steps", number)`, within the step: its number."""
    if call.argument("key") != "global_steps":
        return
    call.recorder.step = number = int(call.argument("val"))
    for span in _step:
        span.set(step=number)


def resumed(call: Call) -> None:
    """The checkpoint, if any, is loaded: steps count on from here."""
    if call.exception is None:
        call.recorder.step = call.self.global_steps
