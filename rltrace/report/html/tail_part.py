"""The tail: how long trajectories are and take."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.summary import Summary
from rltrace.analysis.tail import SHARES, Distribution, distributions
from rltrace.report import units
from rltrace.report.html import drawing as draw
from rltrace.report.html.markup import Html, join, tag
from rltrace.report.html.parts import Part, Picture, missing, of_section, part, picture
from rltrace.report.tail_section import has_tail, tail_section

_LOG_FROM = 8.0  # largest over median
_MARKED = (0.5, 0.95, 0.99)


def tail_part(analysis: RunAnalysis, summary: Summary) -> Part:
    tail = summary.tail
    if not has_tail(tail):
        why = "No trajectory and no verdict was recorded, hence no lengths and no latencies."
        return part("tail", "Tail", "Tail", missing(why))
    found = distributions(analysis.run, analysis.steps)
    shown = picture(_distributions(found)) if found else None
    return of_section(tail_section(tail), "tail", "Tail", shown)


def _distributions(found: tuple[Distribution, ...]) -> Picture:
    gap, height = 56.0, 226.0
    wide = (draw.WIDTH - gap * len(found)) / len(found)
    panels = [
        _panel(one, gap + n * (wide + gap), wide, height - 34, n == 0)
        for n, one in enumerate(found)
    ]
    return Picture(
        key="distributions",
        title="Distribution of lengths and latencies",
        says="The share of them that is at most so long. A step that waits for all waits for the "
        "right end.",
        drawing=draw.drawing(height, *panels, title="Cumulative distributions"),
        columns=("at most", *(f"{one.name} (n = {units.count(one.n)})" for one in found)),
        rows=[
            (units.share(share), *(_shown(one, one.values[i]) for one in found))
            for i, share in enumerate(SHARES)
        ],
    )


def _shown(of: Distribution, value: float) -> str:
    return units.seconds(value) if of.unit == "s" else units.count(value)


def _panel(of: Distribution, left: float, wide: float, bottom: float, first: bool) -> Html:
    low, high = of.values[0], of.values[-1]
    median = of.values[SHARES.index(0.5)]
    top = 40.0
    y = draw.Axis(0, 1, bottom, top)
    logarithmic = median > 0 and high / median > _LOG_FROM
    if logarithmic:
        least = max(low, median / 1000)
        x: draw.Axis = draw.LogAxis(least, high, left, left + wide - 14)
        values = draw.log_ticks(least, high)
        values = values[:: max(1, -(-len(values) // 5))]
    else:
        x = draw.Axis(0, high or 1, left, left + wide - 14)
        values = draw.ticks(0, high or 1, 4)
    show: Callable[[float], str] = units.count
    if of.unit == "s":  # on a logarithmic scale each tick has a unit of its own
        show = (lambda v: draw.seconds_of([v])(v)) if logarithmic else draw.seconds_of(values)
    points = [(x(v), y(s)) for v, s in zip(of.values, SHARES, strict=True)]
    marked = [points[SHARES.index(share)] for share in _MARKED]
    end = left + wide - 14
    told = ", ".join(f"p{100 * s:.0f} {_shown(of, of.values[SHARES.index(s)])}" for s in _MARKED)
    edges = [left, *((a[0] + b[0]) / 2 for a, b in itertools.pairwise(points)), end]
    hits = [
        draw.box(a, top, max(0.0, b - a), bottom - top, "hit", data_row=n)
        for n, (a, b) in enumerate(itertools.pairwise(edges))
    ]
    return join(
        draw.label(left, 13, of.name, css="name"),
        draw.label(left, 29, told, css="tick"),
        draw.x_axis(x, bottom, values, show, top),
        draw.y_axis(y, left, end, (0, 0.25, 0.5, 0.75, 1), draw.percent if first else lambda _: ""),
        draw.polyline(points, "curve"),
        *(tag("circle", cx=px, cy=py, r=3.5, class_="dot") for px, py in marked),
        tag("g", *hits, class_="hits"),
        draw.label(end, bottom + 30, "logarithmic scale", "end", "tick") if logarithmic else None,
    )
