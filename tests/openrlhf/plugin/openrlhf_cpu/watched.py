"""Stamps at the border between OpenRLHF's engine actor and vLLM, and slower tokens if asked for."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from typing import Any

from job_stamps import stamp


def engine(module: Any) -> None:
    """Every request with its tokens and the whole updates that there were when the first and the
    last of them came. vLLM hands on what is ready before a pause begins."""
    vllm = module.AsyncLLM
    generate, call = vllm.generate, vllm.collective_rpc

    async def stamped(self: Any, *args: Any, **more: Any) -> AsyncIterator[Any]:
        start_ns, first, output = time.time_ns(), None, None
        async for output in generate(self, *args, **more):
            first = _updates(self) if first is None else first
            yield output
        answer = output.outputs[0]
        stamp(
            "request",
            start_ns,
            tokens=len(answer.token_ids),
            finish=answer.finish_reason,
            first=first,
            last=_updates(self),
        )

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
