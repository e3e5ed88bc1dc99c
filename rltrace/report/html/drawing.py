"""Scales, axes and bars as SVG; the page's style sheet has the colours."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rltrace.report import units
from rltrace.report.html.markup import NOTHING, Child, Html, join, short, tag

WIDTH = 900.0
"""Every picture is this wide; the page scales it."""

RIGHT = WIDTH - 10
"""Where what is drawn ends."""

Box = tuple[float, float, float, float]
"""Of a rectangle: x, y, width, height."""


@dataclass(frozen=True)
class Axis:
    """A linear scale from `low..high` to the pixels `start..end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low
        share = (value - self.low) / span if span else 0.0
        return self.start + share * (self.end - self.start)

    def length(self, size: float) -> float:
        """How many pixels a distance takes."""
        return abs(self(self.low + size) - self.start)


@dataclass(frozen=True)
class LogAxis(Axis):
    """The same on a logarithmic scale; values at or below 0 lie at the start."""

    def __call__(self, value: float) -> float:
        if value <= self.low or self.high <= self.low:
            return self.start
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round values between two ends, at most `most` or so."""
    if not high > low or not math.isfinite(high - low):
        return [low]
    raw = (high - low) / most
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(k * size for k in (1, 2, 2.5, 5, 10) if k * size >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [step * k for k in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, 20, 50, ... between two ends; only powers of ten where these are many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    digits = (1, 2, 5) if last - first <= 3 else (1,)
    values = [digit * 10.0**power for power in range(first, last + 1) for digit in digits]
    return [value for value in values if low <= value <= high * 1.0001]


def label(x: float, y: float, said: str, anchor: str | None = None, css: str = "") -> Html:
    return tag("text", said, x=x, y=y, text_anchor=anchor, class_=css or None)


def line(x1: float, y1: float, x2: float, y2: float, css: str) -> Html:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=css)


def box(x: float, y: float, width: float, height: float, css: str, **more: object) -> Html:
    """A rectangle; one that is too thin to be seen is half a pixel wide."""
    return tag("rect", x=x, y=y, width=max(width, 0.5), height=max(height, 0.0), class_=css, **more)


def boxes(parts: Iterable[Box], css: str) -> Html:
    """Many rectangles of one kind as a single path."""
    shape = "".join(
        f"M{short(x)} {short(y)}h{short(w)}v{short(h)}h{short(-w)}z" for x, y, w, h in parts
    )
    return tag("path", d=shape, class_=css) if shape else NOTHING


def polyline(points: Iterable[tuple[float, float]], css: str) -> Html:
    told = "L".join(f"{short(x)} {short(y)}" for x, y in points)
    return tag("path", d=f"M{told}", class_=css) if told else NOTHING


def x_axis(
    axis: Axis, y: float, values: Sequence[float], show: Callable[[float], str], top: float
) -> Html:
    """Grid lines from `top` down to `y` and their values below."""
    return join(
        *(line(axis(v), top, axis(v), y, "grid") for v in values),
        *(label(axis(v), y + 16, show(v), "middle", "tick") for v in values),
    )


def y_axis(axis: Axis, left: float, right: float, values: Sequence[float],
           show: Callable[[float], str]) -> Html:  # fmt: skip
    """Grid lines from `left` to `right` and their values on the left."""
    return join(
        *(line(left, axis(v), right, axis(v), "grid") for v in values),
        *(label(left - 8, axis(v) + 4, show(v), "end", "tick") for v in values),
    )


def percent(value: float) -> str:
    return f"{100 * value:.3g} %"


def stretches(degrees: NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """`(first, end, degree)` of each stretch of one degree."""
    cuts = [0, *(np.flatnonzero(np.diff(degrees)) + 1).tolist(), len(degrees)]
    for first, end in itertools.pairwise(cuts):
        yield first, end, int(degrees[first])


def seconds_of(values: Sequence[float]) -> Callable[[float], str]:
    """How ticks of seconds are written: all in the unit of the largest."""
    scale = units.scale(max(map(abs, values), default=0.0))
    return lambda value: f"{value * scale.per_second:.4g} {scale.unit}"


def drawing(height: float, *children: Child, title: str) -> Html:
    """The picture as a whole. `title` is what a screen reader says of it."""
    return tag("svg", *children, viewBox=f"0 0 {WIDTH:g} {height:g}", role="img", class_="drawing",
               aria_label=title, preserveAspectRatio="xMinYMin meet")  # fmt: skip


def in_cell(width: float, height: float, *children: Child) -> Html:
    """A small drawing beside the text of a cell, which says the same."""
    return tag("svg", *children, viewBox=f"0 0 {width:g} {height:g}", width=f"{width:g}",
               height=f"{height:g}", class_="in-cell", aria_hidden="true")  # fmt: skip


# --- heat: the stronger, the more

HEAT = 10
"""Degrees of it, in the legend some of them."""

HEAT_LEGEND = [(f"heat d{degree}", f"{10 * degree} %") for degree in (1, 4, 7, 10)]


def heat(cells: Mapping[tuple[str, int], list[Box]]) -> Html:
    """Cells by kind (`heat` or `unknown`) and degree."""
    of_degrees = sorted(cells.items())
    return join(*(tag("g", boxes(at, kind), class_=f"d{n}") for (kind, n), at in of_degrees))


def row_names(rows: Iterable[tuple[float, str]], x: float, high: float, css: str = "name") -> Html:
    """What stands on the left of rows: `(top, name)` each."""
    return join(*(label(x - 10, top + high / 2 + 4, name, "end", css) for top, name in rows))


# --- columns: of steps, or of updates, or of several that stand beside each other

_FEWEST = 12
"""Fewer columns than this are no wider than of this many."""

_MOST_COLUMNS = 240
_FAR = 1.6
_LONGER = 1.0001
T = TypeVar("T")


def groups(items: Sequence[T]) -> list[Sequence[T]]:
    """The items in so few groups of neighbours that each can be drawn: of one size but for the
    last."""
    size = max(1, -(-len(items) // _MOST_COLUMNS))
    return [items[first : first + size] for first in range(0, len(items), size)]


def said_of(bars: Sequence[Sequence[object]], of: str, is_cut: bool) -> str:
    """What is said of bars that are of several, and where any is longer than the scale."""
    most = len(bars[0])
    grouped = f" Each bar is the mean of up to {most} {of}s." if most > 1 else ""
    return grouped + " ▲: longer than the scale." * is_cut


def numbered(numbers: Sequence[int]) -> str:
    """`7`, or `7 to 9`."""
    return units.between(str(numbers[0]), str(numbers[-1]))


def scale_end(totals: Sequence[float], usual: Sequence[float] = ()) -> float:
    """Where the scale of bars ends: with the longest, unless it is far longer than nearly all."""
    cap = _FAR * float(np.quantile(usual or totals, 0.98))
    return min(max(totals), cap) * 1.04 or 1.0


@dataclass(frozen=True)
class Columns:
    """Columns side by side, told by their names and by `of` what they are."""

    names: Sequence[str]
    of: str
    left: float
    top: float
    bottom: float
    fewest: int = _FEWEST

    def x(self, column: float) -> float:
        """Where a column begins."""
        return self.left + column * self.wide

    @property
    def wide(self) -> float:
        return (RIGHT - self.left) / max(self.fewest, len(self.names))

    def bars(self, parts: Mapping[str, Sequence[float]], end: float, most_ticks: int) -> Html:
        """A bar of seconds in each column: its parts by class, one on the other, on a scale that
        ends at `end`."""
        y, gap = Axis(0, end, self.bottom, self.top), min(1.5, 0.15 * self.wide)
        seconds, feet = ticks(0, end, most_ticks), [0.0] * len(self.names)
        drawn = [y_axis(y, self.left, RIGHT, seconds, seconds_of(seconds))]
        for css, values in parts.items():
            placed = []
            for n, value in enumerate(values):
                foot, feet[n] = feet[n], feet[n] + value
                if foot < (head := min(feet[n], end)):
                    place = self.x(n) + gap / 2, y(head), self.wide - gap, y(foot) - y(head)
                    placed.append(place)
            drawn.append(boxes(placed, css))
        cut = (n for n, head in enumerate(feet) if head > _LONGER * end)
        return join(*drawn, *(label(self.x(n + 0.5), 10, "▲", "middle", "tick") for n in cut))

    def drawing(self, *children: Child, title: str) -> Html:
        """The picture: below its columns the names of ten or so of them; each can be pointed at."""
        every, deep = max(1, len(self.names) // 10), self.bottom - self.top
        places = range(len(self.names))
        hits = (box(self.x(n), self.top, self.wide, deep, "hit", data_row=n) for n in places)
        named = (
            label(self.x(n + 0.5), self.bottom + 16, self.names[n], "middle", "tick")
            for n in places[::every]
            if self.names[n]
        )
        return drawing(
            self.bottom + 34,
            *children,
            line(self.left, self.bottom, RIGHT, self.bottom, "base"),
            *named,
            label((self.left + RIGHT) / 2, self.bottom + 32, self.of, "middle", "tick"),
            tag("g", *hits, class_="hits"),
            title=title,
        )
