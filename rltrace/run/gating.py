"""A gate as people ask for it: runs by path, a baseline in a file, what the project states."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rltrace.run.gate_settings import GateSettings
from rltrace.run.reading import open_readable
from rltrace.trace.errors import WrongUsage

if TYPE_CHECKING:
    from rltrace.analysis.gate.baseline import Baseline
    from rltrace.analysis.gate.findings import Judgement


def gate(runs: Sequence[Path], settings: GateSettings) -> Judgement:
    """Judges runs of one code together. Errors: `RltraceError`, as `judge` and `read_baseline`, and
    (wrong usage) where there is nothing to hold them to."""
    from rltrace.analysis.gate.baseline import read_baseline
    from rltrace.analysis.gate.judge import judge

    asked = settings.completed()
    baseline = None if asked.baseline is None else read_baseline(asked.baseline)
    opened = [open_readable(path) for path in runs]
    return judge(opened, baseline, asked.conditions, normalise=bool(asked.normalise))


def keep_baseline(runs: Sequence[Path], path: Path, *, anyway: bool = False) -> Baseline:
    """Makes a baseline of runs and writes it; `anyway`: of runs that are not well, too. Errors:
    `RltraceError`, as `make_baseline`, and where it cannot be written."""
    from rltrace.analysis.gate.baseline import make_baseline, write_baseline

    if path.is_dir():
        raise WrongUsage(f"{path} is a directory: name the file to write")
    made = make_baseline([open_readable(run) for run in runs], anyway=anyway)
    write_baseline(made, path)
    return made
