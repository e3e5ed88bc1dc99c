"""`rltrace.start()`: a run that a program begins itself, without `rltrace wrap`."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from rltrace.hooks import boot, recorder
from rltrace.hooks.idle import Idle
from rltrace.run.opening import make_run, start_agent, traced_environment
from rltrace.trace.errors import RltraceError
from rltrace.trace.run_dir import now_ns, read_run_json, update_run_json

_began: Path | None = None
_environment_before: dict[str, str] = {}


def start(out: str | Path | None) -> Path | None:
    global _began, _environment_before
    active = recorder.active()
    if active is not None:
        return Path(active.run_dir)
    asked = Path(out) if out is not None else None
    try:
        path, why, *_ = make_run(list(sys.orig_argv), asked, started_by="rltrace.start")
    except OSError as error:
        recorder.to_stderr(f"cannot record into {out or '.'}: {error}; the job goes on")
        return None
    if why:
        recorder.to_stderr(f"{why}; this one goes to {path}")
    _environment_before = dict(os.environ)
    os.environ.update(traced_environment(str(path), ()))
    os.environ.pop(boot.CAPTURE_VARIABLE, None)  # of a run before: nobody has asked for this one's
    boot.boot()
    if recorder.start(str(path)) is None:
        _restore_environment()
        return None
    start_agent(path)
    _began = path
    if Idle.decorated:
        recorder.to_stderr(
            f"{Idle.decorated} functions were decorated before rltrace.start() and stay "
            "unrecorded: start first, or run under `rltrace wrap`"
        )
    return path


def stop() -> None:
    global _began
    active = recorder.active()
    if active is not None and active.open_step is not None:
        active.open_step.end()
    recorder.stop()
    if _began is not None:
        _restore_environment()
        with suppress(OSError, RltraceError):  # the directory may be gone: the job goes on
            ended_ns = now_ns(read_run_json(str(_began)))
            update_run_json(str(_began), end_real_ns=ended_ns, exit_code=0)
        _began = None


def _restore_environment() -> None:
    """Takes back what `start` set."""
    for name in ("PYTHONPATH", *(name for name in os.environ if name.startswith("RLTRACE_"))):
        if name in _environment_before:
            os.environ[name] = _environment_before[name]
        else:
            os.environ.pop(name, None)
