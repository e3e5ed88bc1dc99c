"""The figures of a run's newest step in a file, for the job's own tracker to take up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rltrace.hooks.wandb_rows import FILE
from rltrace.trace.run_dir import write_json

if TYPE_CHECKING:
    from rltrace.analysis.live.snapshot import StepDone


class StepFigures:
    """Puts each step into the run's file, in the place of the one before."""

    def __init__(self, run_dir: Path) -> None:
        self._path = str(run_dir / FILE)

    def __call__(self, step: StepDone) -> None:
        """Errors: OSError where it cannot be written."""
        from rltrace.report.step_scalars import scalars

        figures = scalars(step)
        if step.step >= 0:
            figures["rltrace/step"] = step.step
        write_json(self._path, figures)
