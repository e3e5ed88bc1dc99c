"""Samples and devices with pictures: tail, lag, reward, weight updates, GPUs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rltrace.analysis.figures.devices import DeviceLoad, device_load
from rltrace.analysis.figures.weight_updates import Update
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.summary import Summary
from rltrace.analysis.trajectories.reward_signal import RewardCurve
from rltrace.analysis.trajectories.staleness import LagHistory, lag_history
from rltrace.analysis.trajectories.tail import SHARES, Distribution, distributions
from rltrace.report import units
from rltrace.report.full_report import syncs_section
from rltrace.report.html import drawing as draw
from rltrace.report.html import parts
from rltrace.report.html.drawing import Html, join, tag
from rltrace.report.layout import raised
from rltrace.report.sections import sample_sections as freshness
from rltrace.report.sections.goodput_section import reward_section

_MOST_STEPS, _MOST_LAGS, _MOST_DEVICES = 120, 12, 64
_UNKNOWN = "unknown"
_TIME_PARTS = 200
_COLUMNS = (
    *("GPU", "busy, mean", "most memory", "of", "held by", "power, mean", "energy"),
    *("throttled", "samples"),
)


def tail_part(analysis: RunAnalysis, summary: Summary) -> Html:
    tail = summary.tail
    if not freshness.has_tail(tail):
        return parts.unknown("tail", "Tail", "No trajectory and no reward was recorded.")
    found = distributions(analysis.run, analysis.steps)
    shown = tag("div", *map(_distribution, found), class_="panels") if found else None
    return parts.of_section("tail", freshness.tail_section(tail), shown)


def _distribution(of: Distribution) -> Html:
    """The longer the bars on the right, the longer the tail."""
    columns = draw.ChartColumns([f"p{100 * share:g}" for share in SHARES], "", 100, fewest=1)
    show, on_axis = (units.seconds, None) if of.unit == "s" else (units.count, units.count)
    end = 1.04 * of.values[-1] or 1.0
    return parts.picture(
        key=f"distribution-of-{of.name.replace(' ', '-')}",
        title=raised(of.name),
        says=f"Of {units.count(of.n)}, by percentile.",
        drawing=columns.bars({"bar": of.values}, end, title=of.name, show=on_axis),
        columns=("percentile", of.name),
        rows=[(p, show(value)) for p, value in zip(columns.names, of.values, strict=True)],
    )


def lag_part(analysis: RunAnalysis, summary: Summary) -> Html:
    lags, fresh = summary.staleness, summary.freshness
    if not lags.trajectories:
        why = "Which samples the learner trained on was not recorded."
        return parts.unknown("lag", "Staleness", why)
    handed_only = summary.goodput is not None and summary.goodput.handed_only
    section = freshness.staleness_section(lags, handed_only)
    history = lag_history(analysis.run, analysis.steps, _MOST_STEPS, _MOST_LAGS)
    shown = _history(history) if history else None
    below = [freshness.curve_section(fresh)] if lags.largest_lag else []
    below += [freshness.gaps_section(summary.engine_gaps)] if lags.known_trajectories else []
    return parts.of_section("lag", section, shown, below=join(*map(parts.under, below)))


def _history(history: LagHistory) -> Html:
    """A column for each step, stronger where more of its trajectories have that lag."""
    has_unknown = any(step.unknown for step in history.steps)
    names = [f"lag {units.between(str(low), str(high))}" for low, high in history.lags]
    names += [_UNKNOWN] * has_unknown
    steps = [draw.numbered([s.first, s.last]) if s.first >= 0 else "" for s in history.steps]
    row, columns = 20.0, draw.ChartColumns(steps, "step", high=20.0 * len(names))
    counts = [[*step.counts, *[step.unknown] * has_unknown] for step in history.steps]
    whole = np.array([[max(1, step.trajectories)] for step in history.steps])
    shares = np.array(counts) / whole
    if has_unknown:
        shares[:, -1] = np.where(shares[:, -1] > 0, np.nan, 0)
    heat = draw.heat(shares.T[::-1], row, columns.wide)
    names_at = [(columns.high - row * (m + 0.5), name) for m, name in enumerate(names)]
    return parts.picture(
        key="lags",
        title="Lag of what each step trained on",
        says="Stronger: more of the step's trajectories. Lag in policy versions, from the first "
        "token.",
        around=parts.legend([*draw.HEAT_LEGEND, *[(_UNKNOWN, "unknown lag")] * has_unknown]),
        drawing=columns.plot(heat, title="Share of trajectories by lag and step", left=names_at),
        columns=("step", "trajectories", *names),
        rows=[
            (named or "the run", units.count(step.trajectories), *map(units.count, of))
            for named, step, of in zip(steps, history.steps, counts, strict=True)
        ],
    )


def reward_part(summary: Summary) -> Html:
    reward = summary.reward
    if reward is None:
        return parts.unknown("reward", "Reward", "No reward was recorded in a step.")
    shown = _reward(reward) if len(reward.points) > 1 else None
    return parts.of_section("reward", reward_section(reward, summary.signal), shown)


def _reward(reward: RewardCurve) -> Html:
    points = draw.groups(reward.points)
    counts = [sum(p.rewards for p in of) for of in points]
    values = [
        float(np.average([p.reward for p in of], weights=[p.rewards for p in of])) for of in points
    ]
    low, high = min([0.0, *values]), max(values)
    steps = [draw.numbered([p.step for p in of]) for of in points]
    columns = draw.ChartColumns(steps, "step", high=140, fewest=1)
    end = high + 0.05 * (high - low) if high > low else low + 1
    y = draw.Axis(low, end, columns.high, 0)
    left = [(y(v), f"{v:.3g}") for v in draw.ticks(low, end, 4)]
    placed = [((n + 0.5) * columns.wide, y(value)) for n, value in enumerate(values)]
    drawn = draw.levels(left), draw.polyline(placed), draw.dots(placed)
    return parts.picture(
        key="reward-curve",
        title="Reward by step",
        says="The mean of the rewards given in it.",
        drawing=columns.plot(*drawn, title="Mean reward of each step", left=left),
        columns=("step", "reward", "rewards", f"{reward.device or 'device'}-hours until then"),
        rows=[
            (step, units.number(value), units.count(n), units.number(of[-1].device_hours))
            for step, value, n, of in zip(steps, values, counts, points, strict=True)
        ],
    )


def sync_part(analysis: RunAnalysis, summary: Summary) -> Html:
    if summary.syncs is None:
        why = "No weight update was recorded."
        if any(row.name == "sync" for row in summary.stages):
            why = "Only spans of syncs were recorded: how long, and not how many bytes or by what."
        return parts.unknown("sync", "Weight sync", why)
    shown = _each_update(analysis.updates) if analysis.updates else None
    return parts.of_section("sync", syncs_section(summary), shown)


def _each_update(updates: Sequence[Update]) -> Html:
    bars = draw.groups(updates)
    means = [float(np.mean([one.seconds for one in bar])) for bar in bars]
    end = draw.scale_end(means)
    known = [[one.version for one in bar if one.version >= 0] for bar in bars]
    names = [f"v{draw.numbered(versions)}" if versions else _UNKNOWN for versions in known]
    columns = draw.ChartColumns(names, "policy version", high=110)
    return parts.picture(
        key="updates",
        title="How long each update took",
        says=f"All {units.count(len(updates))} of the run; the time in which any process was at "
        f"work on it.{draw.said_of(bars, 'update', max(means) > end)}",
        drawing=columns.bars({"s-sync": means}, end, title="Seconds of each weight update"),
        columns=("version", "seconds", "bytes", "GB/s"),
        rows=[
            (name, units.seconds(mean), *_moved(bar))
            for name, mean, bar in zip(names, means, bars, strict=True)
        ],
    )


def _moved(updates: Sequence[Update]) -> tuple[str, str]:
    known = [one for one in updates if one.bytes >= 0]
    if not known:
        return units.UNKNOWN, units.UNKNOWN
    seconds = sum(one.seconds for one in known)
    moved = sum(one.bytes for one in known)
    rate = moved / seconds / 1e9 if seconds else float("nan")
    return units.size(moved / len(known)), units.number(rate)


def device_part(analysis: RunAnalysis, summary: Summary) -> Html:
    """The GPUs; where none was seen, how much the run's processes worked."""
    since_ns, until_ns = analysis.drawn_ns
    loads = device_load(analysis.run, since_ns, until_ns, _TIME_PARTS)
    if not loads:
        told = [p.detail for p in summary.coverage.problems if p.what == "no-gpu" and p.detail]
        because = f": {told[0]}".rstrip(".") if told else ""
        none = f"No GPU was sampled{because}."
        why = "An imported log has no samples of GPUs." if summary.run.imported else none
        return parts.unknown("gpus", "GPUs", why)
    shown = _strip(loads[:_MOST_DEVICES], (until_ns - since_ns) / 1e9)
    more = len(loads) - _MOST_DEVICES
    said = [f"{units.plural(more, 'more GPU')} not drawn."] if more > 0 else []
    said.append("NVML counts a GPU as busy while any kernel runs on it, however small.")
    return parts.part("gpus", "GPUs", shown, parts.notes(said))


