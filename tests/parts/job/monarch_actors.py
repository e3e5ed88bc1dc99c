"""Actors of Monarch's, as an application has them: a generator, a verifier, a buffer, a trainer.
Nothing is generated or trained; what they say to rltrace is what a loop of one's own says."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import Any

from job_stamps import stamp
from monarch.actor import Actor, endpoint

import rltrace

PROMPT_TOKENS = 5


class Generator(Actor):
    """Generates with the version that it has; which may be another one at the end."""

    def __init__(self) -> None:
        self.version = 0
        self.made = 0
        self.lengths = random.Random(0)

    @endpoint
    async def generate(self) -> dict[str, Any]:
        sample = f"sample {self.made}"
        self.made += 1
        tokens, first = self.lengths.choice([4, 6, 40]), self.version
        with rltrace.trajectory(sample, version=first, prompt_tokens=PROMPT_TOKENS) as trajectory:
            await asyncio.sleep(0.005 * tokens)
            trajectory.finish("stop", response_tokens=tokens, version=self.version)
        stamp("made", sample=sample, tokens=tokens, first=first, last=self.version)
        return {"sample": sample, "tokens": tokens, "version": first}

    @endpoint
    async def load(self, version: int, weights: bytes) -> None:
        with rltrace.weight_update(version, role="sink", bytes=len(weights)):
            await asyncio.sleep(0.01)
            self.version = version
        stamp("loaded", version=version, bytes=len(weights))


class Verifier(Actor):
    @endpoint
    def judge(self, sample: str) -> float:
        """Half of the samples are right."""
        value = float(int(sample.split()[1]) % 2)
        rltrace.reward(sample, value, component="even")
        stamp("judged", sample=sample, value=value)
        return value


class Buffer(Actor):
    def __init__(self) -> None:
        self.waiting: deque[dict[str, Any]] = deque()

    @endpoint
    async def add(self, sample: dict[str, Any]) -> None:
        self.waiting.append(sample)

    @endpoint
    async def take(self, count: int) -> list[dict[str, Any]]:
        """The oldest ones, or none while there are too few: an actor does one thing at a time."""
        enough = len(self.waiting) >= count
        stamp("asked", enough=enough)
        return [self.waiting.popleft() for _ in range(count)] if enough else []


class Trainer(Actor):
    @endpoint
    def train(self, step: int, batch: list[dict[str, Any]]) -> bytes:
        with rltrace.step(step):
            for one in batch:
                rltrace.use(one["sample"], "trained", version=step, tokens=one["tokens"])
                told = {"sample": one["sample"], "tokens": one["tokens"]}
                stamp("trained", step=step, lag=step - one["version"], **told)
        return bytes(100_000 + step)
