"""An engine that raises in the middle of a request, as vLLM does when its core has died."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from itertools import count
from typing import Any


def engine(module: Any) -> None:
    """The request of the number that the environment names (the first is 0) fails."""
    fails = int(os.environ.get("OPENRLHF_CPU_FAILS_AT", "-1"))
    generate, nth = module.AsyncLLM.generate, count().__next__

    async def failing(self: Any, *args: Any, **more: Any) -> AsyncIterator[Any]:
        is_bad = nth() == fails
        async for output in generate(self, *args, **more):
            if is_bad:
                raise RuntimeError("an engine that cannot go on")
            yield output

    if fails >= 0:
        module.AsyncLLM.generate = failing
