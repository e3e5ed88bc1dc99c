"""What a timeline is made of: tracks, interned texts, and slices as columns.

Perfetto closes the slices of one track like a stack: two that overlap without nesting would
silently get wrong durations, so `pack` and `nest` put them on tracks apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property, partial
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.read.run import OpenedRun
from rltrace.trace.untrusted_files import packaged_toml
from rltrace.trace.vocabulary import Stage, word

RUN = 1 << 40  # uuid of the track that holds what is of the whole run
_COLOURS: dict[str, tuple[str, int]] = {
    one[0].partition(".")[0]: one for one in packaged_toml("report/perfetto/colours.toml")["stages"]
}
_OF_PROCESSES = 18  # colours


class Interned:
    """Texts that packets name by number. Ids start at 1, as Perfetto wants them."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def id(self, text: str) -> int:
        """The number of a text, given on first use."""
        return self.ids.setdefault(text, len(self.ids) + 1)

    def all(self, texts: Iterable[str | None]) -> Ints:
        """The id of each text, 0 where there is none."""
        return np.array([self.id(text) if text else 0 for text in texts], np.int64)

    def column(self, codes: NDArray[Any], text: Callable[[int], str]) -> NDArray[Any]:
        """The id of `text(code)` for a column of codes; each distinct code is asked for once."""
        distinct, where = factor(codes)
        ids = [self.id(text(code)) for code in distinct.tolist()]
        return np.take(np.array(ids, np.min_scalar_type(len(self.ids))), where)


@dataclass(frozen=True)
class Track:
    """A track to be described. `pid` and `tid` are made up: real ones repeat between hosts."""

    uuid: int
    parent: int  # uuid of the track that it belongs to; 0: top level
    name: str
    pid: int = 0  # 0 for a track that is neither a process nor a thread
    tid: int = 0  # 0 for a track that is no thread
    unit: str | None = None  # a counter's unit, "" where unknown; None for other tracks
    order: int = 0  # place among the tracks of one parent; viewers may know better


@dataclass(frozen=True)
class Note:
    """What is known about each slice under one title, or its colour, which has none."""

    title: int
    kind: str  # "integer", "double", "word" or "colour"
    values: NDArray[Any]
    known: NDArray[np.bool_]


@dataclass(frozen=True)
class Flows:
    """The arrows at each slice: `ids[first[i]]` and the next `count[i] - 1`. An arrow's id stands
    at two slices; it points to the one that starts later."""

    first: Ints
    count: Ints
    ids: Ints


@dataclass(frozen=True)
class Slices:
    """Slices of one kind, a row each; `end` is `tracks.OPEN` where one never ended."""

    track: NDArray[Any]  # uuids
    start: Ints  # Unix ns
    end: Ints
    name: NDArray[Any]  # ids of interned texts, the category's too
    category: NDArray[Any]
    notes: tuple[Note, ...] = ()
    flows: Flows | None = None
    moments: bool = False  # an instant each: no end is written
    # What each is of, for arrows: trajectory, version and such; -1: unknown.
    of: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.start)

    @cached_property
    def known(self) -> NDArray[Any]:
        """For each slice a bit for each of the notes: whether it is known."""
        bits = np.zeros(len(self), np.min_scalar_type((1 << len(self.notes)) - 1))
        for bit, note in enumerate(self.notes):
            bits |= note.known.astype(bits.dtype) << bits.dtype.type(bit)
        return bits


@dataclass(frozen=True)
class Points:
    track: NDArray[Any]
    time: Ints  # Unix ns
    value: NDArray[np.float64]


