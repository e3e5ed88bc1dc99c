"""`rltrace.start()`: a run that a program begins itself, without `rltrace wrap`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import rltrace
from rltrace.hooks import recorder
from rltrace.hooks.idle import Idle
from rltrace.run.location import new_run_path
from rltrace.trace.run_dir import RUN_VARIABLE, create_run, update_run_json

_began: Path | None = None


def start(out: str | Path | None) -> Path | None:
    """See `rltrace.start`."""
    global _began
    active = recorder.active()
    if active is not None:
        return Path(active.run_dir)
    command = list(sys.orig_argv)
    path = Path(out) if out is not None else new_run_path(command)
    path = path.absolute()
    try:
        create_run(str(path), command, {"started_by": "rltrace.start"}, rltrace.__version__)
    except OSError as error:
        print(f"rltrace: cannot record into {path}: {error}; the job goes on", file=sys.stderr)
        return None
    if recorder.start(str(path)) is None:
        return None
    os.environ[RUN_VARIABLE] = str(path)
    _began = path
    if Idle.decorated:
        print(
            f"rltrace: {Idle.decorated} functions were decorated before rltrace.start() and stay "
            "unrecorded: start first, or run under `rltrace wrap`",
            file=sys.stderr,
        )
    return path


def stop() -> None:
    """See `rltrace.stop`."""
    global _began
    active = recorder.active()
    if active is not None and active.open_step is not None:
        active.open_step.end()
    recorder.stop()
    if _began is not None:
        os.environ.pop(RUN_VARIABLE, None)
        update_run_json(str(_began), end_real_ns=time.time_ns(), exit_code=0)
        _began = None
