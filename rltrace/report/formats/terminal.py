"""The full report on a terminal (rich), and any report as an SVG picture."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

from rltrace.analysis.summary import Summary
from rltrace.report import screen, units
from rltrace.report.formats.terminal_tables import COLOURS, WIDEST, say, show
from rltrace.report.full_report import STAGES, sections
from rltrace.trace.untrusted_files import write_given
from rltrace.trace.vocabulary import Stage, word

_SHADES = " ░▒▓█"
_NAME_WIDTH = 13


def render(summary: Summary, console: Console, own_figures: bool = False) -> None:
    """Prints the full report, at most 100 columns wide; `own_figures` as in `sections`."""
    width = min(console.width, WIDEST)
    for line in screen.top(summary, width):
        console.print(line, no_wrap=True, soft_wrap=True)
    for question, parts in sections(summary, own_figures):
        console.print()
        say(console, question.upper(), width, "bold reverse")
        for section in parts:
            show(section, console)
            if section.title == STAGES:
                _print_waterfall(summary, console, width)


def _print_waterfall(summary: Summary, console: Console, width: int) -> None:
    typical = summary.typical_step
    if typical is None or not typical.busy_shares:
        return
    columns = min(width - _NAME_WIDTH - 4, 80)
    name = "the run" if summary.steps.whole_run else f"step {typical.step}, of median length"
    console.print()
    title = f"When each stage ran in {name} ({units.seconds(typical.step_s)})"
    say(console, title, width, indent="  ")
    for stage in (word(s) for s in Stage):
        if stage in typical.busy_shares:
            line = Text(f"  {stage:<{_NAME_WIDTH}}")
            line.append(_strip(typical.busy_shares[stage], columns), style=COLOURS.get(stage, ""))
            line.append("▏", style="dim")
            console.print(line, no_wrap=True, soft_wrap=True)


def _strip(busy: tuple[float, ...], columns: int) -> str:
    """Equal parts drawn as `columns` cells, darker where the stage ran longer."""
    cells = []
    for since, until in pairwise(i * len(busy) // columns for i in range(columns + 1)):
        parts = busy[since : max(until, since + 1)]
        shade = sum(parts) / len(parts)
        cells.append(_SHADES[max(round(shade * (len(_SHADES) - 1)), int(shade > 0))])
    return "".join(cells)


_PICTURE_WIDTH = 88
# Of rich's, which whoever opens the picture would ask a host in the network for.
_WEB_FONT = re.compile(r",\s*url\([^)]*\) format\([^)]*\)")


def write_svg(draw: Callable[[Console], None], path: Path) -> None:
    """Writes what `draw` prints as a picture. Errors: `RltraceError` where that fails."""
    unseen, width = io.StringIO(), _PICTURE_WIDTH
    console = Console(
        record=True, width=width, file=unseen, force_terminal=True, color_system="truecolor"
    )
    draw(console)
    drawn = _WEB_FONT.sub("", console.export_svg(title="rltrace report", theme=DIMMED_MONOKAI))
    write_given(path, drawn.encode())
