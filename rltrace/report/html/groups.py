"""Many things drawn as few: neighbours share a bar."""

from __future__ import annotations

from collections.abc import Sequence

FEWEST_BARS = 12
"""Fewer bars than this are no wider than of this many."""


def groups(count: int, most: int) -> list[range]:
    """The places 0 to `count` - 1 in at most `most` groups of neighbours, of one size but for the
    last."""
    size = max(1, -(-count // most))
    return [range(first, min(first + size, count)) for first in range(0, count, size)]


def numbered(numbers: Sequence[int]) -> str:
    """`7`, or `7 to 9`."""
    first, last = numbers[0], numbers[-1]
    return str(first) if first == last else f"{first} to {last}"
