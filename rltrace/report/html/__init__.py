"""The report as a page: one file that opens from disk and asks nothing of any network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rltrace.report.html.page import render
from rltrace.trace.errors import RltraceError
from rltrace.trace.written_files import written

if TYPE_CHECKING:
    from rltrace.analysis.summary import Summary
    from rltrace.trace.run import Run

__all__ = ["render", "write"]


def write(run: Run, summary: Summary, path: Path, own_figures: bool = False) -> int:
    """Writes the page; its size in bytes. `own_figures` as in `sections`. Errors: `RltraceError`
    when the file cannot be written."""
    page = render(run, summary, own_figures).encode("utf-8", errors="replace")
    try:
        with written(path) as file:
            file.write(page)
    except OSError as error:
        raise RltraceError(f"cannot write {path}: {error.strerror}") from None
    return len(page)
