"""Runs that are not well: neither do they pass a gate, nor are others held to them.

How fast a job was that crashed or trained on no numbers is no answer. Stalls are left to the tests:
the gate judges the lengths of steps by statistics, and a busy machine stalls a job that is well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rltrace.analysis.alarms import grave

if TYPE_CHECKING:
    from rltrace.trace.run import Run

_JUDGED = "stall"


def unwell(runs: Sequence[Run]) -> tuple[str, ...]:
    """A sentence for each of `runs` that is not well, without a full stop; the run is named where
    there are several."""
    found = ((run, wrong_with(run)) for run in runs)
    return tuple(
        f"{'the run' if len(runs) == 1 else run.path.name} is not well: {says}"
        for run, says in found
        if says
    )


def wrong_with(run: Run) -> str:
    """What is wrong with `run`, in a text of one line; empty where it is well."""
    return "; ".join(alarm.says for alarm in grave(run) if alarm.kind != _JUDGED)
