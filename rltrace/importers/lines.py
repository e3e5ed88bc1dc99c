"""The lines of a text, of which none is longer than a line of metrics can be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TextIO

LONGEST_LINE = 1 << 22
"""Characters: a record of a thousand metrics has 50 thousand."""


@dataclass
class Counted:
    """Lines of one kind: how many there are, and the number of the first."""

    count: int = 0
    first: int = 0

    def add(self, number: int) -> None:
        """One more."""
        self.first = self.first if self.count else number
        self.count += 1

    def __str__(self) -> str:
        if self.count == 1:
            return f"line {self.first}"
        return f"{self.count} lines (the first is line {self.first})"


class Lines:
    """Iterates over a text's lines. One that is too long is given as an empty line, so that all
    others keep their numbers; `too_long` are the numbers of these."""

    def __init__(self, text: TextIO) -> None:
        self._text = text
        self.too_long: list[int] = []

    def __iter__(self) -> Iterator[str]:
        number = 0
        while line := self._text.readline(LONGEST_LINE):
            number += 1
            if len(line) < LONGEST_LINE or line.endswith("\n"):
                yield line
                continue
            self.too_long.append(number)
            while line and not line.endswith("\n"):
                line = self._text.readline(LONGEST_LINE)
            yield "\n"
