"""What tests of the analysis make and ask again and again."""

from __future__ import annotations

import math
from typing import Any, TypeVar

from rltrace.testing import rows
from rltrace.testing.inside.analysis import (
    LiveState,
    RunMeters,
    break_down,
    find_steps,
    read_activity,
    trained_in,
)
from rltrace.testing.inside.trace import OpenedRun as Run
from rltrace.testing.inside.trace import compaction_compact as compact
from rltrace.testing.inside.trace import delete_segments, open_run
from rltrace.testing.run_files import Process
from tests.analysis.walls.walled import STEPS, job, samples

__all__ = ["rows"]
T = TypeVar("T")


def not_none(found: T | None) -> T:
    """What a run has, where None would say that it has none."""
    assert found is not None
    return found


def steps_of(run: Run) -> Any:
    activity = read_activity(run)
    return find_steps(run, (activity.first_ns, activity.last_ns))


def breakdown_of(run: Run) -> Any:
    """The seconds of its steps by stage."""
    return break_down(read_activity(run), steps_of(run))


def trained_of(run: Run) -> Any:
    """What it trained on, of which the report, the live view and the meters say the same."""
    trained = trained_in(run, 0, 1 << 62, math.inf)
    assert not_none(LiveState(run.path).snapshot().window).trained == trained
    assert RunMeters(run.path).samples.useful_tokens == trained.useful_tokens
    return trained


def compacted(run: Run) -> Run:
    """The same run, of which only the Parquet files are left."""
    compact(run)
    delete_segments(run.path)
    return open_run(run.path)


def slow_updates(size_bytes: int) -> Process:
    """Steps of 10 s with 2 s of generation, 2 s of training, and an update of 6 s."""
    learner, starts = job(rollout=2, train=2, sync=6), [10.0 * n + 4 for n in range(STEPS)]
    rows(learner, "syncs", start_s=starts, end_s=[s + 6 for s in starts], role=0,
         version=list(range(STEPS)), bytes=size_bytes)  # fmt: skip
    return samples(learner, [2.0] * 4)
