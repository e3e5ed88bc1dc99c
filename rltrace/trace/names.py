"""The names of a run's processes while they are still being added to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.own_files import lines_of, read_own
from rltrace.trace.stated import is_whole
from rltrace.trace.texts import parsed

_UNKNOWN = "?"
LARGEST_ID = 1 << 20
"""Of a name: ids are given one after the other, to 20,000 names of a process at most."""


def name_of(line: str) -> tuple[int, str] | None:
    """The id and the text in a line of a names file; None where it holds none."""
    try:
        number, text = parsed(line)
        known = is_whole(number) and 0 <= number <= LARGEST_ID
        return (number, str(text).encode("utf-8", "replace").decode()) if known else None
    except (ValueError, TypeError):
        return None


class FollowedNames:
    """Names by number, `texts`, the same for all processes. A process writes a name down before it
    uses its id, so an id that is not known is looked for in what its file has more than before."""

    def __init__(self, folder: Path) -> None:
        self.texts: list[str] = []
        self._folder = folder
        self._numbers: dict[str, int] = {}
        self._own: dict[str, NDArray[np.int32]] = {}
        self._read_bytes: dict[str, int] = {}

    def translated(self, who: str, ids: NDArray[Any]) -> NDArray[np.int32]:
        """The numbers of a process's own ids; -1 stays -1."""
        own = self._own.get(who)
        if own is None or _misses(own, ids):
            own = self._read(who)
            if _misses(own, ids):  # not remembered: a line that is missing may still come
                unknown = np.int32(self._number(_UNKNOWN))
                own = np.append(np.where(own < 0, unknown, own), unknown)
                ids = np.minimum(ids, len(own) - 1)
        lookup = np.append(own, np.int32(-1))
        return lookup[np.where(ids < 0, -1, ids)]

    def _read(self, who: str) -> NDArray[np.int32]:
        own = self._own.get(who, np.empty(0, np.int32))
        lines = self._new_lines(who)
        size = max([len(own) - 1, *(number for number, _ in lines)]) + 1
        grown = np.full(size, -1, np.int32)
        grown[: len(own)] = own
        for number, text in lines:
            grown[number] = self._number(text)
        self._own[who] = grown
        return grown

    def _new_lines(self, who: str) -> list[tuple[int, str]]:
        """Whole lines that were appended since the last look."""
        begin = self._read_bytes.get(who, 0)
        try:
            data = read_own(self._folder / f"{who}.jsonl", begin)
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read_bytes[who] = begin + len(whole)
        # A line that holds no name is named by `rltrace info`.
        return [named for line in lines_of(whole) if (named := name_of(line)) is not None]

    def _number(self, text: str) -> int:
        number = self._numbers.setdefault(text, len(self.texts))
        if number == len(self.texts):
            self.texts.append(text)
        return number


def _misses(own: NDArray[np.int32], ids: NDArray[Any]) -> bool:
    """Whether one of the ids has no name yet."""
    return int(ids.max(initial=-1)) >= len(own) or bool((own[ids[ids >= 0]] < 0).any())
