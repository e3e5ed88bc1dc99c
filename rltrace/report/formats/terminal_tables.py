"""Sections, and tables of one line a row, on a terminal (rich)."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from textwrap import wrap

from rich import box
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rltrace.report import units
from rltrace.report.layout import Grid, Section
from rltrace.trace.safe_text import visible

COLOURS = {"rollout": "blue", "env": "cyan", "reward": "green", "reference": "bright_magenta"}
COLOURS |= {"logprob": "magenta", "value": "bright_red", "train": "red", "sync": "yellow"}
COLOURS |= {"switch": "bright_yellow", "wait": "bright_black"}
WIDEST = 100  # columns of a page at most
_WORD = re.compile(r"\S{40,}")
_ENDLESS, _LONGEST_WORD = 100, 60  # cells: a word that takes more is cut to so many
_GAP = 3  # between columns
GAP = 2  # spaces between two columns of `print_lines`
_NO_BREAK = "\N{NO-BREAK SPACE}"


def show(section: Section, console: Console) -> None:
    """Prints a section, at most `WIDEST` columns wide."""
    width = min(console.width, WIDEST)
    if section.title:
        console.print()
        say(console, section.title, width, "bold")
    for line in section.lines:
        say(console, line, width, "bold red" * line.startswith(("!", "✗")), "  ")
    if section.grid is not None:
        grid, below = _fitted(section.grid, width)
        console.print(Padding(_table(grid), (0, 0, 0, 1), expand=False), width=width)
        for line in below:
            console.print(Text(line), no_wrap=True, soft_wrap=True)
    for note in section.notes:
        say(console, note, width, "dim", indent="  ")


def say(console: Console, text: str, width: int, style: str = "", indent: str = "") -> None:
    """Prints a paragraph; wrapped here, since rich would fill its lines up with spaces."""
    for line in wrapped(text, width, indent, indent):
        console.print(Text(line, style=style), no_wrap=True, soft_wrap=True)


def _shown(text: str) -> str:
    """Text with names of the job's in it, none of them a screen long."""

    def cut(found: re.Match[str]) -> str:
        word, wide = found[0], cell_len(found[0])
        return word if wide <= _ENDLESS else visible(word, _LONGEST_WORD * len(word) // wide)

    return _WORD.sub(cut, visible(text))


def wrapped(text: str, width: int, first: str = "", later: str = "") -> list[str]:
    """Lines of at most `width` characters. A number and its unit stay on one line, and no word is
    broken: it may be an option to be copied."""
    together = re.sub(r"(?<=\d) (?=[%$a-zµA-Z])", _NO_BREAK, _shown(text))
    lines = wrap(together, width, initial_indent=first, subsequent_indent=later,
                 break_long_words=False, break_on_hyphens=False)  # fmt: skip
    return [line.replace(_NO_BREAK, " ") for line in lines]


def _fitted(grid: Grid, width: int) -> tuple[Grid, list[str]]:
    """The columns that have room, and lines below the table for one to be copied that has none."""
    grid = Grid(grid.columns, tuple(tuple(map(_shown, row)) for row in grid.rows))
    shown = [i for i, column in enumerate(grid.columns) if column.least_width <= width]
    below = []
    if sum(_least_width(grid, i) + _GAP for i in shown) > width - 1:
        moved = [i for i in shown if grid.columns[i].copied]
        shown = [i for i in shown if i not in moved]
        for i in moved:
            for row in (row for row in grid.rows if row[i] != units.UNKNOWN):
                below += [f"  {row[0]}:", *(f"    {word}" for word in row[i].split())]
    columns = tuple(grid.columns[i] for i in shown)
    return Grid(columns, tuple(tuple(row[i] for i in shown) for row in grid.rows)), below


def _least_width(grid: Grid, place: int) -> int:
    column = grid.columns[place]
    texts = [column.title, *(row[place] for row in grid.rows)]
    parts = texts if column.right else " ".join(texts).split()
    return max(map(len, parts), default=0)


def _table(grid: Grid) -> Table:
    head = any(column.title for column in grid.columns)
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, show_header=head, header_style="bold"
    )
    for column in grid.columns:
        justify: JustifyMethod = "right" if column.right else "left"
        table.add_column(column.title, justify=justify, no_wrap=column.right or column.copied)
    for row in grid.rows:
        cells = [
            "\n".join(cell.split()) if column.copied else cell
            for column, cell in zip(grid.columns, row, strict=True)
        ]
        table.add_row(*cells, style=COLOURS.get(row[0], ""))
    return table


def print_lines(
    console: Console,
    names: Sequence[str],
    rows: Sequence[Sequence[Text | str]],
    right: Collection[int] = (),
) -> None:
    """A line a row below the names, if any; the columns in `right` (by place) are aligned there."""
    head = [Text(name, style="bold") for name in names]
    lines = [head] if any(names) else []
    lines += [[Text(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    widths = [max(cell.cell_len for cell in column) for column in zip(*lines, strict=True)]
    for cells in lines:
        line = Text()
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True)):
            space = " " * (width - cell.cell_len)
            line.append(" " * GAP * bool(place) + space * (place in right))
            line.append_text(cell).append(space * (place not in right))
        line.rstrip()
        if console.is_terminal:
            line.truncate(console.width, overflow="ellipsis")
        console.print(line, no_wrap=True, soft_wrap=True)
