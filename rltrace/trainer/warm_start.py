"""Supervised updates on right responses before RL: how often a fresh policy succeeds is chosen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from rltrace.trainer.grpo import Packed
from rltrace.trainer.model import Transformer, next_token_log_probs
from rltrace.trainer.task import Task

BATCH_PROMPTS = 64
LEARNING_RATE = 3e-3


@dataclass(frozen=True)
class Demonstration:
    """A right response to a prompt; a `grpo.Response`."""

    prompt: tuple[int, ...]
    tokens: NDArray[np.int64]
    generated: NDArray[np.bool_]


def warm_start(model: Transformer, task: Task, updates: int, seed: int) -> None:
    """Trains `model` in place, by cross-entropy on the tokens that the policy is to generate.

    Same seed, same weights.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    for update in range(updates):
        batch = Packed.of(
            [
                Demonstration(prompt, np.array(tokens), np.array(owned))
                for prompt in task.prompts(BATCH_PROMPTS, f"warm start/{seed}/{update}")
                for tokens, owned in [task.demonstration(prompt)]
            ]
        )
        log_probs = next_token_log_probs(model(batch.tokens), batch.tokens)
        optimizer.zero_grad()
        torch.autograd.backward(-log_probs[batch.mask].mean())
        optimizer.step()
