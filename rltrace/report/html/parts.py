"""What a page is made of: sections, tables, and pictures that have their numbers as a table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from rltrace.report.html.markup import NOTHING, Child, Html, join, prose, sentence, tag
from rltrace.report.layout import Bar, Grid, Section
from rltrace.report.units import UNKNOWN

_BLOCK = 8.0  # pixels of a character in a bar
_SHORT = 14
"""A table of numbers with at most so many rows is printed; longer ones only where opened."""

LAID_OUT = " Laid out from a log of durations: what ran when within a step is not known."
"""Said of pictures of an imported run."""

Cell = Callable[[int, int, str], Child]
"""What stands in a cell: row, column and the text that it would have."""


@dataclass(frozen=True)
class Part:
    """A section of the page and its entry in the table of contents."""

    key: str
    short: str
    body: Html


def part(key: str, short: str, title: str, *children: Child) -> Part:
    """A section under its own heading."""
    heading = tag("h2", prose(title), id=f"{key}-heading")
    body = tag("section", heading, *children, id=key, aria_labelledby=f"{key}-heading")
    return Part(key, short, body)


def of_section(section: Section, key: str, short: str, *pictures: Child,
               cell: Cell | None = None, below: Child = None) -> Part:  # fmt: skip
    """A section of the report as it is on a terminal, with pictures between lines and table, and
    something more below its notes."""
    return part(key, short, section.title, told(section, *pictures, cell=cell), below)


def told(section: Section, *pictures: Child, cell: Cell | None = None) -> Html:
    """The content of a section without its heading."""
    return join(
        lines(section.lines),
        *pictures,
        table(section.grid, cell) if section.grid else None,
        notes(section.notes),
    )


def under(section: Section, *pictures: Child) -> Html:
    return tag("div", tag("h3", prose(section.title)), told(section, *pictures), class_="under")


def lines(sentences: Sequence[str]) -> Html:
    return join(*(tag("p", sentence(one)) for one in sentences))


def notes(sentences: Sequence[str]) -> Html:
    """What stands below in a smaller voice."""
    return tag("div", lines(sentences), class_="notes") if sentences else NOTHING


def unknown(key: str, short: str, why: str) -> Part:
    """A section of which nothing can be told."""
    return part(key, short, short, missing(why))


def missing(why: str) -> Html:
    return tag("p", tag("span", "cannot tell", class_="chip"), " ", prose(why),
               class_="missing")  # fmt: skip


def table(grid: Grid, cell: Cell | None = None) -> Html:
    """A table whose first column names its rows."""
    head = [
        tag("th", prose(column.title), scope="col", class_="right" if column.right else None)
        for column in grid.columns
    ]
    body = []
    for n, row in enumerate(grid.rows):
        cells = []
        for m, (column, said) in enumerate(zip(grid.columns, row, strict=True)):
            shown = cell(n, m, said) if cell else None
            if shown is None:
                shown = tag("code", said) if column.copied and said != UNKNOWN else _shown(said)
            kind = "right" if column.right else "copied" if column.copied else None
            first = m == 0
            cells.append(
                tag("th" if first else "td", shown, scope="row" if first else None, class_=kind)
            )
        body.append(tag("tr", *cells))
    return _scrolling(tag("table", tag("thead", tag("tr", *head)), tag("tbody", *body)))


def _shown(said: str) -> Html:
    """The text of a cell; a bar of block characters is drawn."""
    if not isinstance(said, Bar) or not said:
        return prose(said)
    wide = said.length * _BLOCK
    bar = tag("rect", x=0, y=4, width=wide, height=12, class_="bar")
    return tag("svg", bar, width=f"{wide:.1f}", height="20", class_="in-cell", aria_hidden="true")


def picture(
    key: str,
    title: str,
    drawing: Html,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    says: str,
    around: Html = NOTHING,
) -> Html:
    """A picture with its caption, and its numbers below it to be opened. What is drawn with
    `data-row="n"` is told by row n of the table when it is pointed at. `says` stands below the
    title, `around` between that and the drawing."""
    caption = tag("figcaption", tag("h3", prose(title)), tag("p", prose(says)))
    head = tag("tr", *(tag("th", prose(column), scope="col") for column in columns))
    body = (
        tag("tr", tag("th", prose(row[0]), scope="row"), *(tag("td", prose(c)) for c in row[1:]))
        for row in rows
    )
    numbers = tag("table", tag("thead", head), tag("tbody", *body), class_="numbers")
    opened = tag(
        "details",
        tag("summary", f"Numbers: {title[:1].lower()}{title[1:]}"),
        _scrolling(numbers),
        class_="short" if len(rows) <= _SHORT else None,
    )
    shown = tag("div", drawing, class_="picture", tabindex="0", role="group",
                aria_label=f"{title}. Arrow keys read its values.")  # fmt: skip
    return tag("figure", caption, around, shown, opened, id=key)


def legend(entries: Sequence[tuple[str, str]]) -> Html:
    """`(css class, word)` each."""
    keys = (tag("li", tag("i", class_=f"key {css}"), prose(word)) for css, word in entries)
    return tag("ul", *keys, class_="legend")


def _scrolling(content: Html) -> Html:
    return tag("div", content, class_="scroll", tabindex="0", role="group", aria_label="table")


UNTRACED = "untraced"
COLOURED = (
    "rollout", "env", "reward", "reference", "logprob", "value", "train", "sync", "switch",
    "wait", "data", "checkpoint", "eval", "other", UNTRACED,
)  # fmt: skip
"""All that have a colour, in the order in which they are stacked. The style sheet knows them by
these names."""


def css(stage: str) -> str:
    """The class of a stage; of one that a later version added, that of `other`."""
    return f"s-{stage if stage in COLOURED else 'other'}"


def stage_legend(stages: Collection[str]) -> Html:
    """A legend of these stages in the order of stacking."""
    return legend([(css(stage), stage) for stage in COLOURED if stage in stages])
