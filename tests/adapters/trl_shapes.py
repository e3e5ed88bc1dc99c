"""Things of TRL's shape, for readers that are tried without it."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from rltrace.adapters.trl import TRL
from tests.adapters.conftest import hooked_as

hooked = partial(hooked_as, TRL)
ASYNC = "trl.experimental.async_grpo"

END = 9
"""The token after which a sample is complete."""


def message(role: str) -> dict[str, str]:
    return {"role": role, "content": ""}


class Array(list[int]):
    """As NumPy's: with a sum, the first of the largest, and its bytes."""

    def sum(self) -> int:
        return sum(self)

    def argmax(self) -> int:
        return self.index(max(self))

    def tobytes(self) -> bytes:
        return b"".join(number.to_bytes(8, "little") for number in self)


class Taken:
    """A sample as TRL pickles it: fields and no room for others."""

    __slots__ = ("completion", "completion_mask", "input_ids", "metrics", "model_version")

    def __init__(
        self, ids: list[int], mask: list[int], version: int = 1, completion: Any = None, **of: float
    ) -> None:
        self.input_ids, self.completion_mask, self.model_version = ids, mask, version
        self.completion = completion
        self.metrics = {f"rewards/{name}": value for name, value in of.items()}


@hooked(f"{ASYNC}.async_rollout_worker:_AsyncRolloutLoop")
class Loop:
    """A rollout process: conversations whose verdicts come a group at a time."""

    model_version = 1
    max_tokens = 4
    eos_token_ids = (END,)
    reward_func_names = ("one",)
    reward_funcs = (len,)

    async def _generate_one(self, prompt: Any, turns: list[list[int]]) -> Any:
        for ids in turns:
            await self._generate_one_turn(ids)
            self.model_version += 1
        return ([message("assistant")], [], None)

    async def _generate_one_turn(self, ids: list[int]) -> Any:
        await asyncio.sleep(0)
        return ids, [0.0] * len(ids)

    async def _score_group(self, samples: list[Taken]) -> list[Taken]:
        return samples
