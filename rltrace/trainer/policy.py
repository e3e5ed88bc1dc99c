"""The policy that a run starts from: made once by the controller, handed to every role."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from rltrace.sync.flat import layout_of, pack, unpack
from rltrace.trainer.config import TrainerConfig
from rltrace.trainer.model import ModelShape, Transformer
from rltrace.trainer.task import task_of
from rltrace.trainer.warm_start import warm_start

Weights = NDArray[np.uint8]
"""All weights of a policy as one flat buffer."""


def policy_of(config: TrainerConfig, weights: Weights | None = None) -> Transformer:
    """A policy of the run's shape, with the given weights or fresh ones. Roles compute on one
    thread each: they share the machine."""
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