@dataclass
class Scene:
    """What slices of all kinds share: the tracks made so far, and the texts."""

    tracks: list[Track] = field(default_factory=list)
    processes: dict[int, Track] = field(default_factory=dict)
    categories: Interned = field(default_factory=Interned)
    names: Interned = field(default_factory=Interned)
    titles: Interned = field(default_factory=Interned)
    words: Interned = field(default_factory=Interned)
    colours: Interned = field(default_factory=Interned)
    _numbers: dict[int, Iterator[int]] = field(default_factory=dict)
    _taken: set[int] = field(default_factory=set)

    def process(self, process: int, name: str, stage: int = Stage.OTHER) -> None:
        """Adds a process, with a pid that viewers give the colour of the stage."""
        pid = self._number(_COLOURS[word_of(Stage, stage)][1])
        self.processes[process] = self._add(0, name, pid=pid, order=len(self.processes))

    def thread(self, process: int) -> int:
        """Adds a thread's track to a process; its uuid."""
        owner, tid = self.processes[process], self._number(-1)
        return self._add(owner.uuid, "thread", pid=owner.pid, tid=tid).uuid

    def row(self, process: int | None, name: str, order: int = 0, unit: str | None = None) -> int:
        """Adds a plain track, or a counter's, to a process or to the run (None); its uuid."""
        parent = RUN if process is None else self.processes[process].uuid
        return self._add(parent, name, unit=unit, order=order).uuid

    def each(self, make: Callable[..., int], *keys: NDArray[Any]) -> NDArray[np.int32]:
        """For every row the uuid of its track: `make(*key)` for each distinct key."""
        dense, first = number(*keys)
        made = [make(*(int(key[row]) for key in keys)) for row in first.tolist()]
        return np.take(np.array(made, np.int32), dense)

    def note(
        self, title: str, values: NDArray[Any], known: NDArray[np.bool_] | None = None
    ) -> Note:
        """A note of numbers, by default where they are finite."""
        kind = "double" if values.dtype.kind == "f" else "integer"
        known = np.isfinite(values) if known is None else known
        return Note(self.titles.id(title), kind, values, known)

    def told(self, title: str, texts: Iterable[str | None]) -> Note:
        """A note of words, where there are any."""
        ids = self.words.all(texts)
        return Note(self.titles.id(title), "word", ids, ids > 0)

    def colour(self, stages: NDArray[Any]) -> Note:
        """The colour that each of the stages has in the report (-1: of no stage)."""

        def told(code: int) -> str:
            return _COLOURS.get(word_of(Stage, code), _COLOURS["other"])[0]

        return Note(0, "colour", self.colours.column(stages, told), stages >= 0)

    def _number(self, colour: int) -> int:
        """A pid or tid that is not taken, which viewers show in that colour (-1: in any)."""
        alike = (n for n in count(1) if colour in (-1, _hash(str(n)) % _OF_PROCESSES))
        numbers = self._numbers.setdefault(colour, alike)
        number = next(n for n in numbers if n not in self._taken)
        self._taken.add(number)
        return number

    def _add(self, parent: int, name: str, **known: Any) -> Track:
        track = Track(uuid=len(self.tracks) + 1, parent=parent, name=name, **known)
        self.tracks.append(track)
        return track


def _hash(text: str) -> int:
    """The viewer's, in JavaScript's numbers."""
    found = 0x11C9DC5
    for character in text.encode():
        found = int(float(found ^ character) * 16777619) & 0xFFFFFFFF
        found -= found >> 31 << 32
    return abs(found)


def narrow(run: OpenedRun, columns: str, rows: str) -> dict[str, NDArray[Any]]:
    """Columns of integers of `rows` (`table WHERE ..`), each as narrow as its values, read a range
    of time after the other: of a million rows a third of the memory that one answer takes."""
    names = columns.split(", ")
    ends = ", ".join(f"coalesce(min({name}), 0), coalesce(max({name}), 0)" for name in names)
    count, *found = run.ask(f"SELECT count(*), {ends} FROM {rows}")[0]
    span = dict(zip(names, zip(found[::2], found[1::2], strict=True), strict=True))
    kept = {name: np.empty(count, _signed(*span[name])) for name in names}
    begin, last = span["start_ns"]
    parts, at = count // _PART_ROWS + 1, 0
    for nth in range(parts):
        since, until = (begin + (last + 1 - begin) * n // parts for n in (nth, nth + 1))
        within = f"start_ns >= {since} AND start_ns < {until}"
        part = run.sql(f"SELECT {columns} FROM {rows} AND {within}").fetchnumpy()
        for name, values in part.items():
            kept[name][at : at + len(values)] = values
        at += len(part["start_ns"])
    return kept


def _signed(*values: int) -> type[np.signedinteger[Any]]:
    """The narrowest type that holds the values."""
    kinds = (np.int8, np.int16, np.int32, np.int64)
    return next(k for k in kinds if all(np.iinfo(k).min <= v <= np.iinfo(k).max for v in values))


class SceneRows:
    """Rows that have the columns `process`, `start_ns` and `end_ns`."""

    def __init__(self, scene: Scene, columns: dict[str, NDArray[Any]]) -> None:
        self._scene, self._columns = scene, columns
        self.start = self["start_ns"].astype(np.int64, copy=False)
        self.end = self["end_ns"].astype(np.int64, copy=False)
        is_open = self.end < 0
        np.maximum(self.end, self.start, out=self.end)
        self.end[is_open] = OPEN

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
        name: NDArray[Any],
        category: str,
        *notes: Note,
        of: Sequence[str] = (),
        moments: bool = False,
    ) -> Slices:
        """The slices of the rows; `of` are columns that say what each is of."""
        kind = np.full(len(self.start), self._scene.categories.id(category), np.uint8)
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

    def coloured(self, stage: Stage) -> Note:
        return self._scene.colour(np.full(len(self.start), stage))

    def codes(self, **columns: type[IntEnum]) -> tuple[Note, ...]:
        """Notes of the vocabulary's words, by column."""
        return tuple(self.words(c, partial(word_of, codes)) for c, codes in columns.items())


