"""Runs, recorders and clocks for tests of rltrace, adapters, own loops.

    from rltrace.testing import process, report_of, run_of, turns

    def test_long_generation_is_the_wall(tmp_path):
        run = run_of(tmp_path, process("trainer", *turns(9, 9, 9, 9, 9, 9)))
        assert report_of(run)["verdict"]["first"] == "rollout"

- A run from arrays: `run_from_arrays` (columns in, a run out), or `run_of` with a `process` for
  each process of the job and its `rows` of other tables.
- A recorder: `recording` has this process record into a scratch run; nothing else is traced.
- A clock: `FakeClock` stands still until the test moves it; `up_for_days` is that of a machine that
  has been up for longer than this one.

Everything written is a real run directory. Times are Unix ns once read, seconds since the start of
the run where they are written (`_s`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rltrace.testing.clocks import FakeClock as FakeClock
    from rltrace.testing.clocks import up_for_days as up_for_days
    from rltrace.testing.handmade_runs import at as at
    from rltrace.testing.handmade_runs import between as between
    from rltrace.testing.handmade_runs import process as process
    from rltrace.testing.handmade_runs import report_of as report_of
    from rltrace.testing.handmade_runs import rows as rows
    from rltrace.testing.handmade_runs import run_from_arrays as run_from_arrays
    from rltrace.testing.handmade_runs import run_of as run_of
    from rltrace.testing.handmade_runs import stating as stating
    from rltrace.testing.handmade_runs import turns as turns
    from rltrace.testing.run_files import SECOND as SECOND
    from rltrace.testing.run_files import START_NS as START_NS
    from rltrace.testing.run_files import Process as Process
    from rltrace.testing.scratch_recorder import recording as recording

_HOMES = {
    "clocks": "FakeClock up_for_days",
    "handmade_runs": "at between process report_of rows run_from_arrays run_of stating turns",
    "run_files": "SECOND START_NS Process",
    "scratch_recorder": "recording",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
__all__ = list(_HOME_OF)


def __getattr__(name: str) -> object:
    """Loads what is asked for: a process that only records loads neither NumPy nor DuckDB."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"rltrace.testing.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
