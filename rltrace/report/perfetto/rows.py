"""The columns of one query, and what slices take from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.report.perfetto.scene import Note, Scene, Slices
from rltrace.report.perfetto.tracks import OPEN, Ints, factor, pack
from rltrace.trace.run import Run
from rltrace.trace.vocabulary import word


class Rows:
    """The rows of a query that has the columns `process`, `start_ns` and `end_ns`."""

    def __init__(self, scene: Scene, run: Run, query: str) -> None:
        self._scene = scene
        self._columns: dict[str, NDArray[Any]] = run.ask_columns(query)
        self.start = self["start_ns"]
        end = self["end_ns"]
        self.end = np.maximum(end, self.start)
        self.end[end < 0] = OPEN

    def __getitem__(self, column: str) -> NDArray[Any]:
        return np.ma.getdata(self._columns[column])

    def packed(self) -> Ints:
        """A row number for each slice, so that within a process no two of a row overlap."""
        return pack_each(self["process"], self.start, self.end)

    def on_rows(self, name: str, order: int) -> NDArray[np.int32]:
        """Tracks of one name in each process, as many as hold the slices without overlap."""
        keys = self["process"], self.packed()
        return self._scene.each(lambda process, _row: self._scene.row(process, name, order), *keys)

    def slices(
        self,
        track: NDArray[np.int32],
        name: NDArray[np.int32],
        category: str,
        notes: tuple[Note, ...],
        of: Sequence[str] = (),
        moments: bool = False,
    ) -> Slices:
        """The slices of the rows; `of` are columns that say what each is of."""
        kind = np.full(len(self.start), self._scene.categories.id(category), np.int32)
        kept = {column: self[column] for column in of}
        return Slices(track, self.start, self.end, name, kind, notes, moments=moments, of=kept)

    def integers(self, *columns: str) -> tuple[Note, ...]:
        """Notes of integers, where they are known (not -1)."""
        return tuple(self._scene.note(c, self[c], self[c] != -1) for c in columns)

    def nullable(self, *columns: str) -> tuple[Note, ...]:
        """Notes of integers, where they are known (not NULL)."""
        known = {c: ~np.ma.getmaskarray(self._columns[c]) for c in columns}
        return tuple(self._scene.note(c, self[c], known[c]) for c in columns)

    def double(self, column: str) -> Note:
        """Notes of a float, where it is known (neither NaN nor NULL)."""
        values = self[column].astype(np.float64, copy=False)
        known = ~np.isnan(values) & ~np.ma.getmaskarray(self._columns[column])
        return self._scene.note(column, values, known)

    def words(self, column: str, text: Callable[[int], str]) -> Note:
        """Notes of what codes or names stand for, where they are known (not -1)."""
        ids = self._scene.words.column(self[column], text)
        return Note(self._scene.titles.id(column), "word", ids, self[column] != -1)

    def code(self, column: str, codes: type[IntEnum]) -> Note:
        """Notes of the vocabulary's words."""
        return self.words(column, partial(word_of, codes))


def pack_each(process: NDArray[Any], start: Ints, end: Ints) -> Ints:
    """`pack` for each process on its own."""
    packed = np.zeros(len(process), np.int64)
    processes, number = factor(process)
    for one in range(len(processes)):
        members = np.flatnonzero(number == one)
        packed[members] = pack(start[members], end[members])
    return packed


def word_of(codes: type[IntEnum], code: int) -> str:
    """The vocabulary's word; a code that a later version wrote is still worth showing."""
    return word(codes(code)) if code in codes._value2member_map_ else f"code {code}"
