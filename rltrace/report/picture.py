"""The terminal report as a picture, for a README, an issue or a chat."""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI

from rltrace.analysis.summary import Summary
from rltrace.report import terminal
from rltrace.report.whole_file import write_file

_WIDTH = 88
_WEB_FONT = re.compile(r",\s*url\([^)]*\) format\([^)]*\)")
"""Of rich's, which whoever opens the picture would ask a host in the network for."""


def write_svg(summary: Summary, path: Path, own_figures: bool = False) -> None:
    """Writes the report as SVG; `own_figures` as in `sections`. Errors: `RltraceError` when the
    file cannot be written."""
    console = Console(
        record=True, width=_WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    terminal.render(summary, console, own_figures)
    drawn = _WEB_FONT.sub("", console.export_svg(title="rltrace report", theme=DIMMED_MONOKAI))
    write_file(path, drawn.encode())
