"""`recording`: this process records into a scratch run for a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rltrace.hooks import recorder
from rltrace.hooks.recorder import Recorder
from rltrace.trace.errors import RltraceError
from rltrace.trace.run_dir import create_run


@contextmanager
def recording(path: Path, **facts: object) -> Iterator[Recorder]:
    """This process records into a new run at `path`, until the block ends; `rltrace.open_run(path)`
    reads it at any time. `facts` are what the process says of itself, as `role="learner"`.

    Errors: `FileExistsError` where a run is; `RltraceError` in a process that records already, or
    where nothing can be written.
    """
    if recorder.active() is not None:
        raise RltraceError("this process records already: a second recorder would write nothing")
    create_run(str(path), ["python", "train.py"], {}, "test")
    started = recorder.start(str(path), **facts)
    if started is None:
        raise RltraceError(f"nothing can be recorded into {path}")
    try:
        yield started
    finally:
        recorder.stop()