def pack_each(process: NDArray[Any], start: Ints, end: Ints) -> Ints:
    """`pack` for each process on its own."""
    packed = np.zeros(len(process), np.int64)
    for one in factor(process)[0]:
        members = np.flatnonzero(process == one)
        packed[members] = pack(start[members], end[members])
    return packed


def word_of(codes: type[IntEnum], code: int) -> str:
    """The vocabulary's word; a code that a later version wrote is still worth showing."""
    return word(codes(code)) if code in codes._value2member_map_ else f"code {code}"


Ints = NDArray[np.int64]
OPEN = np.iinfo(np.int64).max  # the end of a slice that never ended
_AT_ONCE = 1 << 16  # slices
_PART_ROWS = 1 << 17  # that DuckDB holds beside those that were read
_DENSE = 4  # values a row: up to this a table of all values in between is cheaper than a sort


def pack(start: Ints, end: Ints) -> Ints:
    """A row number for each interval so that those of one row do not overlap: in order of start
    each takes the row that fell free first. One may begin where another ends."""
    # An interval of no length still takes its instant, or a thousand at one time would share a row.
    until = np.maximum(end, start + 1)
    order = np.argsort(start, kind="stable")
    begin, until = start[order], until[order]
    place = np.arange(len(start))
    if (begin[1:] >= until[:-1]).all():
        return np.zeros(len(start), np.int64)
    by_end = np.argsort(until, kind="stable")
    busy = place + 1 - np.searchsorted(until[by_end], begin, side="right")
    rows = np.maximum.accumulate(busy)  # in use so far
    # Rows fall free in the order of the ends: the n-th that takes one over follows the n-th to end.
    follows = np.flatnonzero(np.diff(rows, prepend=0) == 0)
    first = place.copy()  # on the row of each
    first[follows] = by_end[follows - rows[follows]]
    while (first != (before := first[first])).any():
        first = before
    packed = np.empty(len(start), np.int64)
    packed[order] = rows[first] - 1
    return packed


def nest(lane: Ints, start: Ints, end: Ints, order: Ints | None = None) -> Ints:
    """0 for a slice on its own track of a lane, k for its k-th extra one, so that they nest."""
    extra = np.zeros(len(lane), np.int64)
    order = outer_first(start, end, lane) if order is None else order
    order = order[(end > start)[order]]  # those of no length never cross others
    wrong = order[np.isin(lane[order], _lanes_with_crossings(lane[order], start, end, order))]
    for members in np.split(wrong, np.flatnonzero(np.diff(lane[wrong])) + 1):
        outside = members[_off_the_stack(start[members], end[members])]
        extra[outside] = 1 + pack(start[outside], end[outside])
    return extra


def outer_first(start: Ints, end: Ints, lane: Ints | None = None) -> Ints:
    """The order by lane (where given) and start, of slices that start together the longer first."""
    order = np.argsort(start, kind="stable") if lane is None else _by_lane(start, lane)
    together = np.append(False, np.diff(start[order]) == 0)
    if lane is not None:
        together[1:] &= np.diff(lane[order]) == 0
    together[:-1] |= together[1:]
    ties = np.flatnonzero(together)
    tied = order[ties]
    keys = (-end[tied], start[tied]) if lane is None else (-end[tied], start[tied], lane[tied])
    order[ties] = tied[np.lexsort(keys)]
    return order


