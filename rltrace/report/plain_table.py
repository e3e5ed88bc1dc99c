"""Tables of which every row is one line: cut where a terminal ends, whole where there is none."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console

GAP = 2
"""Spaces between two columns."""


def print_lines(
    console: Console,
    names: Sequence[str],
    rows: Sequence[Sequence[Text | str]],
    right: Collection[int] = (),
) -> None:
    """Prints rows below the names of their columns, if they have any; the columns in `right` (by
    place) are aligned there."""
    head = [Text(name, style="bold") for name in names]
    lines = [head] if any(names) else []
    lines += [[Text(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    widths = [max(cell.cell_len for cell in column) for column in zip(*lines, strict=True)]
    for cells in lines:
        line = Text()
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True)):
            space = " " * (width - cell.cell_len)
            line.append(" " * GAP if place else "")
            line.append(space if place in right else "")
            line.append_text(cell)
            line.append("" if place in right else space)
        line.rstrip()
        if console.is_terminal:
            line.truncate(console.width, overflow="ellipsis")
        console.print(line, no_wrap=True, soft_wrap=True)
