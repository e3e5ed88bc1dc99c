"""Opens runs for commands, and refuses those that tell nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rltrace.analysis.live.snapshot import Job
    from rltrace.report.notebook import Run


def open_readable(path: Path) -> Run:
    """Errors: `RltraceError` when there is no run, or nothing of it can be read."""
    from rltrace.report.notebook import open_run
    from rltrace.trace.read.run_losses import check_readable

    run = open_run(path)
    check_readable(run)
    return run


def check_followed(job: Job, found: bool) -> None:
    """Errors: `RltraceError` for a run that is over and of which nothing can be read, which is
    looked at only where nothing was `found` by who follows it."""
    from rltrace.analysis.live.snapshot import DELETED

    if job.is_over and job.state != DELETED and not found:
        open_readable(Path(job.path))
