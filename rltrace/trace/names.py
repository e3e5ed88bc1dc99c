"""The names of a run's processes, which may still be added to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.own_files import FollowedLines
from rltrace.trace.run_dir import NAMES
from rltrace.trace.stated import is_whole
from rltrace.trace.texts import parsed

_UNKNOWN = "?"
_MISSING = -2
LARGEST_ID = 1 << 20
"""Of a name: ids are given one after the other, to 20,000 names of a process at most."""

Tell = Callable[[str, str, str], None]
"""Told what cannot be read: what it is, of which file, and why."""


def name_of(line: str) -> tuple[int, str] | None:
    """The id and the text in a line of a names file; None where it holds none."""
    try:
        number, text = parsed(line)
        known = is_whole(number) and 0 <= number <= LARGEST_ID
        return (number, str(text).encode("utf-8", "replace").decode()) if known else None
    except (ValueError, TypeError):
        return None


class FollowedNames:
    """Names by number, the same for all processes: `texts`, `numbers` by text, which begin with
    `known` ones. A process writes a name down before it uses its id, so an id that is not known is
    looked for in what its file has more than before."""

    def __init__(
        self, folder: Path, known: Iterable[str] = (), tell: Tell = lambda what, file, why: None
    ) -> None:
        self.texts = list(known)
        self.numbers = {text: number for number, text in enumerate(self.texts)}
        self._own: dict[str, NDArray[np.int32]] = {}
        self._lines = FollowedLines(folder)
        self._tell = tell

    def translated(self, who: str, ids: NDArray[Any]) -> NDArray[np.int32]:
        """The numbers of a process's own ids; -1 stays -1."""
        found = self._looked_up(who, ids)
        if found.min(initial=-1) == _MISSING:
            self._read(who)
            found = self._looked_up(who, ids)
        if found.min(initial=-1) == _MISSING:  # not remembered: the line may still come
            found[found == _MISSING] = self._number(_UNKNOWN)
        return found

    def _looked_up(self, who: str, ids: NDArray[Any]) -> NDArray[np.int32]:
        own = self._own.get(who, np.empty(0, np.int32))
        lookup = np.append(own, np.array([_MISSING, -1], np.int32))
        return lookup[np.where(ids < 0, -1, np.minimum(ids, len(own)))]

    def _read(self, who: str) -> None:
        """Takes in the lines that were appended since the last look."""
        file, own = f"{NAMES}/{who}.jsonl", self._own.get(who, np.empty(0, np.int32))
        try:
            lines = self._lines.new_of(who)
        except FileNotFoundError:
            return
        except OSError as error:
            self._tell("unreadable-file", file, str(error.strerror))
            return
        named = [found for line in lines if (found := name_of(line)) is not None]
        for _ in range(len(lines) - len(named)):
            self._tell("unreadable-line", file, "skipped")
        more = max([len(own) - 1, *(number for number, _ in named)]) + 1 - len(own)
        own = np.append(own, np.full(more, _MISSING, np.int32))
        for number, text in named:
            own[number] = self._number(text)
        self._own[who] = own

    def _number(self, text: str) -> int:
        number = self.numbers.setdefault(text, len(self.texts))
        if number == len(self.texts):
            self.texts.append(text)
        return number
