"""Tool calls of a multi-turn task, which take time and may fail."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence

from rltrace.trainer.config import TrainerConfig
from rltrace.trainer.task import task_of


class ToolFailed(Exception):
    """The environment broke down during a call; the sample cannot be completed."""


class Environment:
    """Answers tool calls after a latency drawn from a lognormal with the given mean and tail."""

    def __init__(self, config: TrainerConfig) -> None:
        self.config = config
        self.task = task_of(config)

    async def call(self, id: str, prompt: Sequence[int], response: Sequence[int]) -> list[int]:
        """The answer to a call, the same for an `id`. Errors: `ToolFailed`, at the given rate."""
        draw = random.Random(f"{self.config.seed}/{id}/{len(response)}")
        # A lognormal of mean m and coefficient of variation c: sigma² = ln(1 + c²), mu = -sigma²/2.
        sigma = math.sqrt(math.log1p(self.config.env_tail**2))
        latency = self.config.env_latency * math.exp(draw.gauss(-(sigma**2) / 2, sigma))
        if latency:
            await asyncio.sleep(latency)
        if draw.random() < self.config.env_failure_rate:
            raise ToolFailed(f"the environment of {id} failed")
        return self.task.tool(prompt, response) or []