def _strip(loads: Sequence[DeviceLoad], length: float) -> Html:
    row = 20.0 if len(loads) <= 16 else 13.0
    high, wide = row * len(loads), draw.WIDE / _TIME_PARTS
    several = len({load.host for load in loads}) > 1
    names = [f"{load.host} " * several + f"GPU {load.device}" for load in loads]
    middles = [(n + 0.5) * row for n in range(len(loads))]
    times = draw.ticks(0, length)
    axis, show = draw.Axis(0, length), draw.seconds_of(times)
    blank = [("unknown", "no sample")] * any(bool(np.isnan(load.busy).any()) for load in loads)
    return parts.picture(
        key="gpu-strip",
        title="How busy each GPU was",
        says=f"Over the whole run, in parts of {units.seconds(length / _TIME_PARTS)}; on the "
        "right the mean.",
        around=parts.legend([*draw.HEAT_LEGEND, *blank]),
        drawing=draw.plot(
            high,
            draw.box(0, 0, draw.WIDE, high, "empty"),
            draw.heat([load.busy for load in loads], row, wide),
            draw.hits((0, n * row, draw.WIDE, row) for n in range(len(loads))),
            title="Busy share of each GPU over time",
            below=[(axis(t), show(t)) for t in times],
            left=[*zip(middles, names, strict=True)],
            right=[(y, units.share(one.busy_share)) for y, one in zip(middles, loads, strict=True)],
        ),
        columns=_COLUMNS,
        rows=[(name, *_cells(load)) for name, load in zip(names, loads, strict=True)],
    )


def _cells(load: DeviceLoad) -> tuple[str, ...]:
    slow = [f"{why} {units.share(of)}" for why, of in load.throttled_shares.items() if of >= 0.005]
    by_role = sorted(load.memory_bytes_by_role.items())
    held = [f"{role} {units.size(most)}" for role, most in by_role]
    return (
        units.share(load.busy_share),
        units.size(load.most_memory_bytes),
        units.size(load.memory_bytes),
        ", ".join(held) or units.UNKNOWN,
        f"{units.number(load.mean_power_w)} W" if load.mean_power_w > 0 else units.UNKNOWN,
        f"{units.number(load.joules / 1e3)} kJ" if load.joules >= 0 else units.UNKNOWN,
        ", ".join(slow) or ("no" if load.throttled_shares["power"] >= 0 else units.UNKNOWN),
        units.count(load.samples),
    )
