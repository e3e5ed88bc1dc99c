"""Escaped markup, and SVG pictures that stretch, with words beside them."""

from __future__ import annotations

import html
import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from rltrace.analysis.timeline.intervals import Floats
from rltrace.report import units

WIDE = 1000.0  # units across a picture, however wide the page shows it. Down it is pixels
Box = tuple[float, float, float, float]  # of a rectangle: x, y, width, height
Mark = tuple[float, str]  # a word beside a picture: at which unit across or pixel down, and it


@dataclass(frozen=True)
class Axis:
    low: float
    high: float
    start: float = 0.0
    end: float = WIDE

    def __call__(self, value: float) -> float:
        span = self.high - self.low
        share = (value - self.low) / span if span else 0.0
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


def seconds_of(values: Sequence[float]) -> Callable[[float], str]:
    """How ticks of seconds are written: all in the unit of the largest."""
    scale = units.scale(max(map(abs, values), default=0.0))
    return lambda value: f"{value * scale.per_second:.4g} {scale.unit}"


def line(x1: float, y1: float, x2: float, y2: float, css: str) -> Html:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=css)


def box(x: float, y: float, width: float, height: float, css: str, **more: object) -> Html:
    """A rectangle; one that is too thin to be seen is half a unit wide."""
    return tag("rect", x=x, y=y, width=max(width, 0.5), height=max(height, 0.0), class_=css, **more)


def boxes(parts: Iterable[Box], css: str) -> Html:
    told = [f"M{short(x)} {short(y)}h{short(w)}v{short(h)}h{short(-w)}z" for x, y, w, h in parts]
    return tag("path", d="".join(told), class_=css) if told else NOTHING


def polyline(points: Iterable[tuple[float, float]]) -> Html:
    told = "L".join(f"{short(x)} {short(y)}" for x, y in points)
    return tag("path", d=f"M{told}", class_="curve") if told else NOTHING


def dots(points: Iterable[tuple[float, float]]) -> Html:
    """Points that stay round: lines of no length with round ends."""
    return tag("path", d="".join(f"M{short(x)} {short(y)}h0" for x, y in points), class_="dot")


def hits(places: Iterable[Box]) -> Html:
    """What can be pointed at: the nth is told by the nth row of the picture's table."""
    return join(*(box(*place, "hit", data_row=n) for n, place in enumerate(places)))


def shape(high: float, *children: Child, title: str) -> Html:
    """The drawing itself. `title` is what a screen reader says of it."""
    size, shown = f"0 0 {WIDE:g} {high:g}", f"height:{high:g}px"
    return tag("svg", *children, viewBox=size, preserveAspectRatio="none", style=shown,
               role="img", class_="shape", aria_label=title)  # fmt: skip


def in_cell(wide: float, *children: Child) -> Html:
    """A small drawing of a fixed size beside the text of a cell, which says the same."""
    return tag("svg", *children, viewBox=f"0 0 {wide:g} 20", width=f"{wide:g}", height="20",
               class_="in-cell", aria_hidden="true")  # fmt: skip


_CELL = 150.0


def interval(ends: tuple[float, float], low: float, middle: float, high: float, css: str) -> Html:
    """An estimate on a scale that all cells of a column share; the dashed line is 0."""
    axis = Axis(*ends, 6, _CELL - 6)
    return in_cell(
        _CELL,
        line(axis(0), 2, axis(0), 18, "zero"),
        box(min(axis(0), axis(middle)), 9, abs(axis(middle) - axis(0)), 2, css),
        box(axis(low), 7, axis(high) - axis(low), 6, f"range {css}"),
        tag("circle", cx=axis(middle), cy=10, r=4, class_=css),
    )


_LETTER, _GAP = 6.4, 8.0  # pixels
_LEAST = 230.0  # pixels across a picture at least


