"""The rollout role: generates samples, with the tool calls of multi-turn tasks, while weights and
aborts reach it."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import random
import time
from collections.abc import Sequence as Many

import numpy as np

from rltrace.sync.transports import PublishedVersion
from rltrace.trainer.config import TrainerConfig
from rltrace.trainer.learning.engine import Engine, Sequence
from rltrace.trainer.learning.policy import Weights, policy_of
from rltrace.trainer.task import Task, task_of
from rltrace.trainer.trajectory import Request, Trajectory
from rltrace.trainer.transport import subscriber_of


class ToolFailed(Exception):
    """The environment broke down during a call; the sample cannot be completed."""


class Environment:
    """Answers tool calls after a latency drawn from a lognormal with the given mean and tail."""

    def __init__(self, config: TrainerConfig) -> None:
        self.config = config
        self.task = task_of(config)

    async def call(self, id: str, prompt: Many[int], response: Many[int]) -> list[int]:
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


class RolloutWorker:
    def __init__(self, config: TrainerConfig, index: int, weights: Weights) -> None:
        self.config = config
        self.task = task_of(config)
        self.environment = Environment(config)
        self.subscriber = subscriber_of(config)
        limits = (config.max_running, config.max_response, self.task.call_token)
        paces = (config.timeout, config.decode_floor)
        self.engine = Engine(policy_of(config, weights), *limits, *paces)

    async def generate(self, requests: Many[Request]) -> list[Trajectory]:
        """A trajectory for each request, in their order; whatever happens, each one ends."""
        for request in requests:  # all at once: an abort may follow on the heels of this call
            self.engine.submit(request, str(self.config.seed))
        return list(await asyncio.gather(*map(self.episode, requests)))

    async def episode(self, request: Request) -> Trajectory:
        sequence = self.engine.open[request.id]
        await self.engine.extend(sequence)
        while not sequence.finish:
            await self.use_tool(sequence)
            if not sequence.finish:
                await self.engine.extend(sequence)
        return self.complete(sequence)

    def complete(self, sequence: Sequence) -> Trajectory:
        trajectory = self.engine.finish(sequence)
        return _from_text(trajectory, self.task) if self.config.retokenize else trajectory

    async def use_tool(self, sequence: Sequence) -> None:
        """Appends the answer to the call that the sequence has made, or says why it has none."""
        request = sequence.request
        called = time.monotonic()
        limit = None if sequence.deadline == float("inf") else sequence.deadline - called
        call = self.environment.call(request.id, request.prompt, sequence.tokens)
        sequence.call = asyncio.ensure_future(call)
        try:
            answer = await asyncio.wait_for(sequence.call, limit)
        except asyncio.CancelledError:
            if not sequence.finish:  # it was not an abort that ended the call
                raise
        except asyncio.TimeoutError:
            sequence.finish = sequence.finish or "timeout"
        except ToolFailed:
            sequence.finish = sequence.finish or "error"
        else:
            if len(sequence.tokens) + len(answer) < self.config.max_response:
                sequence.observe(answer)
            else:
                sequence.finish = sequence.finish or "length"
        sequence.env_seconds += time.monotonic() - called

    async def abort(self, ids: Many[str]) -> None:
        """Ends the named samples early; their `generate` returns them as far as they came."""
        self.engine.abort(ids)

    async def receive(self, manifest: PublishedVersion) -> int:
        """Takes over weights, beside running sequences or after them; returns the bytes read."""
        if manifest.version <= self.engine.version:
            return 0  # overtaken: nothing to wait for
        fetched = await asyncio.to_thread(self.subscriber.fetch, manifest)
        if not self.config.partial_rollout:
            await self.engine.drain()
        if manifest.version > self.engine.version:
            state = self.engine.model.state_dict()
            self.engine.renew(self.subscriber.load(fetched, manifest, state))
        return manifest.bytes


def _from_text(trajectory: Trajectory, task: Task) -> Trajectory:
    """What remains when only text is kept: tokens made anew turn by turn, no log-probs."""
    tokens: list[int] = []
    generated: list[bool] = []
    flips = np.flatnonzero(np.diff(trajectory.generated)) + 1
    marks = np.split(trajectory.generated, flips)
    for part, mark in zip(np.split(trajectory.tokens, flips), marks, strict=True):
        again = task.tokenize(task.text(part.tolist()))
        tokens += again
        generated += [bool(mark.any())] * len(again)
    return dataclasses.replace(
        trajectory,
        tokens=np.array(tokens, dtype=np.int64),
        generated=np.array(generated, dtype=np.bool_),
        log_probs=np.full(sum(generated), np.nan, dtype=np.float32),
        faithful=False,
    )
