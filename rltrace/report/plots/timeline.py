"""What every process did, over time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from rltrace.analysis.activity import read_activity
from rltrace.report.html.rows import lay_out
from rltrace.report.html.slices import KINDS, read_slices
from rltrace.report.plots.paper import axes, colour, nothing, stage_legend, text
from rltrace.trace.errors import WRONG_USAGE, RltraceError
from rltrace.trace.vocabulary import Stage, word

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from rltrace.trace.run import Run

_MOST = 20_000
_GAP = 0.25
_TALLEST = 14.0


def timeline(
    run: Run, since_s: float = 0.0, until_s: float = math.inf, ax: Axes | None = None
) -> Axes:
    """A band for each process and kind of row, coloured by stage: what went on between two moments,
    in seconds since the trace began. Short slices are merged where there are very many; `rltrace
    timeline` has every one. Errors: `RltraceError` where the first moment is not before the second;
    see `axes`."""
    if not since_s < until_s:
        said = f"since_s ({since_s}) must lie before until_s ({until_s})"
        raise RltraceError(said, WRONG_USAGE)
    activity = read_activity(run)
    begin_ns, end_ns = activity.first_ns, activity.last_ns
    first = begin_ns + round(since_s * 1e9)
    last = min(end_ns, begin_ns + round(min(until_s, 1e9) * 1e9))
    slices = read_slices(run, first, last, _MOST) if last > first else None
    rows = lay_out(slices) if slices is not None else None
    if slices is None or rows is None or not len(rows):
        return nothing(axes(ax, 12, 2), "nothing was recorded in this time")
    bands = [(int(p), int(k)) for p, k in zip(rows.process, rows.kind, strict=True)]
    order = list(dict.fromkeys(bands))
    heights = [1 + math.log2(bands.count(band)) / 2 for band in order]
    ax = axes(ax, 12, min(_TALLEST, 1 + 0.3 * sum(heights)))
    tops = np.concatenate([[0], np.cumsum(np.array(heights) + _GAP)])
    seen: set[str] = set()
    for place, band in enumerate(order):
        mine = [row for row, of in enumerate(bands) if of == band]
        each = heights[place] / len(mine)
        for n, row in enumerate(mine):
            found = rows.order[rows.first[row] : rows.first[row + 1]]
            for code in np.unique(slices.stage[found]):
                these = found[slices.stage[found] == code]
                name = word(Stage(code)) if code in set(Stage) else "other"
                spans = _seconds(slices.start_ns[these], slices.end_ns[these], begin_ns)
                ax.broken_barh(spans, (tops[place] + n * each, each * 0.92), color=colour(name))
                seen.add(name)
    ax.set_yticks(tops[:-1] + np.array(heights) / 2, [_label(run, *band) for band in order])
    ax.set(
        xlabel="seconds since the trace began",
        xlim=((first - begin_ns) / 1e9, (last - begin_ns) / 1e9),
        ylim=(tops[-1] - _GAP, 0),
    )
    stage_legend(ax, [word(stage) for stage in Stage if word(stage) in seen])
    return ax


def _seconds(start: np.ndarray, end: np.ndarray, zero_ns: int) -> list[tuple[float, float]]:
    return list(zip((start - zero_ns) / 1e9, (end - start) / 1e9, strict=True))


def _label(run: Run, process: int, kind: int) -> str:
    of = run.processes[process]
    rank = "" if of.rank is None else f" {of.rank}"
    who = of.role or of.child_of or f"process {of.pid}"
    return text(f"{who}{rank}: {KINDS[kind]}")
