"""Reward functions of known cost, whose value says which sample they judged. They are in a module
of their own, since the asynchronous trainer pickles them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable
from typing import Any
from zlib import crc32

from hangs import may_hang
from job_stamps import stamp

SECONDS = float(os.environ.get("TRL_JOB_REWARD_SECONDS", "0.02"))


def content(ids: Iterable[int]) -> float:
    """A number that stands for a sample's tokens, in [0, 1); float32 has room for it."""
    return (crc32(bytes(str(list(map(int, ids))), "ascii")) >> 8) / (1 << 24)


def identity(completions: list[Any], completion_ids: list[list[int]], **_: Any) -> list[float]:
    """A number of the tokens of each sample."""
    start_ns = time.time_ns()
    time.sleep(SECONDS)
    may_hang("reward")
    values = [content(ids) for ids in completion_ids]
    stamp("reward", start_ns, function="identity", values=values)
    return values


async def some(completion_ids: list[list[int]], **_: Any) -> list[float | None]:
    """A number for samples of an even length; to the others it does not apply."""
    start_ns = time.time_ns()
    await asyncio.sleep(SECONDS)
    values = [None if len(ids) % 2 else 0.5 * content(ids) for ids in completion_ids]
    stamp("reward", start_ns, function="some", values=values)
    return values


def fails(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """Judges one batch, and then no more."""
    if os.path.exists(f"{os.environ['JOB_STAMPS']}/failed-once"):
        raise ValueError("no verdict")
    open(f"{os.environ['JOB_STAMPS']}/failed-once", "w").close()
    return [content(ids) for ids in completion_ids]
