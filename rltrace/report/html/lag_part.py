"""Staleness: the lags of what was trained on as the run went on, and what each lag costs."""

from __future__ import annotations

import math

from rltrace.analysis.freshness import Freshness, LagPoint
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.staleness import LagHistory, lag_history
from rltrace.analysis.summary import Summary
from rltrace.report import units
from rltrace.report.freshness_section import curve_section, staleness_section
from rltrace.report.html import drawing as draw
from rltrace.report.html import parts
from rltrace.report.html.markup import NOTHING, Html, join, tag

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
    points = [p for p in fresh.curve if p.lag is not None and p.enough]
    curve = parts.picture(_curve(points, fresh)) if len(points) > 1 else None
    cost = parts.under(curve_section(fresh), curve)
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


def _curve(points: list[LagPoint], fresh: Freshness) -> parts.Picture:
    """ESS and clip share at each lag, with their intervals and limits."""
    left, right, top, bottom, height = 62.0, draw.WIDTH - 10, 10.0, 170.0, 206.0
    wide = (right - left) / len(points)
    y = draw.Axis(0, 1, bottom, top)
    drawn = []
    for n, point in enumerate(points):
        x = left + (n + 0.5) * wide
        drawn.append(_estimate(x - 6, y, point.ess_share, point.ess_low, point.ess_high, "s-train"))
        drawn.append(
            _estimate(x + 6, y, point.clip_share, point.clip_low, point.clip_high, "s-sync")
        )
        drawn.append(draw.label(x, bottom + 16, str(point.lag), "middle", "tick"))
    bound = fresh.bound
    return parts.Picture(
        key="lag-cost",
        title="What counts at each lag",
        says=f"Dashed: the limits, ESS at least {units.share(bound.ess_limit)} and clipped at most "
        f"{units.share(bound.clip_limit)}. Lines are 95 % intervals.",
        around=parts.legend(
            [("s-train", "ESS: part of the tokens that counts"), ("s-sync", "clipped")]
        ),
        drawing=draw.drawing(
            height,
            draw.y_axis(y, left, right, (0, 0.25, 0.5, 0.75, 1), draw.percent),
            draw.line(left, y(bound.ess_limit), right, y(bound.ess_limit), "limit s-train"),
            draw.line(left, y(bound.clip_limit), right, y(bound.clip_limit), "limit s-sync"),
            *drawn,
            draw.label((left + right) / 2, height - 2, "lag, policy versions", "middle", "tick"),
            draw.hits(left, wide, len(points), top, bottom),
            title="Effective sample size and clip share by lag",
        ),
        columns=("lag", "ESS", "ESS 95 %", "clipped", "clipped 95 %", "n"),
        rows=[
            (
                f"lag {p.lag}",
                units.share(p.ess_share),
                f"{units.share(p.ess_low)} to {units.share(p.ess_high)}",
                units.share(p.clip_share),
                f"{units.share(p.clip_low)} to {units.share(p.clip_high)}",
                units.count(p.trajectories),
            )
            for p in points
        ],
    )


def _estimate(x: float, y: draw.Axis, value: float, low: float, high: float, css: str) -> Html:
    if math.isnan(value):
        return NOTHING
    interval = NOTHING if math.isnan(low) else draw.line(x, y(low), x, y(high), f"{css} interval")
    return join(interval, tag("circle", cx=x, cy=y(value), r=4, class_=css))
