"""Stamps at the border between OpenRLHF's engine actor and vLLM, and slower tokens if asked for."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from typing import Any

from openrlhf_cpu.stamps import stamp


def engine(module: Any) -> None:
    """Every request with its tokens, and how many whole updates there were at either end of it."""
    vllm = module.AsyncLLM
    generate, call = vllm.generate, vllm.collective_rpc

    async def stamped(self: Any, *args: Any, **more: Any) -> AsyncIterator[Any]:
        start_ns, first, last = time.time_ns(), _updates(self), None
        async for last in generate(self, *args, **more):
            yield last
        tokens = len(last.outputs[0].token_ids)
        reason = last.outputs[0].finish_reason
        stamp("request", start_ns, tokens=tokens, finish=reason, first=first, last=_updates(self))

    async def counted(self: Any, method: Any, *args: Any, **more: Any) -> Any:
        start_ns = time.time_ns()
        result = await call(self, method, *args, **more)
        if method == "update_weight":
            name, dtype, shape, is_last = more["args"]
            if is_last:
                self.openrlhf_cpu_updates = _updates(self) + 1
            size = shape.numel() * dtype.itemsize
            stamp("update", start_ns, bytes=size, last=is_last, updates=_updates(self), name=name)
        return result

    vllm.generate, vllm.collective_rpc = stamped, counted


def _updates(vllm: Any) -> int:
    return getattr(vllm, "openrlhf_cpu_updates", 0)


def slower(module: Any) -> None:
    """A token takes longer, so that answers are under way when weights come."""
    seconds = float(os.environ.get("OPENRLHF_CPU_TOKEN_SECONDS", "0"))
    if not seconds:
        return
    execute = module.CPUWorker.execute_model

    def paced(self: Any, *args: Any, **more: Any) -> Any:
        time.sleep(seconds)
        return execute(self, *args, **more)

    module.CPUWorker.execute_model = paced
