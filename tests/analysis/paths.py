"""The critical path of a run, and what of it tests compare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import rltrace
from benchmarks.synthetic.job import Job
from benchmarks.synthetic.job_trace import PathTruth, make_job
from rltrace.testing.inside.analysis import (
    MOST_SPANS,
    CriticalPath,
    PathSegment,
    Stretch,
    break_down,
    critical_path,
    find_path,
    find_steps,
    read_activity,
    stretches,
)
from rltrace.testing.inside.trace import Run


def path_of(run: Run) -> CriticalPath | None:
    """The path by step and stage."""
    activity = read_activity(run)
    steps = find_steps(run, (activity.first_ns, activity.last_ns))
    return critical_path(run, activity, steps, break_down(activity, steps))


def segments_of(run: Run, most_spans: int = MOST_SPANS) -> tuple[PathSegment, ...]:
    """The stretches of the path of a run that has one."""
    activity = read_activity(run)
    steps = find_steps(run, (activity.first_ns, activity.last_ns))
    breakdown = break_down(activity, steps)
    found = find_path(run, activity, steps, breakdown, most_spans=most_spans)
    assert not isinstance(found, str), found
    return found


def stretches_of(run: Run, most_spans: int) -> Sequence[Stretch]:
    """The stretches in which its path is followed."""
    activity = read_activity(run)
    steps = find_steps(run, (activity.first_ns, activity.last_ns))
    return stretches(activity, steps, most_spans)


def made(folder: Path, job: Job) -> tuple[Run, PathTruth]:
    """The run of a job, and its truth."""
    truth = make_job(folder / "run", job)
    return rltrace.open_run(folder / "run"), truth


def seconds_by_stage(path: CriticalPath) -> dict[str, float]:
    """Seconds on the path over all steps."""
    total: Counter[str] = Counter()
    for step in path.steps_s:
        total.update(step)
    return dict(total)


def largest_error(path: CriticalPath, truth: PathTruth) -> float:
    """By how much the share of any stage differs from the truth."""
    found, whole = seconds_by_stage(path), sum(truth.total_s.values())
    names = found.keys() | truth.total_s.keys()
    return max(abs(found.get(name, 0) - truth.total_s.get(name, 0)) for name in names) / whole
