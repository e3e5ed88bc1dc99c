"""A clock for tests that they move."""

from __future__ import annotations

import sys
import time

from rltrace.hooks.recorder import Recorder
from rltrace.trace.job_exceptions import Clock
from rltrace.trace.metadata_validation import update_run_json

A_DAY_S = 86_400
UP_FOR_DAYS = "up-for-days-0"
"""A node that is not this one. No time on its clock is before its start, as on any."""


def up_for_days(*recorders: Recorder, ago_s: int = 0) -> int:
    """Has them record on the node `UP_FOR_DAYS`, with times of their own: this machine may not have
    been up for as long as a test looks back. Returns its monotonic clock's time so long ago."""
    now_ns = (10 * A_DAY_S - ago_s) * 10**9
    clock = {"monotonic_ns": now_ns, "real_ns": time.time_ns() - ago_s * 10**9, "bracket_ns": 1}
    for recorder in recorders:
        recorder.describe(node=UP_FOR_DAYS, clock=clock)
    return now_ns


class FakeClock:
    """While its block lasts, these recorders' rows are timed by a clock that stands still until it
    is moved:

        with recording(path) as recorder, FakeClock(recorder) as clock:
            with rltrace.span("train"):
                clock.advance(2.5)  # the span is 2.5 s long, whatever the machine did

    It is the clock of the node `UP_FOR_DAYS`, and begins a day ago: nothing that is recorded by it
    lies in the future of whoever reads the run. `now_ns` is what it shows. Errors: `ValueError`
    without a recorder.
    """

    def __init__(self, *recorders: Recorder) -> None:
        if not recorders:
            raise ValueError("whose clock? FakeClock(recorder): what `recording` gives")
        self.now_ns = up_for_days(*recorders, ago_s=A_DAY_S)
        began_ns = time.time_ns() - A_DAY_S * 10**9
        for recorder in recorders:
            update_run_json(recorder.run_dir, start_real_ns=began_ns, node=UP_FOR_DAYS)
        self._replaced: list[object] = []

    def advance(self, seconds: float) -> int:
        """Moves it on; returns the new time. Errors: `ValueError` for a time below zero."""
        if seconds < 0:
            raise ValueError("a monotonic clock does not go back")
        self.now_ns += round(seconds * 10**9)
        return self.now_ns

    def __enter__(self) -> FakeClock:
        for name, module in list(sys.modules.items()):
            ours = name.startswith(("rltrace.hooks.", "rltrace.trace."))
            if ours and vars(module).get("monotonic_ns") is time.monotonic_ns:
                self._replaced.append(module)
                vars(module)["monotonic_ns"] = lambda: self.now_ns
        type.__setattr__(Clock, "__neg__", lambda _: self.now_ns)
        return self

    def __exit__(self, *error: object) -> None:
        for module in self._replaced:
            vars(module)["monotonic_ns"] = time.monotonic_ns
        self._replaced.clear()
        type.__setattr__(Clock, "__neg__", time.monotonic_ns)
