"""What the live view is made of: blocks of lines, bars and columns of characters."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.text import Text

_FULL, _SOFT, _EMPTY = "█", "▒", "·"
_SPARKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Block:
    """A title (None: the lines speak for themselves) and lines, the most telling first."""

    title: Text | None
    lines: list[Text] = field(default_factory=list)

    @property
    def height(self) -> int:
        """How many lines it would like to have."""
        return len(self.lines) + (self.title is not None)

    def cut(self, height: int) -> list[Text]:
        """Its lines for so much room; what was left out is said."""
        head = [] if self.title is None else [self.title]
        room = height - len(head)
        if len(self.lines) <= room:
            return [*head, *self.lines]
        if room < 1:
            return []
        more = len(self.lines) - room + 1
        return [*head, *self.lines[: room - 1], Text(f"  … {more} more", style="dim")]


def heading(text: str) -> Text:
    """The title of a block."""
    return Text(text, style="bold")


def bar(full: float, soft: float, cells: int, style: str) -> Text:
    """`cells` characters for a whole: `full` of it strong, `soft` pale, the rest empty."""
    strong = min(cells, round(full * cells))
    pale = min(cells, round((full + soft) * cells)) - strong
    if full > 0 and not strong and not pale:
        pale = 1
    line = Text(_FULL * strong, style=style)
    line.append(_SOFT * pale, style=style)
    line.append(_EMPTY * (cells - strong - pale), style="dim")
    return line


def sparks(values: list[float]) -> str:
    """A column for each value, the largest full."""
    most = max(values, default=0)
    if len(values) < 2 or not most:
        return ""
    return " " + "".join(_SPARKS[min(7, int(8 * value / most))] for value in values)