def plot(
    high: float,
    *shapes: Child,
    title: str,
    below: Sequence[Mark] = (),
    of: str = "",
    left: Sequence[Mark] = (),
    right: Sequence[Mark] = (),
) -> Html:
    """A drawing with words on three sides; words below that might run into others are left out."""
    kept: list[Html] = []
    free = -math.inf
    for x, said in sorted(below):
        share, wide = x / WIDE, _LETTER * len(said)
        side = "first" if share < 0.04 else "last" if share > 0.96 else None  # stands inside
        begins = share * _LEAST - wide * {"first": 0.0, "last": 1.0}.get(side or "", 0.5)
        if begins >= free:
            kept.append(tag("span", said, style=f"left:{short(share * 100)}%", class_=side))
            free = begins + wide + _GAP
    drawn = _beside("left", left), shape(high, *shapes, title=title), _beside("right", right)
    words = tag("div", *kept, class_="below") if kept else None
    what = tag("div", of, class_="of") if of else None
    return tag("div", *drawn, words, what, class_="plot")


def _beside(css: str, marks: Sequence[Mark]) -> Html:
    words = (tag("span", said, style=f"top:{short(y)}px") for y, said in marks)
    return tag("div", *words, class_=css) if marks else NOTHING


def levels(marks: Iterable[Mark]) -> Html:
    return join(*(line(0, y, WIDE, y, "grid") for y, _ in marks))


def stacked(pieces: Sequence[tuple[str, float]], title: str) -> Html:
    """One bar of `(class, share)` each, which can be pointed at."""
    ends = [*itertools.accumulate((WIDE * share for _, share in pieces), initial=0.0)]
    high, seam = 30.0, 1.5
    drawn = [
        box(x, 0, max(0.8, end - x - seam), high, css, data_row=n)
        for n, ((css, _), x, end) in enumerate(zip(pieces, ends, ends[1:], strict=False))
    ]
    return shape(high, *drawn, title=title)


HEAT = 10  # degrees of it, in the legend some of them
HEAT_LEGEND = [(f"heat d{degree}", f"{10 * degree} %") for degree in (1, 4, 7, 10)]


def heat(rows: Iterable[Floats], high: float, wide: float, css: str = "heat") -> Html:
    """Rows of cells so high and wide: each a part of 1; NaN is unknown."""
    drawn: dict[int, list[Box]] = {}
    for n, row in enumerate(rows):
        degrees = np.where(row > 0, np.clip(np.rint(HEAT * row), 1, HEAT), np.isnan(row) * -1)
        cuts = [0, *(np.flatnonzero(np.diff(degrees)) + 1).tolist(), len(degrees)]
        for first, end in itertools.pairwise(cuts):
            if (degree := int(degrees[first])) != 0:
                place = (first * wide, n * high + 1, (end - first) * wide, high - 2)
                drawn.setdefault(degree, []).append(place)
    return join(*(boxes(at, f"{css} d{n}" if n > 0 else "unknown") for n, at in drawn.items()))


_MOST_COLUMNS = 240
_FAR = 1.6
_LONGER = 1.0001
T = TypeVar("T")


