"""What a page is made of: parts, tables, and pictures that have their numbers as a table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from rltrace.report.html import drawing as draw
from rltrace.report.html.drawing import NOTHING, Child, Html, join, prose, sentence, tag
from rltrace.report.layout import Bar, Grid, Section
from rltrace.report.screen import UNTRACED
from rltrace.report.units import UNKNOWN

_BLOCK = 8.0  # pixels of a character in a bar
_CARDS = 3  # a table of more columns is a card for each row on a phone


def part(key: str, title: str, *children: Child) -> Html:
    heading = tag("h3", prose(title), id=f"{key}-heading")
    return tag("section", heading, *children, id=key, aria_labelledby=f"{key}-heading")


def of_section(key: str, section: Section, *pictures: Child, below: Child = None) -> Html:
    """A section as on a terminal, with pictures before its table, and more below its notes."""
    return part(key, section.title, told(section, *pictures), below)


def told(section: Section, *pictures: Child) -> Html:
    shown = table(section.grid) if section.grid else None
    return join(lines(section.lines), *pictures, shown, notes(section.notes))


def with_rows(section: Section, row: Callable[[tuple[str, ...]], tuple[str, ...]]) -> Section:
    if section.grid is None:
        return section
    rows = tuple(map(row, section.grid.rows))
    return replace(section, grid=replace(section.grid, rows=rows))


def under(section: Section, *pictures: Child) -> Html:
    return tag("div", tag("h4", prose(section.title)), told(section, *pictures), class_="under")


def lines(sentences: Sequence[str]) -> Html:
    return join(*(tag("p", sentence(one)) for one in sentences))


def notes(sentences: Sequence[str]) -> Html:
    return tag("div", lines(sentences), class_="notes") if sentences else NOTHING


def unknown(key: str, short: str, why: str) -> Html:
    return tag("p", tag("b", short), ": cannot tell. ", prose(why), class_="missing", id=key)


def listed(said: Iterable[tuple[str, Html]]) -> Html:
    """Names, and what is said of each."""
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", one)) for name, one in said))


def copied(said: str) -> Html:
    """What is there to be copied: by its button where there are scripts, else by one click."""
    button = tag("button", "Copy", type="button", hidden=True, aria_label=f"Copy {said}")
    return tag("span", tag("code", prose(said)), button, class_="copied")


def table(grid: Grid) -> Html:
    """A table whose first column names its rows. Cells of `Html` stand as they are."""
    sides = ["right" if column.right else None for column in grid.columns]
    named = zip(grid.columns, sides, strict=True)
    head = (tag("th", prose(one.title), scope="col", class_=side) for one, side in named)
    body = []
    for name, *row in grid.rows:
        cells = (
            tag("td", copied(said) if column.copied and said != UNKNOWN else _shown(said),
                class_=f"{side} extra" if column.least_width else side,
                data_of=None if not said or isinstance(said, Bar) else column.title)
            for said, column, side in zip(row, grid.columns[1:], sides[1:], strict=True)
        )  # fmt: skip
        body.append(tag("tr", tag("th", _shown(name), scope="row"), *cells))
    css = "cards" if len(grid.columns) > _CARDS else None
    return tag("table", tag("thead", tag("tr", *head)), tag("tbody", *body), class_=css)


def _shown(said: str) -> Html:
    """The text of a cell; a bar of block characters is drawn."""
    if not isinstance(said, Bar) or not said:
        return sentence(said)
    wide = said.length * _BLOCK
    return draw.in_cell(wide, draw.box(0, 4, wide, 12, "bar"))


def picture(
    key: str,
    title: str,
    drawing: Html,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    says: str,
    around: Html = NOTHING,
) -> Html:
    """A picture with its caption, and its numbers to be opened: `data-row="n"` points to row n.
    `says` stands below the title, then `around`."""
    caption = tag("figcaption", tag("h4", prose(title)), tag("p", prose(says)))
    head = tag("tr", *(tag("th", prose(column), scope="col") for column in columns))
    body = (
        tag("tr", tag("th", prose(name), scope="row"), *(tag("td", prose(said)) for said in more))
        for name, *more in rows
    )
    numbers = tag("table", tag("thead", head), tag("tbody", *body), class_="numbers")
    scrolling = tag("div", numbers, class_="scroll", tabindex="0", role="group", aria_label=title)
    opened = tag("details", tag("summary", "Numbers"), scrolling)
    shown = tag("div", drawing, class_="picture", tabindex="0", role="group",
                aria_label=f"{title}. Arrow keys read its values.")  # fmt: skip
    return tag("figure", caption, around, shown, opened, id=key)


def legend(entries: Sequence[tuple[str, str]]) -> Html:
    """`(css class, word)` each."""
    keys = (tag("li", tag("i", class_=f"key {css}"), prose(word)) for css, word in entries)
    return tag("ul", *keys, class_="legend")


def shares(
    pieces: Sequence[tuple[tuple[str, float], tuple[str, ...]]], title: str, least: float = 0.0
) -> Html:
    """One bar of `(class, share)`, and below it the names and figures of pieces above `least`."""
    named = []
    for (css, share), (name, *figures) in pieces:
        if share > least:
            words = tag("span", prose(name)), *(tag("b", sentence(one)) for one in figures)
            named.append(tag("li", tag("i", class_=f"key {css}"), *words))
    return join(draw.stacked([one for one, _ in pieces], title), tag("ul", *named, class_="shares"))


COLOURED = (
    "rollout", "env", "reward", "reference", "logprob", "value", "train", "sync", "switch",
    "wait", "data", "checkpoint", "eval", "other", UNTRACED,
)  # fmt: skip
"""All that have a colour, by their names in the style sheet, in the order of stacking."""


def css(stage: str) -> str:
    """The class of a stage; of one that a later version added, that of `other`."""
    return f"s-{stage if stage in COLOURED else 'other'}"


def stage_legend(stages: Collection[str]) -> Html:
    return legend([(css(stage), stage) for stage in COLOURED if stage in stages])
