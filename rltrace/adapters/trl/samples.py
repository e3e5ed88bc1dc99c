"""A sample as the trainer's process knows it, from its generation to its last use."""

from __future__ import annotations

from typing import Any

from rltrace.hooks.hook import Call
from rltrace.trace.vocabulary import Fate


class Sample:
    """A trajectory that may be trained on: its id, and its tokens (-1: unknown). `masked` says that
    TRL keeps it out of the loss because it was cut off."""

    __slots__ = ("id", "masked", "prompt_tokens", "tokens")

    def __init__(self, trajectory: int, prompt_tokens: int, tokens: int) -> None:
        self.id = trajectory
        self.prompt_tokens = prompt_tokens
        self.tokens = tokens
        self.masked = False


def used(call: Call, samples: Any, step: int, version: int) -> None:
    for sample in samples:
        call.recorder.append(
            "uses",
            time_ns=call.end_ns,
            trajectory=sample.id,
            step=step,
            version=version,
            fate=Fate.TRUNCATED if sample.masked else Fate.TRAINED,
            tokens=sample.tokens,
        )
