"""Staleness: the lags of what was trained on as the run went on, and what each lag costs."""

from __future__ import annotations

from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.staleness import LagHistory, lag_history
from rltrace.analysis.summary import Summary
from rltrace.report import units
from rltrace.report.freshness_section import curve_section, staleness_section
from rltrace.report.html import drawing as draw
from rltrace.report.html import parts
from rltrace.report.html.markup import tag

_LEVELS = 10
_MOST_LAGS = 12
_UNKNOWN = "unknown"


def lag_part(analysis: RunAnalysis, summary: Summary) -> parts.Part:
    lags, fresh = summary.staleness, summary.freshness
    if not lags.trajectories:
        why = "Nobody recorded which samples the learner trained on, hence no lag is known."
        return parts.part("lag", "Staleness", "Staleness", parts.missing(why))
    handed_only = summary.goodput is not None and summary.goodput.handed_only
    section = staleness_section(lags, fresh, handed_only)
    history = lag_history(analysis.run, analysis.steps, parts.MOST_BARS // 2, _MOST_LAGS)
    shown = parts.picture(_history(history)) if history else None
    if lags.largest_lag == 0:
        return parts.of_section(section, "lag", "Staleness", shown)
    cost = parts.under(curve_section(fresh))
    return parts.of_section(section, "lag", "Staleness", shown, below=cost)


def _history(history: LagHistory) -> parts.Picture:
    """A column for each step, stronger where more of its trajectories have that lag."""
    has_unknown = any(step.unknown for step in history.steps)
    names = [f"lag {units.between(str(low), str(high))}" for low, high in history.lags]
    names += [_UNKNOWN] * has_unknown
    counts = [[*step.counts, *[step.unknown] * has_unknown] for step in history.steps]
    left, right, top = 100.0, draw.WIDTH - 10, 6.0
    row = 22.0
    bottom = top + row * len(names)
    wide = (right - left) / max(draw.FEWEST_BARS, len(history.steps))
    cells: dict[tuple[str, int], list[tuple[float, float, float, float]]] = {}
    for n, step in enumerate(history.steps):
        for m, count in enumerate(counts[n]):
            if not count:
                continue
            degree = max(1, round(_LEVELS * count / step.trajectories))
            kind = _UNKNOWN if names[m] == _UNKNOWN else "heat"
            y = bottom - row * (m + 1)
            place = (left + n * wide, y + 1, max(0.6, wide - min(1.0, wide / 8)), row - 2)
            cells.setdefault((kind, degree), []).append(place)
    steps = [
        draw.numbered([step.first, step.last]) if step.first >= 0 else "" for step in history.steps
    ]
    return parts.Picture(
        key="lags",
        title="Lag of what each step trained on",
        says="Stronger: more of the step's trajectories. Lag in policy versions, from the first "
        "token.",
        around=parts.legend(
            [*((f"heat d{d}", f"{10 * d} %") for d in (1, 4, 7, 10)),
             *[(_UNKNOWN, "unknown lag")] * has_unknown]
        ),
        drawing=draw.drawing(
            bottom + 34,
            *(draw.label(left - 10, bottom - row * m - row / 2 + 4, name, "end", "name")
              for m, name in enumerate(names)),
            *(tag("g", draw.boxes(places, kind), class_=f"d{degree}")
              for (kind, degree), places in sorted(cells.items())),
            draw.line(left, bottom, right, bottom, "base"),
            draw.some(steps, left, wide, bottom + 15),
            draw.label((left + right) / 2, bottom + 31, "step", "middle", "tick"),
            draw.hits(left, wide, len(history.steps), top, bottom),
            title="Share of trajectories by lag and step",
        ),
        columns=("step", "trajectories", *names),
        rows=[
            (named or "the run", units.count(step.trajectories), *map(units.count, of))
            for named, step, of in zip(steps, history.steps, counts, strict=True)
        ],
    )  # fmt: skip
