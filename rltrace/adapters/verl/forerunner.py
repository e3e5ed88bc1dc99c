"""Readers for V1's forerunner, verl 0.8's `python -m verl.trainer.main_ppo_sync`.

Its trainer and its replay buffer are defined in the program itself, so they come to the process
that runs them by value, which no import hook sees. What they call of verl's modules tells the same.
"""

from __future__ import annotations

from typing import Any

from rltrace.adapters.verl import controller, fates
from rltrace.hooks.hook import Call
from rltrace.trace.vocabulary import Fate

_step: list[Any] = []
"""The span of the step in progress."""


def timer_named(call: Call) -> None:
    controller.timer_named(call)
    if call.argument("name") == "step":
        _step[:] = [call.span]


def batch_given_out(call: Call) -> None:
    """`assign_non_tensor_data(prompts, "global_steps", number)`, within the step: its number."""
    if call.argument("key") != "global_steps":
        return
    call.recorder.step = number = int(call.argument("val"))
    for span in _step:
        span.set(step=number)


def batch_padded(call: Call) -> None:
    """`upsample_batch_to_divisible_size(batch, ...)`: the batch that this step trains on, before
    rows are added that count for nothing. The tag is the step that asked for the trajectory, which
    a synchronous trainer trains on in the same step."""
    batch = call.argument("batch")
    for key, tag in zip(batch.keys, batch.tags, strict=True):
        step = tag["global_steps"]
        fates.used(call, key, step, step - 1, Fate.TRAINED)