def groups(items: Sequence[T]) -> list[Sequence[T]]:
    """The items in so few groups of neighbours that each can be drawn."""
    size = max(1, -(-len(items) // _MOST_COLUMNS))
    return [items[first : first + size] for first in range(0, len(items), size)]


def said_of(bars: Sequence[Sequence[object]], of: str, is_cut: bool) -> str:
    """What is said of bars that are of several, and where any is longer than the scale."""
    most = len(bars[0])
    grouped = f" Each bar is the mean of up to {most} {of}s." if most > 1 else ""
    return grouped + " Bars with a mark on top are longer than the scale." * is_cut


def numbered(numbers: Sequence[int]) -> str:
    """`7`, or `7 to 9`."""
    return units.between(str(numbers[0]), str(numbers[-1]))


def scale_end(totals: Sequence[float], usual: Sequence[float] = ()) -> float:
    """Where the scale of bars ends: with the longest, unless it is far longer than nearly all."""
    cap = _FAR * float(np.quantile(usual or totals, 0.98))
    return min(max(totals), cap) * 1.04 or 1.0


@dataclass(frozen=True)
class ChartColumns:
    """Columns side by side, of `of`; they are no wider than of `fewest`."""

    names: Sequence[str]
    of: str
    high: float
    fewest: int = 12

    @property
    def wide(self) -> float:
        return WIDE / max(self.fewest, len(self.names))

    def bars(self, parts: Mapping[str, Sequence[float]], end: float, *over: Child, title: str,
             show: Callable[[float], str] | None = None) -> Html:  # fmt: skip
        """Parts by class, stacked, on a scale to `end`; seconds, unless `show` writes them."""
        y, gap, feet = Axis(0, end, self.high, 0), 0.15 * self.wide, [0.0] * len(self.names)
        drawn = []
        for css, lengths in parts.items():
            placed = []
            for n, length in enumerate(lengths):
                foot, feet[n] = feet[n], feet[n] + length
                if foot < (head := min(feet[n], end)):
                    x, wide = n * self.wide + gap / 2, self.wide - gap
                    placed.append((x, y(head), wide, y(foot) - y(head)))
            drawn.append(boxes(placed, css))
        cut = (n for n, head in enumerate(feet) if head > _LONGER * end)
        drawn.append(boxes(((n * self.wide, 0, self.wide, 2.5) for n in cut), "cut"))
        values = ticks(0, end, 4)
        show = show or seconds_of(values)
        left = [(y(value), show(value)) for value in values]
        return self.plot(levels(left), *drawn, *over, title=title, left=left)

    def plot(self, *children: Child, title: str, left: Sequence[Mark]) -> Html:
        """The picture: below its columns the first names of some; each can be pointed at."""
        firsts = enumerate(name.partition(" ")[0] for name in self.names)
        below = [((n + 0.5) * self.wide, name) for n, name in firsts if name]
        base = line(0, self.high, WIDE, self.high, "base")
        places = hits((n * self.wide, 0, self.wide, self.high) for n in range(len(self.names)))
        shapes = *children, base, places
        return plot(self.high, *shapes, title=title, below=below, of=self.of, left=left)


class Html(str):
    """Markup that is finished. Joining it with anything else gives a plain string again."""

    __slots__ = ()


NOTHING = Html("")
Child = str | int | float | None

# What no page may hold (HTML 13.2.3.5), and signs that turn the reading direction of what follows.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]"
)
_VOID = frozenset({"meta", "link", "input", "br", "hr", "img"})
_CODE = re.compile("`([^`]+)`")
_LONG = re.compile(r"[^\s\u200b]{23}[^\s\u200b/=.,:_-]?[/=.,:_-]?(?=\S)")
_UNIT = re.compile("(?<=[0-9]) (?=[%$µA-Za-z])")
_SYMBOL = re.compile("τ_(old|ref|step|[A-Z])")


def text(value: Child) -> Html:
    """Escaped text, in attributes too. None is nothing."""
    if value is None:
        return NOTHING
    if isinstance(value, Html):
        return value
    return Html(html.escape(_CONTROLS.sub("\N{REPLACEMENT CHARACTER}", str(value))))


def prose(value: str) -> Html:
    """Text with `τ_R` and its index, code between backticks, and places to break long words at."""
    if isinstance(value, Html):
        return value
    coded = _CODE.sub(r"<code>\1</code>", text(_LONG.sub("\\g<0>\u200b", value)))
    return Html(_SYMBOL.sub(r"τ<sub>\1</sub>", coded).replace("\u200b", "<wbr>"))


def sentence(value: str) -> Html:
    """A sentence of a report, in which a number and its unit stay on one line."""
    return value if isinstance(value, Html) else prose(_UNIT.sub("\N{NO-BREAK SPACE}", value))


def join(*children: Child) -> Html:
    return Html("".join(map(text, children)))


def tag(name: str, *children: Child, **attributes: Any) -> Html:
    """An element; `class_` is `class`. None or False leaves an attribute out, True has no value."""
    shown = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        attribute = key.rstrip("_").replace("_", "-")
        said = text(short(value) if isinstance(value, float) else value)
        shown.append(f" {attribute}" if value is True else f' {attribute}="{said}"')
    head = f"<{name}{''.join(shown)}>"
    return Html(head if name in _VOID else f"{head}{join(*children)}</{name}>")


def short(value: float) -> str:
    """A coordinate with two decimals at most: a page has many."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
