"""What recording costs on this machine, measured before the job begins, so that every report can
state its own cost: events x this / wall time (the idea of RL-Scope, MLSys 2021, section 3.4)."""

from __future__ import annotations

import tempfile
import time

from rltrace.hooks.codes import codes_of
from rltrace.hooks.recorder import Recorder
from rltrace.trace.run_dir import create_run

_SPANS = 2000
_ROUNDS = 5


def event_cost_ns() -> int:
    """CPU nanoseconds of one recorded span, batches and page faults included: the median of a few
    rounds of a real recorder in a temporary run. Takes about 10 ms. Errors: OSError."""
    with tempfile.TemporaryDirectory(prefix="rltrace-") as folder:
        create_run(folder, [], {}, "")
        recorder = Recorder(folder)
        name, stage = recorder.name("calibration"), codes_of("Stage")["other"]
        rounds = sorted(_cpu_ns(recorder, name, stage) for _ in range(_ROUNDS))
    return rounds[_ROUNDS // 2] // _SPANS


def _cpu_ns(recorder: Recorder, name: int, stage: int) -> int:
    before = time.thread_time_ns()
    for _ in range(_SPANS):
        with recorder.begin(name, stage, tokens=1):
            pass
    return time.thread_time_ns() - before
