"""ZeRO-3's parameters, whole before they are read."""

from __future__ import annotations

from typing import Any


def one_by_one(module: Any) -> None:
    """DeepSpeed gathers several parameters at once and waits for the last alone, which gloo need
    not finish last: then it reads, and keeps, what was in memory. Mended after 0.19.6
    (github.com/deepspeedai/DeepSpeed/pull/8539)."""
    gather = module.Init._allgather_params_coalesced

    def gather_each(self: Any, params: list[Any], *args: Any, **more: Any) -> None:
        for param in params:
            gather(self, [param], *args, **more)

    module.Init._allgather_params_coalesced = gather_each
