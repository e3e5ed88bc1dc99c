"""Objects shaped like those of verl that its adapter reads; `tests/verl` runs its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import rltrace
from rltrace.testing.inside.adapters import verl_rollout as rollout
from rltrace.testing.inside.hooks import Hook, Observer, wrap


def hooked(function: Any, stage: Any = None, **readers: Any) -> Any:
    """A function with a hook on it."""
    return wrap(function, Observer(Hook("verl:function", stage, **readers)))


def rows(run_path: Path, query: str) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = rltrace.open_run(run_path).sql(query).fetchall()
    return found


def answer(tokens: int, stop: str = "completed", **extra: Any) -> Any:
    """What a server gives back."""
    return SimpleNamespace(token_ids=[0] * tokens, stop_reason=stop, extra_fields=extra)


def output(tokens: int, score: float | None = None, tool_s: float = 0.0) -> Any:
    """What an agent loop gives back."""
    metrics = SimpleNamespace(num_preempted=-1, tool_calls=tool_s)
    return SimpleNamespace(
        prompt_ids=[0] * 5,
        response_ids=[0] * tokens,
        response_mask=[1] * tokens,
        response_logprobs=None,
        num_turns=2,
        metrics=metrics,
        reward_score=score,
    )


async def _acquire_server(self: Any) -> None:
    await asyncio.sleep(0.002)


async def _generate(self: Any, answered: Any) -> Any:
    await self.acquire_server()
    return answered


async def _run(self: Any, trajectory: dict[str, Any], **fields: Any) -> None:
    total = 0
    for answered in self.answers:
        total += len((await self.generate(answered)).token_ids)
    await self.compute_score([output(total, tool_s=0.5)], fields)


async def _compute_score(self: Any, outputs: list[Any], kwargs: dict[str, Any]) -> None:
    outputs[-1].reward_score = self.score


class Worker:
    """An agent loop worker whose agent loops ask a server some times and are then judged."""

    score = 1.5
    rollout_config = SimpleNamespace(response_length=10)
    acquire_server = hooked(_acquire_server, "other", after=rollout.acquired)
    generate = hooked(
        _generate, rollout.request_stage, before=rollout.asking, after=rollout.requested
    )
    run = hooked(_run, before=rollout.begins, after=rollout.ends)
    compute_score = hooked(_compute_score, before=rollout.judging, after=rollout.judged)

    def __init__(self, answers: Any) -> None:
        self.answers = answers


class Batch:
    """A `DataProto` as far as rows are concerned."""

    def __init__(self, uids: list[str]) -> None:
        self.non_tensor_batch = {"uid": uids}
        self.meta_info: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self.non_tensor_batch["uid"])
