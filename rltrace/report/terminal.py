"""The report on a terminal (rich): the verdict first, then what it rests on."""

from __future__ import annotations

import re
from textwrap import wrap

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rltrace.analysis.summary import Summary
from rltrace.analysis.typical import PARTS
from rltrace.analysis.walls.wall import LIKELY, WEAK
from rltrace.report import units, verdict
from rltrace.report.colours import COLOURS
from rltrace.report.layout import Grid, Section
from rltrace.report.sections import sections
from rltrace.trace.printable import visible
from rltrace.trace.vocabulary import Stage, word

_VERDICT_COLOURS = {LIKELY: "bold green", WEAK: "bold yellow"}
_SHADES = " ░▒▓█"
_NAME_WIDTH = 13
_WIDEST = 100
_LONGEST_ID = 50
_WORD = re.compile(r"\S{40,}")
_ENDLESS, _LONGEST_WORD = 100, 60  # cells: a word that takes more is cut to so many
_GAP = 3  # between columns
_NO_BREAK = "\N{NO-BREAK SPACE}"


def render(summary: Summary, console: Console, own_figures: bool = False) -> None:
    """Prints the report, at most 100 columns wide; `own_figures` as in `sections`."""
    width = min(console.width, _WIDEST)
    console.print(_verdict(summary, width))
    for line in verdict.facts(summary):
        _say(console, line, width, "dim")
    for line in verdict.warnings(summary):
        _say(console, f"! {line}", width, "bold red", hanging="  ")
    for section in sections(summary, own_figures):
        _print(section, console, width)
        if section.title.startswith("Where"):
            _print_waterfall(summary, console, width)


def show(section: Section, console: Console) -> None:
    """Prints one section on its own, at most 100 columns wide."""
    _print(section, console, min(console.width, _WIDEST))


def _verdict(summary: Summary, width: int) -> Panel:
    found = summary.verdict
    style = _VERDICT_COLOURS.get(found.confidence, "bold")
    if found.alarms:
        style = "bold red"
    inner = width - 4
    text = Text("\n".join(_wrapped(verdict.headline(summary), inner)), style=style)
    for sentence in verdict.evidence(summary):
        for line in _wrapped(sentence, inner):
            text.append(f"\n{line}", style="not bold default")
    return Panel(
        text,
        title=Text(f"rltrace report · {visible(summary.run.id, _LONGEST_ID)}"),
        title_align="left",
        width=width,
        padding=(0, 1),
    )


def _print(section: Section, console: Console, width: int) -> None:
    console.print()
    _say(console, section.title, width, "bold")
    for line in section.lines:
        _say(console, line, width, indent="  ")
    if section.grid is not None:
        grid, below = _fitted(section.grid, width)
        console.print(Padding(_table(grid), (0, 0, 0, 1), expand=False), width=width)
        for line in below:
            console.print(Text(line), no_wrap=True, soft_wrap=True)
    for note in section.notes:
        _say(console, note, width, "dim", indent="  ")


def _say(
    console: Console, text: str, width: int, style: str = "", indent: str = "", hanging: str = ""
) -> None:
    """Prints a paragraph; wrapped here, since rich would fill its lines up with spaces."""
    for line in _wrapped(text, width, indent, indent + hanging):
        console.print(Text(line, style=style), no_wrap=True, soft_wrap=True)


def _shown(text: str) -> str:
    """Text with names of the job's in it, none of them a screen long."""
    return _WORD.sub(_cut, visible(text))


def _cut(found: re.Match[str]) -> str:
    word = found.group()
    wide = cell_len(word)
    return word if wide <= _ENDLESS else visible(word, _LONGEST_WORD * len(word) // wide)


def _wrapped(text: str, width: int, first: str = "", later: str = "") -> list[str]:
    """Lines of at most `width` characters. A number and its unit stay on one line."""
    together = re.sub(r"(?<=\d) (?=[%$a-zµA-Z])", _NO_BREAK, _shown(text))
    lines = wrap(together, width, initial_indent=first, subsequent_indent=later)
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
    """The width of a column's longest word, or of its longest cell where it is not wrapped."""
    column = grid.columns[place]
    texts = [column.title, *(row[place] for row in grid.rows)]
    parts = texts if column.right else [word for text in texts for word in text.split()]
    return max(map(len, parts), default=0)


def _table(grid: Grid) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for column in grid.columns:
        table.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=column.right or column.copied,
        )
    for row in grid.rows:
        cells = [
            "\n".join(cell.split()) if column.copied else cell
            for column, cell in zip(grid.columns, row, strict=True)
        ]
        table.add_row(*cells, style=COLOURS.get(row[0], ""))
    return table


def _print_waterfall(summary: Summary, console: Console, width: int) -> None:
    """When each stage ran in a typical step: a line for each, its length the step's."""
    typical = summary.typical
    if typical is None or not typical.busy:
        return
    columns = min(width - _NAME_WIDTH - 4, 80)
    name = "the run" if summary.steps.whole_run else f"step {typical.step}, of median length"
    console.print()
    title = f"When each stage ran in {name} ({units.seconds(typical.seconds)})"
    _say(console, title, width, "bold")
    for stage in (word(s) for s in Stage):
        if stage in typical.busy:
            line = Text(f"  {stage:<{_NAME_WIDTH}}")
            line.append(_strip(typical.busy[stage], columns), style=COLOURS.get(stage, ""))
            line.append("▏", style="dim")
            console.print(line, no_wrap=True, soft_wrap=True)


def _strip(busy: tuple[float, ...], columns: int) -> str:
    """`PARTS` parts drawn as `columns` cells, darker where the stage ran longer."""
    cells = []
    for i in range(columns):
        parts = busy[
            i * PARTS // columns : max((i + 1) * PARTS // columns, i * PARTS // columns + 1)
        ]
        shade = sum(parts) / len(parts)
        level = round(shade * (len(_SHADES) - 1))
        cells.append(_SHADES[max(level, 1) if shade > 0 else 0])
    return "".join(cells)
