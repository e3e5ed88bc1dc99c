"""Objects shaped like those of OpenRLHF that its adapter reads; `tests/openrlhf` has its own."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from rltrace.adapters.openrlhf import OpenRLHF
from tests.adapters.conftest import hooked_as

hooked = partial(hooked_as, OpenRLHF)


@dataclass
class Answer:
    """What vLLM does with one request."""

    tokens: int
    reason: str = "stop"
    queued_s: float = 0.0
    stamped: bool = True
    updates: tuple[str, ...] = ()  # tensors that arrive meanwhile, the last one of them at the end


@hooked("RolloutRayActor")
class Engine:
    """A rollout actor: executors ask it, weights come to it."""

    def __init__(self, executor: Any = None, answers: tuple[Answer, ...] = ()) -> None:
        self.executor = executor
        self.answers = list(answers)

    async def generate(self, prompt_token_ids: list[int], sampling_params: Any = None) -> Any:
        answer = self.answers.pop(0)
        metrics = SimpleNamespace(queued_ts=time.monotonic())
        await asyncio.sleep(answer.queued_s)
        metrics.scheduled_ts = metrics.first_token_ts = time.monotonic()
        for name in answer.updates:
            await self.update_weight(name, empty_cache=name == answer.updates[-1])
        metrics.last_token_ts = time.monotonic()
        tokens = [0] * answer.tokens
        made = SimpleNamespace(token_ids=tokens, finish_reason=answer.reason, logprobs=None)
        return SimpleNamespace(outputs=[made], metrics=metrics if answer.stamped else None)

    async def update_weight(
        self,
        name: str,
        dtype: Any = torch.bfloat16,
        shape: Any = (2, 3),
        empty_cache: bool = False,
        ipc_handles: Any = None,
    ) -> None:
        if name == "broken":
            raise OSError(name)

    async def generate_responses(self, prompt: str, num_samples: int = 1) -> Any:
        samples = [self.executor.execute(prompt, llm_engine=self) for _ in range(num_samples)]
        return await asyncio.gather(*samples)


def generate(executor: Any, *answers: Answer, samples: int = 1, prompt: str = "p") -> list[Any]:
    """The responses of one prompt."""
    actor = Engine(executor, answers)
    return list(asyncio.run(actor.generate_responses(prompt, num_samples=samples)))
