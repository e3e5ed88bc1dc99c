"""`rltrace wrap --probe`: from what was typed to the design of a probe."""

from __future__ import annotations

import random
from itertools import takewhile

from rltrace.hooks.doses import DEFAULT_BUDGET, STAGES, Design
from rltrace.trace.errors import WrongUsage

ALL = "all"
"""What `--probe` stands for where no stage is named."""


def with_stages_joined(words: list[str]) -> list[str]:
    """The words of a command line, with the stages after `--probe` as one word (`rollout,train`):
    an option takes one value. The command that is to be wrapped is left as it is."""
    for place, word in enumerate(words):
        if word == "--" or not (word.startswith("-") or words[place - 1].startswith("--")):
            break  # here the command begins
        if word == "--probe":
            after = words[place + 1 :]
            stages = list(takewhile(_is_stages, after))
            if stages:
                return [*words[: place + 1], ",".join(stages), *after[len(stages) :]]
    return words


def _is_stages(word: str) -> bool:
    return all(part in STAGES for part in word.split(","))


def design_of(stages: str, budget: str | None, seed: int | None) -> Design:
    """The design for stages such as `"rollout,train"`. Errors: `RltraceError` for a stage that
    cannot be delayed or a budget out of range."""
    named = [stage for stage in stages.split(",") if stage and stage != ALL]
    drawn = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    try:
        return Design(named, DEFAULT_BUDGET if budget is None else _share(budget), drawn)
    except ValueError as error:
        raise WrongUsage(f"--probe: {error}") from None


def _share(text: str) -> float:
    number = text.strip()
    try:
        return float(number[:-1]) / 100 if number.endswith("%") else float(number)
    except ValueError:
        raise ValueError(f"a budget is a share such as 5% or 0.05, not {text!r}") from None
