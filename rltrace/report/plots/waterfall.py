"""When each stage runs within a step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from rltrace.analysis.activity import read_activity
from rltrace.analysis.cut_short import whole_steps
from rltrace.analysis.step_shapes import PARTS, step_shapes
from rltrace.analysis.steps import find_steps
from rltrace.report.plots.paper import axes, colour, nothing
from rltrace.trace.errors import WRONG_USAGE, RltraceError
from rltrace.trace.vocabulary import word

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from rltrace.trace.run import Run

_MOST_STEPS = 240
_HEIGHT = 0.85


def waterfall(run: Run, step: int | None = None, ax: Axes | None = None) -> Axes:
    """A row a stage: how much of each part of the step any process is in it, of the step of that
    number, or in the mean over the steady steps. Errors: `RltraceError` for a step that there is
    not; see `axes`."""
    run = whole_steps(run)
    activity = read_activity(run)
    found = find_steps(run, (activity.first_ns, activity.last_ns))
    windows = [window for window in found.windows if step in (None, window.step)]
    if step is not None and not windows:
        raise RltraceError(f"there is no completed step {step} in this run", WRONG_USAGE)
    ax = axes(ax, 10, 4)
    shapes = step_shapes(activity, replace(found, windows=tuple(windows)), _MOST_STEPS)
    if shapes is None or not shapes.stages:
        return nothing(ax, "no stage was seen in a step")
    counted = [windows[i] for i in shapes.places if step is not None or not windows[i].warmup]
    seconds = float(np.mean([window.length_s for window in counted or windows]))
    busy = shapes.mean_busy if step is None else shapes.busy[0]
    edges = np.linspace(0, seconds, PARTS + 1)
    names = [word(stage) for stage in shapes.stages]
    for row, (name, part) in enumerate(zip(names, busy, strict=True)):
        foot = row + _HEIGHT  # rows go down, what stands in them goes up
        ax.stairs(foot - _HEIGHT * part, edges, baseline=foot, fill=True, color=colour(name))
    ax.set_yticks(np.arange(len(names)) + _HEIGHT / 2, names)
    ax.set(xlabel="seconds since the step began", xlim=(0, seconds), ylim=(len(names), -0.1))
    ax.set_title("When each stage runs in a step" if step is None else f"Step {step}")
    return ax
