"""Draws that depend on the prompt, the version and how often that prompt came, and nothing else.

So two runs of the same job draw the same answers, whatever the order in which requests arrive.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import torch


class Sampler:
    """Seeds of one server."""

    def __init__(self) -> None:
        self._version: Any = None
        self._seen: Counter[tuple[int, ...]] = Counter()

    def generator(self, prompt: list[int], version: Any) -> torch.Generator:
        """The source of a new request's draws."""
        if version != self._version:
            self._version = version
            self._seen.clear()
        key = tuple(prompt)
        self._seen[key] += 1
        digest = hashlib.sha256(repr((key, self._seen[key], version)).encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def draw(logits: torch.Tensor, settings: dict[str, Any], source: torch.Generator) -> int:
    """The next token, from one row of logits; temperature 0 takes the likeliest."""
    temperature = float(settings.get("temperature", 1.0) or 0.0)
    if not temperature:
        return int(logits.argmax())
    return int(torch.multinomial((logits / temperature).softmax(-1), 1, generator=source))
