"""Parts of a long run, worked on side by side: what numpy does to large arrays, threads do
at once."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import TypeVar

_Part = TypeVar("_Part")
_Found = TypeVar("_Found")

_MOST = 4
"""Parts at once: each is in memory."""


def mapped(function: Callable[[_Part], _Found], parts: Iterable[_Part]) -> Iterator[_Found]:
    """`map(function, parts)`, where some parts are worked on while the answer of an earlier one is
    used. The parts themselves are made one after the other, by who asks for answers."""
    at_once = min(_MOST, os.cpu_count() or 1)
    coming = iter(parts)
    first = list(islice(coming, 2))
    if at_once < 2 or len(first) < 2:
        yield from map(function, first)
        yield from map(function, coming)
        return
    waiting: deque[Future[_Found]] = deque()
    with ThreadPoolExecutor(at_once) as threads:
        for part in chain(first, coming):
            waiting.append(threads.submit(function, part))
            if len(waiting) == at_once:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
