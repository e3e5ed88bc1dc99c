"""What is known of samples: how long they take, how old they were, what they were worth."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from rltrace.analysis.reward_curve import RewardCurve
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.staleness import LagHistory, lag_history
from rltrace.analysis.summary import Summary
from rltrace.analysis.tail import SHARES, Distribution, distributions
from rltrace.report import units
from rltrace.report.freshness_section import curve_section, staleness_section
from rltrace.report.goodput_section import reward_section
from rltrace.report.html import drawing as draw
from rltrace.report.html import parts
from rltrace.report.html.markup import Html, join, tag
from rltrace.report.tail_section import has_tail, tail_section

_LOG_FROM = 8.0  # largest over median
_MOST_DOTS = 60
_MARKED = (0.5, 0.95, 0.99)


def tail_part(analysis: RunAnalysis, summary: Summary) -> parts.Part:
    tail = summary.tail
    if not has_tail(tail):
        why = "No trajectory and no reward was recorded, hence no lengths and no latencies."
        return parts.unknown("tail", "Tail", why)
    found = distributions(analysis.run, analysis.steps)
    shown = _distributions(found) if found else None
    return parts.of_section(tail_section(tail), "tail", "Tail", shown)


def _distributions(found: tuple[Distribution, ...]) -> Html:
    gap, height = 56.0, 226.0
    wide = (draw.WIDTH - gap * len(found)) / len(found)
    panels = [
        _panel(one, gap + n * (wide + gap), wide, height - 34, n == 0)
        for n, one in enumerate(found)
    ]
    return parts.picture(
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


# --- staleness

_MOST_STEPS, _MOST_LAGS = 120, 12
_UNKNOWN = "unknown"


def lag_part(analysis: RunAnalysis, summary: Summary) -> parts.Part:
    lags, fresh = summary.staleness, summary.freshness
    if not lags.trajectories:
        why = "Nobody recorded which samples the learner trained on, hence no lag is known."
        return parts.unknown("lag", "Staleness", why)
    handed_only = summary.goodput is not None and summary.goodput.handed_only
    section = staleness_section(lags, fresh, handed_only)
    history = lag_history(analysis.run, analysis.steps, _MOST_STEPS, _MOST_LAGS)
    shown = _history(history) if history else None
    cost = None if lags.largest_lag == 0 else parts.under(curve_section(fresh))
    return parts.of_section(section, "lag", "Staleness", shown, below=cost)


def _history(history: LagHistory) -> Html:
    """A column for each step, stronger where more of its trajectories have that lag."""
    has_unknown = any(step.unknown for step in history.steps)
    names = [f"lag {units.between(str(low), str(high))}" for low, high in history.lags]
    names += [_UNKNOWN] * has_unknown
    steps = [draw.numbered([s.first, s.last]) if s.first >= 0 else "" for s in history.steps]
    row = 22.0
    columns = draw.Columns(steps, "step", left=100, top=6, bottom=6 + row * len(names))
    wide = max(0.6, columns.wide - min(1.0, columns.wide / 8))
    places = [columns.bottom - row * (m + 1) for m in range(len(names))]
    counts = [[*step.counts, *[step.unknown] * has_unknown] for step in history.steps]
    cells: dict[tuple[str, int], list[draw.Box]] = {}
    for n, step in enumerate(history.steps):
        for name, y, count in zip(names, places, counts[n], strict=True):
            if count:
                degree = max(1, round(draw.HEAT * count / step.trajectories))
                kind = _UNKNOWN if name == _UNKNOWN else "heat"
                cells.setdefault((kind, degree), []).append((columns.x(n), y + 1, wide, row - 2))
    return parts.picture(
        key="lags",
        title="Lag of what each step trained on",
        says="Stronger: more of the step's trajectories. Lag in policy versions, from the first "
        "token.",
        around=parts.legend([*draw.HEAT_LEGEND, *[(_UNKNOWN, "unknown lag")] * has_unknown]),
        drawing=columns.drawing(
            draw.row_names(zip(places, names, strict=True), columns.left, row),
            draw.heat(cells),
            title="Share of trajectories by lag and step",
        ),
        columns=("step", "trajectories", *names),
        rows=[
            (named or "the run", units.count(step.trajectories), *map(units.count, of))
            for named, step, of in zip(steps, history.steps, counts, strict=True)
        ],
    )


# --- reward


def reward_part(summary: Summary) -> parts.Part:
    reward = summary.reward
    if reward is None:
        why = "No reward was recorded in a step, hence nothing of the reward is known."
        return parts.unknown("reward", "Reward", why)
    shown = _reward(reward) if len(reward.points) > 1 else None
    return parts.of_section(reward_section(reward, summary.signal), "reward", "Reward", shown)


def _reward(reward: RewardCurve) -> Html:
    points = draw.groups(reward.points)
    values = [
        float(np.average([p.reward for p in of], weights=[p.rewards for p in of])) for of in points
    ]
    low, high = min([0.0, *values]), max(values)
    steps = [draw.numbered([p.step for p in of]) for of in points]
    columns = draw.Columns(steps, "step", left=62, top=12, bottom=150, fewest=1)
    end = high + 0.05 * (high - low) if high > low else low + 1
    y = draw.Axis(low, end, columns.bottom, columns.top)
    placed = [(columns.x(n + 0.5), y(value)) for n, value in enumerate(values)]
    dots = [tag("circle", cx=px, cy=py, r=2.2, class_="dot") for px, py in placed]
    ticks = draw.ticks(low, end, 4)
    return parts.picture(
        key="reward-curve",
        title="Reward by step",
        says="The mean of its rewards.",
        drawing=columns.drawing(
            draw.y_axis(y, columns.left, draw.RIGHT, ticks, lambda v: f"{v:.3g}"),
            draw.polyline(placed, "curve"),
            *(dots if len(dots) <= _MOST_DOTS else ()),
            title="Mean reward of each step",
        ),
        columns=("step", "mean", "rewards", f"{reward.device or 'device'}-hours until then"),
        rows=[
            (
                step,
                units.number(value),
                units.count(sum(p.rewards for p in of)),
                units.number(of[-1].device_hours),
            )
            for step, value, of in zip(steps, values, points, strict=True)
        ],
    )
