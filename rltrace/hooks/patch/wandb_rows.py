"""Adds the newest step's figures to what the job logs to wandb.

`rltrace wrap --log-steps`: no run is begun and no row is added. A row that the job logs gets some
names more, all under `rltrace/`; those that the job gave win. `wrap` writes the figures to a small
file, since a traced process knows only its own part of a step.
"""

from __future__ import annotations

import json
import os
from functools import partial, wraps
from time import monotonic
from typing import Any

from rltrace.hooks.recorder import hook_failed
from rltrace.trace.job_exceptions import contained
from rltrace.trace.run_dir import RUN_VARIABLE

FILE = "newest-step.json"  # in the run directory: figures of the newest step by name
_TARGET = "wandb.sdk.wandb_run:Run.log"
_EVERY_S = 1.0  # a job may log thousands of rows a second


class NewFigures:
    def __init__(self, run_dir: str) -> None:
        self._path = f"{run_dir}/{FILE}"
        self._look_at_s = 0.0
        self._seen_ns = 0

    def take(self) -> dict[str, float]:
        """New figures, if any. Errors: OSError, ValueError for a damaged file."""
        now_s = monotonic()
        if now_s < self._look_at_s:
            return {}
        self._look_at_s = now_s + _EVERY_S
        with contained(FileNotFoundError):  # no step has ended so far
            written_ns = os.stat(self._path).st_mtime_ns
            if written_ns != self._seen_ns:
                self._seen_ns = written_ns
                with open(self._path, encoding="utf-8") as file:
                    figures: dict[str, float] = json.load(file)
                return figures
        return {}


def patch(module: Any) -> None:
    """Patches `Run.log` to add new figures to its row. Errors: AttributeError without it."""
    figures = NewFigures(os.environ[RUN_VARIABLE])
    log = module.Run.log

    @wraps(log)
    def log_with_figures(run: Any, *args: Any, **kwargs: Any) -> Any:
        with contained(tell=partial(hook_failed, _TARGET)):
            row: Any = args[0] if args else kwargs.get("data")
            new = figures.take() if isinstance(row, dict) else None
            if new:  # the job's own row is left as it is
                row = {**new, **row}
                if args:
                    args = (row, *args[1:])
                else:
                    kwargs["data"] = row
        return log(run, *args, **kwargs)

    module.Run.log = log_with_figures
