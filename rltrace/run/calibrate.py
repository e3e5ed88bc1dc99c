"""What recording costs on this machine, measured before the job begins, so that every report can
state its own cost: events x this / wall time (the idea of RL-Scope, MLSys 2021, section 3.4)."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

from rltrace.hooks import capturing
from rltrace.hooks import recorder as recording
from rltrace.hooks.hook import Call, Hook
from rltrace.hooks.identity import identify
from rltrace.hooks.observing import Observer
from rltrace.hooks.wrapping import wrap
from rltrace.trace.run_dir import create_run

_CALLS = 1000
_ROUNDS = 5
_SAMPLES, _TOKENS = 10, 1000


def recording_costs(tokens: bool = False) -> dict[str, int]:
    """CPU nanoseconds of one event as a hooked job pays for it, the wrapper around the call,
    batches and page faults included: `event_cost_ns` of a span, `row_cost_ns` of a row with an id
    that is completed when the call returns, and where they are to be captured `token_cost_ns` of a
    token of a response that is a list. Medians of a few rounds of a real recorder in a temporary
    run; takes about 30 ms. Empty where this process records already. Errors: OSError."""
    if recording.active() is not None:
        return {}
    with _temporary_folder() as folder, _capturing(tokens):
        create_run(folder, [], {}, "")
        recorder = recording.start(folder)
        try:
            costs = {
                "event_cost_ns": _cpu_ns(Hook("calibration:span", "other")),
                "row_cost_ns": _cpu_ns(Hook("calibration:row", before=_begin, after=_complete)),
            }
            if tokens and recorder is not None:
                costs["token_cost_ns"] = _token_cost_ns(recorder)
        finally:
            recording.stop()
    return costs


@contextmanager
def _capturing(tokens: bool) -> Iterator[None]:
    """With recorders that capture tokens, where that is wanted."""
    before = dict(recording.writers), recording.capture_tokens
    if tokens:
        capturing.start()
    try:
        yield
    finally:
        recording.writers, recording.capture_tokens = before


def _token_cost_ns(recorder: recording.Recorder) -> int:
    """Of samples of `_TOKENS` tokens each."""
    response = list(range(_TOKENS))
    row = recorder.append("trajectories", start_ns=time.monotonic_ns(), trajectory=1)

    def capture(_: str) -> None:
        recorder.capture(row, response=response)

    return max(
        1, round(median(_round(capture, _SAMPLES) for _ in range(_ROUNDS)) / _SAMPLES / _TOKENS)
    )


@contextmanager
def _temporary_folder() -> Iterator[str]:
    """As of `tempfile`, which cannot remove a folder when no descriptor is left for each level."""
    folder = tempfile.mkdtemp(prefix="rltrace-")
    try:
        yield folder
    finally:
        for path, folders, files in os.walk(folder, topdown=False):
            for name in files:
                os.unlink(os.path.join(path, name))
            for name in folders:
                os.rmdir(os.path.join(path, name))
        os.rmdir(folder)


def _begin(call: Call) -> None:
    call.state = call.recorder.append(
        "trajectories",
        start_ns=call.start_ns,
        trajectory=identify(call.argument("sample")),
        first_version=1,
        prompt_tokens=1,
        turns=1,
    )


def _complete(call: Call) -> None:
    call.state.set(end_ns=call.end_ns, last_version=1, response_tokens=1, finish=0)


def _cpu_ns(hook: Hook) -> int:
    def function(sample: str) -> None:
        del sample

    hooked = wrap(function, Observer(hook))
    return round(median(_round(hooked) - _round(function) for _ in range(_ROUNDS)) / _CALLS)


def _round(function: Callable[[str], None], calls: int = _CALLS) -> int:
    before = time.thread_time_ns()
    for _ in range(calls):
        function("12/3/4")
    return time.thread_time_ns() - before
