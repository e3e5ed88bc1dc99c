"""What is known of samples: how long they take, how old they were, what they were worth."""

from __future__ import annotations

import numpy as np

from rltrace.analysis.reward_curve import RewardCurve
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.staleness import LagHistory, lag_history
from rltrace.analysis.summary import Summary
from rltrace.analysis.tail import SHARES, Distribution, distributions
from rltrace.report import units
from rltrace.report.freshness_section import (
    curve_section,
    has_tail,
    staleness_section,
    tail_section,
)
from rltrace.report.goodput_section import reward_section
from rltrace.report.html import drawing as draw
from rltrace.report.html import parts
from rltrace.report.html.markup import Html, tag
from rltrace.report.layout import raised


def tail_part(analysis: RunAnalysis, summary: Summary) -> Html:
    tail = summary.tail
    if not has_tail(tail):
        return parts.unknown("tail", "Tail", "No trajectory and no reward was recorded.")
    found = distributions(analysis.run, analysis.steps)
    shown = tag("div", *map(_distribution, found), class_="panels") if found else None
    return parts.of_section("tail", tail_section(tail), shown)


def _distribution(of: Distribution) -> Html:
    """The longer the bars on the right, the longer the tail."""
    columns = draw.Columns([f"p{100 * share:g}" for share in SHARES], "", 100, fewest=1)
    show = None if of.unit == "s" else units.count
    return parts.picture(
        key=f"distribution-of-{of.name.replace(' ', '-')}",
        title=raised(of.name),
        says=f"Of {units.count(of.n)}, by percentile.",
        drawing=columns.bars(
            {"bar": of.values}, 1.04 * of.values[-1] or 1.0, title=of.name, show=show
        ),
        columns=("percentile", of.name),
        rows=[(p, _shown(of, value)) for p, value in zip(columns.names, of.values, strict=True)],
    )


def _shown(of: Distribution, value: float) -> str:
    return units.seconds(value) if of.unit == "s" else units.count(value)


# --- staleness

_MOST_STEPS, _MOST_LAGS = 120, 12
_UNKNOWN = "unknown"


def lag_part(analysis: RunAnalysis, summary: Summary) -> Html:
    lags, fresh = summary.staleness, summary.freshness
    if not lags.trajectories:
        why = "Which samples the learner trained on was not recorded."
        return parts.unknown("lag", "Staleness", why)
    handed_only = summary.goodput is not None and summary.goodput.handed_only
    section = staleness_section(lags, fresh, handed_only)
    history = lag_history(analysis.run, analysis.steps, _MOST_STEPS, _MOST_LAGS)
    shown = _history(history) if history else None
    cost = None if lags.largest_lag == 0 else parts.under(curve_section(fresh))
    return parts.of_section("lag", section, shown, below=cost)


def _history(history: LagHistory) -> Html:
    """A column for each step, stronger where more of its trajectories have that lag."""
    has_unknown = any(step.unknown for step in history.steps)
    names = [f"lag {units.between(str(low), str(high))}" for low, high in history.lags]
    names += [_UNKNOWN] * has_unknown
    steps = [draw.numbered([s.first, s.last]) if s.first >= 0 else "" for s in history.steps]
    row, columns = 20.0, draw.Columns(steps, "step", high=20.0 * len(names))
    counts = [[*step.counts, *[step.unknown] * has_unknown] for step in history.steps]
    whole = np.array([[max(1, step.trajectories)] for step in history.steps])
    shares = np.array(counts) / whole
    if has_unknown:
        shares[:, -1] = np.where(shares[:, -1] > 0, np.nan, 0)
    names_at = [(columns.high - row * (m + 0.5), name) for m, name in enumerate(names)]
    return parts.picture(
        key="lags",
        title="Lag of what each step trained on",
        says="Stronger: more of the step's trajectories. Lag in policy versions, from the first "
        "token.",
        around=parts.legend([*draw.HEAT_LEGEND, *[(_UNKNOWN, "unknown lag")] * has_unknown]),
        drawing=columns.plot(
            draw.heat(shares.T[::-1], row, columns.wide),
            title="Share of trajectories by lag and step",
            left=names_at,
        ),
        columns=("step", "trajectories", *names),
        rows=[
            (named or "the run", units.count(step.trajectories), *map(units.count, of))
            for named, step, of in zip(steps, history.steps, counts, strict=True)
        ],
    )


# --- reward


def reward_part(summary: Summary) -> Html:
    reward = summary.reward
    if reward is None:
        return parts.unknown("reward", "Reward", "No reward was recorded in a step.")
    shown = _reward(reward) if len(reward.points) > 1 else None
    return parts.of_section("reward", reward_section(reward, summary.signal), shown)


def _reward(reward: RewardCurve) -> Html:
    points = draw.groups(reward.points)
    values = [
        float(np.average([p.reward for p in of], weights=[p.rewards for p in of])) for of in points
    ]
    low, high = min([0.0, *values]), max(values)
    steps = [draw.numbered([p.step for p in of]) for of in points]
    columns = draw.Columns(steps, "step", high=140, fewest=1)
    end = high + 0.05 * (high - low) if high > low else low + 1
    y = draw.Axis(low, end, columns.high, 0)
    left = [(y(v), f"{v:.3g}") for v in draw.ticks(low, end, 4)]
    placed = [((n + 0.5) * columns.wide, y(value)) for n, value in enumerate(values)]
    return parts.picture(
        key="reward-curve",
        title="Reward by step",
        says="The mean of the rewards given in it.",
        drawing=columns.plot(
            draw.levels(left),
            draw.polyline(placed),
            draw.dots(placed),
            title="Mean reward of each step",
            left=left,
        ),
        columns=("step", "reward", "rewards", f"{reward.device or 'device'}-hours until then"),
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
