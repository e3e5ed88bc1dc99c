"""Runs, jobs, recorders and clocks for tests: of rltrace, of adapters, of a loop of your own.

    from rltrace.testing import process, report_of, run_of, turns

    def test_long_generation_is_the_wall(tmp_path):
        run = run_of(tmp_path, process("trainer", *turns(9, 9, 9, 9, 9, 9)))
        assert report_of(run)["verdict"]["first"] == "rollout decode"

- A run from arrays: `run_from_arrays` (columns in, a run out), or `run_of` with a `process` for
  each process of the job and its `rows` of other tables.
- A job of known truth: `known_job` plays a workload out and says what a right analysis must find.
- A recorder: `recording` has this process record into a scratch run; nothing else is traced.
- A clock: `FakeClock` stands still until the test moves it; `up_for_days` and `ahead` are those of
  a machine that has been up for longer than this one.

Everything written is a real run directory. Times are Unix ns once read, seconds since the start of
the run where they are written (`_s`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rltrace.testing.clocks import FakeClock, ahead, up_for_days
    from rltrace.testing.made import (
        at,
        between,
        process,
        report_of,
        rows,
        run_from_arrays,
        run_of,
        stating,
        turns,
    )
    from rltrace.testing.played import SECOND, START_NS, Process
    from rltrace.testing.scratch import recording
    from rltrace.testing.truth import StepTruth, Truth, known_job, make
    from rltrace.testing.workload import PLACEMENTS, Workload

__all__ = [
    "PLACEMENTS",
    "SECOND",
    "START_NS",
    "FakeClock",
    "Process",
    "StepTruth",
    "Truth",
    "Workload",
    "ahead",
    "at",
    "between",
    "known_job",
    "make",
    "process",
    "recording",
    "report_of",
    "rows",
    "run_from_arrays",
    "run_of",
    "stating",
    "turns",
    "up_for_days",
]

_HOMES = {
    "clocks": ("FakeClock", "ahead", "up_for_days"),
    "made": (
        "at",
        "between",
        "process",
        "report_of",
        "rows",
        "run_from_arrays",
        "run_of",
        "stating",
        "turns",
    ),
    "played": ("SECOND", "START_NS", "Process"),
    "scratch": ("recording",),
    "truth": ("StepTruth", "Truth", "known_job", "make"),
    "workload": ("PLACEMENTS", "Workload"),
}


def __getattr__(name: str) -> object:
    """Loads what is asked for: a process that only records loads neither NumPy nor DuckDB."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"rltrace.testing.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
