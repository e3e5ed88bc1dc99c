"""Its one timer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

seconds: dict[str, float] = {}


@contextmanager
def timed(label: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[label] = time.perf_counter() - start
