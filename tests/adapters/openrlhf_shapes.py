"""Objects shaped like those of OpenRLHF that its adapter reads; `tests/openrlhf` has its own."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import rltrace
from rltrace.testing.inside.adapters import agents, engine
from rltrace.testing.inside.adapters import openrlhf_rollout as rollout
from rltrace.testing.inside.hooks import Hook, Observer, wrap


def hooked(function: Any, stage: Any = None, **readers: Any) -> Any:
    """A function with a hook on it."""
    return wrap(function, Observer(Hook("openrlhf:function", stage, **readers)))


def rows(run_path: Path, query: str) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = rltrace.open_run(run_path).sql(query).fetchall()
    return found


def problems(run_path: Path) -> list[str]:
    """What readers could not read."""
    return [problem["detail"] for problem in rltrace.open_run(run_path).problems]


class Tensor:
    """As much of a tensor of numbers as readers may look at."""

    device = SimpleNamespace(type="cpu")

    def __init__(self, *values: float) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, place: int) -> float:
        return self.values[place]

    def sum(self) -> float:
        return sum(self.values)


@dataclass
class Answer:
    """What vLLM does with one request."""

    tokens: int
    reason: str = "stop"
    queued_s: float = 0.0
    stamped: bool = True
    updates: tuple[str, ...] = ()  # tensors that arrive meanwhile, the last one of them at the end


class Engine:
    """A rollout actor: executors ask it, weights come to it."""

    def __init__(self, executor: Any = None, answers: tuple[Answer, ...] = ()) -> None:
        self.executor = executor
        self.answers = list(answers)

    async def _generate(self, prompt_token_ids: list[int], sampling_params: Any = None) -> Any:
        answer = self.answers.pop(0)
        queued = time.monotonic()
        await asyncio.sleep(answer.queued_s)
        scheduled = first = time.monotonic()
        for name in answer.updates:
            await self.update_weight(name, empty_cache=name == answer.updates[-1])
        stamps = (queued, scheduled, first, time.monotonic())
        names = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
        metrics = SimpleNamespace(**dict(zip(names, stamps, strict=True)))
        completion = SimpleNamespace(
            token_ids=[0] * answer.tokens, finish_reason=answer.reason, logprobs=None
        )
        return SimpleNamespace(outputs=[completion], metrics=metrics if answer.stamped else None)

    async def _update_weight(
        self, name: str, dtype: Any = None, shape: Any = (2, 3), empty_cache: bool = False
    ) -> None:
        if name == "broken":
            raise OSError(name)

    async def _generate_responses(self, prompt: str, num_samples: int = 1) -> Any:
        samples = [self.executor.execute(prompt, llm_engine=self) for _ in range(num_samples)]
        return await asyncio.gather(*samples)

    generate = hooked(_generate, "rollout", before=rollout.asking, after=rollout.requested)
    generate_responses = hooked(_generate_responses, before=agents.group_begins)

    async def update_weight(self, name: str, **given: Any) -> None:
        """One tensor of 6 elements of 2 bytes."""
        await self.load(name, dtype=SimpleNamespace(itemsize=2), **given)

    load = hooked(
        _update_weight,
        engine.tensor_stage,
        phase="load",
        before=engine.tensor_comes,
        after=engine.tensor_loaded,
    )
