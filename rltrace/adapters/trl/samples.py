"""A sample as the trainer's process knows it."""

from __future__ import annotations

from typing import Any

from rltrace.hooks.hook import Call
from rltrace.hooks.identity import identify


class TrlSample:
    """-1 tokens are unknown. `masked`: TRL keeps it out of the loss, as it was cut off."""

    def __init__(self, trajectory: int, prompt_tokens: int = -1, tokens: int = -1) -> None:
        self.id = trajectory
        self.prompt_tokens = prompt_tokens
        self.tokens = tokens
        self.masked = False


def begin(call: Call, trajectory: str, group: str, prompt: object) -> tuple[TrlSample, Any]:
    sample = TrlSample(identify(trajectory))
    known = {"group": identify(group), "prompt": identify(str(prompt))}
    version = int(call.self.state.global_step)
    return sample, call.row("trajectories", trajectory=sample.id, first_version=version, **known)


def ends_of_text(owner: Any) -> tuple[set[int], int | None]:
    """The tokens that end a sample (1.10 knows several), and the one that fills it up."""
    names = ("_tokenizer", "processing_class", "tokenizer")
    found = (getattr(owner, name, None) for name in names)
    tokenizer: Any = next((one for one in found if one is not None), None)
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # of a processor
    ends = getattr(owner, "eos_token_ids", None) or [tokenizer.eos_token_id]
    return set(ends), getattr(tokenizer, "pad_token_id", None)


def set_row(row: Any, **columns: int) -> None:
    if row is not None:
        row.set(**columns)
