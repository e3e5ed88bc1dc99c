"""The names of a run's processes while they are still being added to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_UNKNOWN = "?"


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
        highest = int(ids.max(initial=-1))
        own = self._own.get(who)
        if own is None or highest >= len(own) or bool((own[ids[ids >= 0]] < 0).any()):
            own = self._read(who, highest)
        lookup = np.append(own, np.int32(-1))
        return lookup[np.where(ids < 0, -1, ids)]

    def _read(self, who: str, highest: int) -> NDArray[np.int32]:
        own = self._own.get(who, np.empty(0, np.int32))
        lines = self._new_lines(who)
        size = max([highest, len(own) - 1, *(number for number, _ in lines)]) + 1
        grown = np.full(size, -1, np.int32)
        grown[: len(own)] = own
        for number, text in lines:
            grown[number] = self._number(text)
        self._own[who] = grown
        # A line that is missing may still come, so what is unknown is not remembered.
        return np.where(grown < 0, self._number(_UNKNOWN), grown).astype(np.int32)

    def _new_lines(self, who: str) -> list[tuple[int, str]]:
        """Whole lines that were appended since the last look."""
        begin = self._read_bytes.get(who, 0)
        try:
            with open(self._folder / f"{who}.jsonl", "rb") as file:
                file.seek(begin)
                data = file.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read_bytes[who] = begin + len(whole)
        found = []
        for line in whole.splitlines():
            try:
                number, text = json.loads(line)
                found.append((int(number), str(text).encode("utf-8", "replace").decode()))
            except (ValueError, TypeError):
                continue  # `rltrace info` names it
        return [(number, text) for number, text in found if number >= 0]

    def _number(self, text: str) -> int:
        number = self._numbers.setdefault(text, len(self.texts))
        if number == len(self.texts):
            self.texts.append(text)
        return number