def _by_lane(start: Ints, lane: Ints) -> Ints:
    few = len(lane) and int(lane.min()) >= 0 and int(lane.max()) < 1 << 16
    order = np.argsort(lane.astype(np.uint16) if few else lane, kind="stable")  # 16 bits: radix
    in_order = (np.diff(start[order]) >= 0) | (np.diff(lane[order]) != 0)
    return order if in_order.all() else np.lexsort((start, lane))


def _lanes_with_crossings(lane: Ints, start: Ints, end: Ints, order: Ints) -> Ints:
    """The lanes where a slice ends after one that it began in. `lane` is in the slices' order."""
    if not len(lane):
        return lane
    origin, last = int(start.min()), int(start.max())
    last = max(last, int(end.max(initial=last, where=end != OPEN)))
    begins = np.flatnonzero(np.append(True, lane[1:] != lane[:-1]))
    crossing = []
    at = 0
    while at < len(begins):
        # Lanes one behind the other, as many as fit into 64 bits and into a processor's cache.
        most = at + max(1, OPEN // (last - origin + 2) - 1)
        few = int(np.searchsorted(begins, begins[at] + _AT_ONCE))
        then = max(at + 1, min(most, few, len(begins)))
        part = slice(begins[at], begins[then] if then < len(begins) else len(lane))
        number = np.cumsum(np.append(0, lane[part][1:] != lane[part][:-1]))
        shift = number * (last - origin + 2) - origin
        until = np.minimum(end[order[part]], last + 1)
        crossing.append(lane[part][_crossings(start[order[part]] + shift, until + shift)])
        at = then
    return np.unique(np.concatenate(crossing))


def _crossings(start: Ints, end: Ints) -> Ints:
    """Slices that end after one that they began in, level by level: what begins when all before it
    have ended is on a level, and the rest lies in its slices, or crosses them."""
    wrong = []
    rest, above = np.arange(len(start)), np.zeros(0, np.int64)
    while len(rest):
        on_level = np.ones(len(rest), np.bool_)
        on_level[1:] = start[rest[1:]] >= np.maximum.accumulate(end[rest])[:-1]
        level, rest = rest[on_level], rest[~on_level]
        if len(above):
            holder = above[np.searchsorted(start[above], start[level], side="right") - 1]
            wrong.append(level[end[level] > end[holder]])
        above = level
    return np.concatenate(wrong) if wrong else rest


def _off_the_stack(start: Ints, end: Ints) -> NDArray[Any]:
    """True for the slices of one lane that would cross an earlier one on the stack."""
    order = outer_first(start, end)
    outside = np.zeros(len(start), bool)
    open_until: list[int] = []
    for i, begins, ends in zip(order, start[order].tolist(), end[order].tolist(), strict=True):
        while open_until and open_until[-1] <= begins:
            open_until.pop()
        if open_until and open_until[-1] < ends:
            outside[i] = True
        else:
            open_until.append(ends)
    return outside


def factor(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The distinct integers in order, and the place of each row's, without a sort of a million."""
    if not len(values):
        return values, np.zeros(0, np.int32)
    low, high = int(values.min()), int(values.max())
    if high - low < _DENSE * len(values) + 1024:
        moved = np.subtract(values, low, dtype=np.int64)
        there = np.zeros(high - low + 1, np.bool_)
        there[moved] = True
        distinct = np.flatnonzero(there) + low
        return distinct, (np.cumsum(there, dtype=np.int32) - 1)[moved]
    # Rows come in runs of one value, such as the spans of one lane.
    begins = np.append(0, np.flatnonzero(values[1:] != values[:-1]) + 1)
    heads = values[begins]
    distinct = np.unique(heads)
    lengths = np.diff(np.append(begins, len(values)))
    return distinct, np.repeat(np.searchsorted(distinct, heads).astype(np.int32), lengths)


def number(*keys: NDArray[Any]) -> tuple[NDArray[Any], Ints]:
    """The number of every row by its distinct keys, sorted, and the first row of each number."""
    distinct, dense = factor(keys[0])
    for key in keys[1:]:
        values, code = factor(key)
        distinct, dense = factor(dense * np.int64(len(values)) + code)
    first = np.zeros(len(distinct), np.int64)
    first[dense[::-1]] = np.arange(len(dense), dtype=np.int32)[::-1]
    return dense, first
