"""The tail: how long trajectories are and take, and what waiting for the last of them costs."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rltrace.analysis.device_load import in_flight
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.slots import Slots
from rltrace.analysis.summary import Summary
from rltrace.analysis.tail import SHARES, Distribution, distributions
from rltrace.report import units
from rltrace.report.html import drawing as draw
from rltrace.report.html.markup import Html, join, tag
from rltrace.report.html.parts import TIME_PARTS, Part, Picture, missing, of_section, part, picture
from rltrace.report.tail_section import has_tail, tail_section

_LOG_FROM = 8.0  # largest over median
_MARKED = (0.5, 0.95, 0.99)


def tail_part(analysis: RunAnalysis, summary: Summary) -> Part:
    tail = summary.tail
    if not has_tail(tail):
        why = "No trajectory and no verdict was recorded, hence no lengths and no latencies."
        return part("tail", "Tail", "Tail", missing(why))
    pictures = []
    if found := distributions(analysis.run, analysis.steps):
        pictures.append(_distributions(found))
    if tail.slots is not None and tail.slots.batches and any(tail.slots.draining_at_s):
        pictures.append(_draining(tail.slots))
    flying = in_flight(analysis.run, *analysis.drawn_ns, TIME_PARTS)
    if len(flying):
        pictures.append(_flying(flying, analysis.drawn_ns))
    return of_section(tail_section(tail), "tail", "Tail", *map(picture, pictures))


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


def _draining(slots: Slots) -> Picture:
    """Slots in use after a batch's last trajectory has begun, in the mean over batches."""
    spent = np.asarray(slots.draining_at_s)[::-1]  # full first
    parts = len(spent)
    ends = np.cumsum(spent)
    drain_s = float(ends[-1])
    left, right, bottom, top, height = 62.0, draw.WIDTH - 10, 150.0, 12.0, 186.0
    x, y = draw.Axis(0, drain_s, left, right), draw.Axis(0, 1, bottom, top)
    used = [(parts - n - 0.5) / parts for n in range(parts)]
    begins = [0.0, *ends[:-1].tolist()]
    steps = [p for a, b, u in zip(begins, ends.tolist(), used, strict=True) if b > a
             for p in ((x(a), y(u)), (x(b), y(u)))]  # fmt: skip
    idle = "".join(f"L{px:.2f} {py:.2f}" for px, py in steps)
    hits = [
        draw.box(x(a), top, x(b) - x(a), bottom - top, "hit", data_row=n)
        for n, (a, b) in enumerate(zip(begins, ends.tolist(), strict=True))
        if b > a
    ]
    values = draw.ticks(0, drain_s)
    return Picture(
        key="draining",
        title="Slots in use while a batch drains",
        says=f"From the moment at which the last trajectory of a batch has begun, in the mean of "
        f"{units.plural(slots.batches, 'batch')} (each with {units.number(slots.slots.mean)} "
        "slots). The shaded part stands idle.",
        drawing=draw.drawing(
            height,
            draw.x_axis(x, bottom, values, draw.seconds_of(values), top),
            draw.y_axis(y, left, right, (0, 0.25, 0.5, 0.75, 1), draw.percent),
            tag("path", d=f"M{left} {top}{idle}L{right} {top}z", class_="lost"),
            draw.polyline(steps, "curve"),
            draw.label((left + right) / 2, height - 2, "since the last began", "middle", "tick"),
            tag("g", *hits, class_="hits"),
            title="Share of slots in use while a batch drains",
        ),
        columns=("slots in use", "for", "until"),
        rows=[
            (
                f"{100 * (parts - n - 1) / parts:.0f} to {100 * (parts - n) / parts:.0f} %",
                units.seconds(float(spent[n])),
                units.seconds(float(ends[n])),
            )
            for n in range(parts)
        ],
    )


def _flying(flying: NDArray[np.float64], drawn_ns: tuple[int, int]) -> Picture:
    length = (drawn_ns[1] - drawn_ns[0]) / 1e9
    left, right, bottom, top, height = 62.0, draw.WIDTH - 10, 120.0, 12.0, 150.0
    most = float(flying.max()) or 1.0
    x, y = draw.Axis(0, length, left, right), draw.Axis(0, most * 1.05, bottom, top)
    part_s = length / TIME_PARTS
    points = [(x((i + 0.5) * part_s), y(float(v))) for i, v in enumerate(flying)]
    area = "".join(f"L{px:.1f} {py:.1f}" for px, py in points)
    times, counts = draw.ticks(0, length), draw.ticks(0, most, 3)
    return Picture(
        key="flying",
        title="Trajectories in flight",
        says=f"Over the whole run, the mean of each {units.seconds(part_s)}.",
        drawing=draw.drawing(
            height,
            draw.x_axis(x, bottom, times, draw.seconds_of(times), top),
            draw.y_axis(y, left, right, counts, units.count),
            tag("path", d=f"M{left} {bottom}{area}L{right} {bottom}z", class_="area"),
            draw.polyline(points, "curve thin"),
            draw.line(left, bottom, right, bottom, "base"),
            draw.hits(left, (right - left) / TIME_PARTS, TIME_PARTS, top, bottom),
            title="Number of trajectories in flight over the run",
        ),
        columns=("from", "in flight"),
        rows=[(units.seconds(i * part_s), units.number(float(v))) for i, v in enumerate(flying)],
    )
