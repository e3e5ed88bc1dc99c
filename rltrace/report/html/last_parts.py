"""The parts of a page that are mostly words."""

from __future__ import annotations

import numpy as np

from rltrace.analysis.reward_curve import RewardCurve
from rltrace.analysis.summary import Summary
from rltrace.report import units
from rltrace.report.coverage_section import coverage_section
from rltrace.report.goodput_section import reward_section
from rltrace.report.html import drawing as draw
from rltrace.report.html.markup import tag
from rltrace.report.html.parts import MOST_BARS, Part, Picture, missing, of_section, part, picture
from rltrace.report.own_figures_section import own_figures_section
from rltrace.report.probe_section import probe_section


def probe_part(summary: Summary) -> Part | None:
    """What delaying stages did; None where nothing was delayed."""
    if summary.probe is None:
        return None
    return of_section(probe_section(summary.probe), "probe", "Probe")


def own_figures_part(summary: Summary) -> Part | None:
    """What the framework logs itself; None where it logs nothing that could mislead."""
    if not summary.own_figures:
        return None
    return of_section(own_figures_section(summary), "own-figures", "Own figures")


def reward_part(summary: Summary) -> Part:
    reward = summary.reward
    if reward is None:
        why = "No verdict was recorded in a step, hence nothing of the reward is known."
        return part("reward", "Reward", "Reward", missing(why))
    section = reward_section(reward, summary.signal)
    shown = picture(_reward(reward)) if len(reward.points) > 1 else None
    return of_section(section, "reward", "Reward", shown)


def _reward(reward: RewardCurve) -> Picture:
    bars = draw.groups(len(reward.points), MOST_BARS)
    points = [[reward.points[i] for i in bar] for bar in bars]
    values = [
        float(np.average([p.reward for p in of], weights=[p.verdicts for p in of])) for of in points
    ]
    low, high = min([0.0, *values]), max(values)
    left, right, top, bottom, height = 62.0, draw.WIDTH - 10, 12.0, 150.0, 184.0
    x = draw.Axis(0, len(bars), left, right)
    y = draw.Axis(low, high + 0.05 * (high - low) if high > low else low + 1, bottom, top)
    wide = x(1) - left
    steps = [draw.numbered([p.step for p in of]) for of in points]
    placed = [(x(n + 0.5), y(value)) for n, value in enumerate(values)]
    shown = draw.ticks(y.low, y.high, 4)
    return Picture(
        key="reward-curve",
        title="Reward by step",
        says="The mean of the verdicts that were reached in it.",
        drawing=draw.drawing(
            height,
            draw.y_axis(y, left, right, shown, lambda v: f"{v:.3g}"),
            draw.line(left, bottom, right, bottom, "base"),
            draw.polyline(placed, "curve"),
            *(
                tag("circle", cx=px, cy=py, r=2.2, class_="dot") for px, py in placed
                if len(placed) <= 60
            ),
            draw.some(steps, left, wide, bottom + 16),
            draw.label((left + right) / 2, height - 2, "step", "middle", "tick"),
            draw.hits(left, wide, len(bars), top, bottom),
            title="Mean reward of each step",
        ),
        columns=("step", "reward", "verdicts", f"{reward.device or 'device'}-hours until then"),
        rows=[
            (step, units.number(value), units.count(sum(p.verdicts for p in of)),
             units.number(of[-1].device_hours))
            for step, value, of in zip(steps, values, points, strict=True)
        ],
    )  # fmt: skip


def coverage_part(summary: Summary) -> Part:
    return of_section(coverage_section(summary), "unseen", "Not seen")
