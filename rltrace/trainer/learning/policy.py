"""The policy that a run starts from, made once for every role."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from rltrace.sync.flat_buffer import pack, unpack
from rltrace.sync.memory.layout import layout_of
from rltrace.trainer.config import TrainerConfig
from rltrace.trainer.learning.grpo import Packed, Response
from rltrace.trainer.learning.model import ModelShape, Transformer, next_token_log_probs
from rltrace.trainer.task import Task, task_of

BATCH_PROMPTS = 64
LEARNING_RATE = 3e-3
Weights = NDArray[np.uint8]  # all of a policy's, as one flat buffer


def policy_of(config: TrainerConfig, weights: Weights | None = None) -> Transformer:
    """A policy with the given weights, or fresh ones. One thread: roles share the machine."""
    torch.set_num_threads(1)
    task = task_of(config)
    context = task.longest_prompt + config.max_response
    shape = ModelShape(task.vocabulary, context, config.width, config.layers, config.heads)
    policy = Transformer(shape, config.seed)
    if weights is not None:
        state = policy.state_dict()
        unpack(weights, layout_of(state), state)
    return policy


def initial_weights(config: TrainerConfig) -> Weights:
    """Version 0: random from the seed, then `warm_start` supervised updates."""
    policy = policy_of(config)
    if config.warm_start:
        warm_start(policy, task_of(config), config.warm_start, config.seed)
    state = policy.state_dict()
    return pack(state, layout_of(state))


def warm_start(model: Transformer, task: Task, updates: int, seed: int) -> None:
    """Supervised updates on right responses, in place. Same seed, same weights."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    for update in range(updates):
        prompts = task.prompts(BATCH_PROMPTS, f"warm start/{seed}/{update}")
        shown = [(prompt, *task.demonstration(prompt)) for prompt in prompts]
        batch = Packed.of([Response(p, np.array(t), np.array(own)) for p, t, own in shown])
        log_probs = next_token_log_probs(model(batch.tokens), batch.tokens)
        optimizer.zero_grad()
        torch.autograd.backward(-log_probs[batch.mask].mean())
        optimizer.step()
