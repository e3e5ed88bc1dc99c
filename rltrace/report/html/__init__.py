"""The report as a page: one file that opens from disk and asks nothing of any network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rltrace.report.html.page import render
from rltrace.report.whole_file import write_file

if TYPE_CHECKING:
    from rltrace.analysis.summary import Summary
    from rltrace.trace.run import Run

__all__ = ["render", "write"]


def write(run: Run, summary: Summary, path: Path, own_figures: bool = False) -> int:
    """Writes the page; its size in bytes. `own_figures` as in `sections`. Errors: `RltraceError`
    when the file cannot be written."""
    page = render(run, summary, own_figures).encode("utf-8", errors="replace")
    write_file(path, page)
    return len(page)
