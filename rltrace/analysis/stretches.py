"""A long run in stretches of steps, so that what is looked at closely fits into memory.

Each stretch is looked at with some steps before it and after it, its margins: what a moment had to
wait for is found within a few steps of it, or was long over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rltrace.analysis.activity import Activity
from rltrace.analysis.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_SPANS = 1_000_000
"""In a stretch, about, unless a step has more; several stretches are in memory at once."""

_ALWAYS = 1 << 62
_MARGIN = 8  # parts of a stretch that one margin is


@dataclass(frozen=True)
class Stretch:
    """Steps `first` to `last` (places in `Steps.windows`); with their margins they are those from
    `seen_first` to `seen_last`, from `since_ns` to `until_ns` (Unix). Before the first step and
    after the last one there is no end to it."""

    first: int
    last: int
    seen_first: int
    seen_last: int
    since_ns: int
    until_ns: int


def stretches(activity: Activity, steps: Steps, most_spans: int = MOST_SPANS) -> Sequence[Stretch]:
    """All steps, in order; one stretch where there are not too many spans for that."""
    windows = steps.windows
    count = -(-sum(activity.spans_of_stage.values()) // most_spans)
    size = -(-len(windows) // max(1, count))
    margin = -(-size // _MARGIN)
    found = []
    for first in range(0, len(windows), max(1, size)):
        last = min(first + size, len(windows)) - 1
        before, after = max(0, first - margin), min(last + margin, len(windows) - 1)
        since = windows[before].start_ns if before else -_ALWAYS
        until = windows[after].end_ns if after < len(windows) - 1 else _ALWAYS
        found.append(Stretch(first, last, before, after, since, until))
    return found
