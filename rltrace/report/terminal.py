"""The report on a terminal (rich): the verdict first, then what it rests on."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

from rltrace.analysis.summary import Summary
from rltrace.analysis.walls.wall import LIKELY, WEAK
from rltrace.report import run_lines, units, verdict
from rltrace.report.printed import COLOURS, WIDEST, say, show, wrapped
from rltrace.report.sections import sections
from rltrace.report.whole_file import write_file
from rltrace.trace.printable import visible
from rltrace.trace.vocabulary import Stage, word

_VERDICT_COLOURS = {LIKELY: "bold green", WEAK: "bold yellow"}
_SHADES = " ░▒▓█"
_NAME_WIDTH = 13
_LONGEST_ID = 50


def render(summary: Summary, console: Console, own_figures: bool = False) -> None:
    """Prints the report, at most 100 columns wide; `own_figures` as in `sections`."""
    width = min(console.width, WIDEST)
    console.print(_verdict(summary, width))
    for line in run_lines.facts(summary):
        say(console, line, width, "dim")
    for line in run_lines.warnings(summary):
        say(console, f"! {line}", width, "bold red", hanging="  ")
    for section in sections(summary, own_figures):
        show(section, console)
        if section.title.startswith("Where"):
            _print_waterfall(summary, console, width)


def _verdict(summary: Summary, width: int) -> Panel:
    found = summary.verdict
    colour = _VERDICT_COLOURS.get(found.confidence, "bold")
    style = "bold red" if found.alarms else colour
    inner = width - 4
    text = Text("\n".join(wrapped(verdict.headline(summary), inner)), style=style)
    for sentence in verdict.evidence(summary):
        for line in wrapped(sentence, inner):
            text.append(f"\n{line}", style="not bold default")
    return Panel(
        text,
        title=Text(f"rltrace report · {visible(summary.run.id, _LONGEST_ID)}"),
        title_align="left",
        width=width,
        padding=(0, 1),
    )


def _print_waterfall(summary: Summary, console: Console, width: int) -> None:
    """When each stage ran in a typical step: a line for each, its length the step's."""
    typical = summary.typical_step
    if typical is None or not typical.busy_shares:
        return
    columns = min(width - _NAME_WIDTH - 4, 80)
    name = "the run" if summary.steps.whole_run else f"step {typical.step}, of median length"
    console.print()
    title = f"When each stage ran in {name} ({units.seconds(typical.step_s)})"
    say(console, title, width, "bold")
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
_WEB_FONT = re.compile(r",\s*url\([^)]*\) format\([^)]*\)")
"""Of rich's, which whoever opens the picture would ask a host in the network for."""


def write_svg(draw: Callable[[Console], None], path: Path) -> None:
    """Writes what `draw` prints as a picture. Errors: `RltraceError` when the file cannot be
    written."""
    unseen, width = io.StringIO(), _PICTURE_WIDTH
    console = Console(
        record=True, width=width, file=unseen, force_terminal=True, color_system="truecolor"
    )
    draw(console)
    drawn = _WEB_FONT.sub("", console.export_svg(title="rltrace report", theme=DIMMED_MONOKAI))
    write_file(path, drawn.encode())
