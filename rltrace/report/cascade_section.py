"""What goodput is made of, in words: the factors, lost time by reason, and the reward it bought."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rltrace.analysis.busy import UNKNOWN_ROLE
from rltrace.analysis.cascade import Cascade, Factor
from rltrace.analysis.group_signal import GroupSignal
from rltrace.analysis.reward_curve import RewardCurve
from rltrace.report import units
from rltrace.report.layout import Column, Grid, Section

_SMALL = 0.01
_MOST_REASONS = 5


def cascade_section(cascade: Cascade) -> Section:
    """The factors of goodput and where the time went, of the whole run."""
    device = cascade.device or "device"
    rows = [(one.name, _basis(one), _value(one, device), _interval(one)) for one in cascade.factors]
    rows.append(
        ("goodput", "the product", _rate(cascade.effective_tokens_per_device_s, device), "")
    )
    columns = (
        Column("factor"),
        Column("is", least_width=76),
        Column("value", right=True),
        Column("range", right=True, least_width=68),
    )
    return Section(
        "What goodput is made of, whole run",
        tuple(_lost(cascade)),
        Grid(columns, tuple(rows)),
        tuple(_notes(cascade)),
    )


def reward_section(reward: RewardCurve, signal: GroupSignal | None) -> Section:
    """The reward against device-hours, beside steps per hour; and which groups carry a signal."""
    spent = (
        ""
        if math.isnan(reward.device_hours)
        else f", after {units.number(reward.device_hours)} {reward.device}-hours"
    )
    line = (
        f"Mean verdict {units.number(reward.first)} at first, {units.number(reward.last)} at last, "
        f"in {units.plural(len(reward.points), 'step')} with verdicts{spent}; "
        f"{units.count(reward.steps_per_hour)} steps an hour."
    )
    return Section("Reward", (line, *_trend(reward), *_mixed(reward), *_signal(signal)))


def _mixed(reward: RewardCurve) -> Iterator[str]:
    if reward.components > 1:
        yield (
            f"The verdicts are of {reward.components} components, each counted as it is: the "
            "trainer's own reward, a sum of them, is another number (`@reward_by_step`)."
        )


def _trend(reward: RewardCurve) -> Iterator[str]:
    low, high = reward.gain_low, reward.gain_high
    if math.isnan(low):
        return
    if low == high == 0:
        yield "It does not change."
        return
    interval = (
        f"{units.number(reward.gain_per_device_hour)} a {reward.device}-hour "
        f"(95 % {units.number(low)} to {units.number(high)})"
    )
    if low <= 0 <= high:
        yield f"No trend can be told: {interval}."
    else:
        yield f"It {'rises' if low > 0 else 'falls'} by {interval.replace('-', '', low < 0)}."


def _signal(signal: GroupSignal | None) -> Iterator[str]:
    if signal is None:
        return
    if not signal.known:
        yield (
            "Which groups carry a signal cannot be told: their ids come again in later steps, and "
            f"of {signal.unclear:,} of {units.plural(signal.samples, 'sample')} nobody recorded "
            "how they were used. Name a group by step and prompt."
        )
        return
    line = (
        f"{units.share(signal.share)} of {units.plural(signal.groups, 'group')} carry a signal "
        f"(95 % {100 * signal.low:.0f} to {100 * signal.high:.0f} %)"
    )
    if not math.isnan(signal.reward_without):
        line += (
            f"; in the others all rewards are equal, mean verdict "
            f"{units.number(signal.reward_without)} ({units.number(signal.reward)} of all groups)"
        )
    yield f"{line}."


_WHAT = {
    "availability": "steps' time / wall-clock",
    "placement efficiency": "work / devices' time",
    "useful share": "useful / generated tokens",
    "freshness weight": "part that counts (ESS)",
    "peak rate": "generated / work",
}


def _basis(factor: Factor) -> str:
    if math.isnan(factor.value):
        return factor.basis
    if factor.name == "freshness weight" and "prior" in factor.basis:
        return "not measured: by a prior"
    return _WHAT[factor.name]


def _value(factor: Factor, device: str) -> str:
    if factor.name == "peak rate":
        return _rate(factor.value, device)
    return units.share(factor.value)


def _rate(value: float, device: str) -> str:
    return units.UNKNOWN if math.isnan(value) else f"{units.count(value)} /{device}-s"


def _of_roles(roles: tuple[str, ...]) -> str:
    known = [role for role in roles if role != UNKNOWN_ROLE]
    return f" of {' + '.join(known)}" if known else ""


def _interval(factor: Factor) -> str:
    if math.isnan(factor.low) or factor.low == factor.high:
        return ""
    if factor.name == "peak rate":
        return f"{units.count(factor.low)} to {units.count(factor.high)}"
    low, high = units.share(factor.low), units.share(factor.high)
    return "" if low == high else f"{low.removesuffix(' %')} to {high}"


def _lost(cascade: Cascade) -> Iterator[str]:
    """Lost time: the largest reasons, and all others together."""
    lost = [part for part in cascade.seconds if part.lost]
    all_s = sum(part.seconds for part in lost)
    if not all_s:
        return
    shown = [part for part in lost if part.share >= _SMALL][:_MOST_REASONS]
    parts = [f"{p.reason} {units.seconds(p.seconds)} ({units.share(p.share)})" for p in shown]
    rest_s = all_s - sum(part.seconds for part in shown)
    if rest_s > _SMALL * cascade.wall_s:
        parts.append(f"others {units.seconds(rest_s)}")
    yield (
        f"Of {units.seconds(cascade.wall_s)}, {units.seconds(all_s)} went by without work on "
        f"samples: {', '.join(parts) or 'many small reasons'}."
    )


def _notes(cascade: Cascade) -> Iterator[str]:
    if cascade.pools:
        counted = "device" if cascade.efficiency_of == "GPU" else cascade.efficiency_of
        pools = [
            f"{units.plural(pool.devices, counted)}{_of_roles(pool.roles)} "
            f"for {units.share(pool.busy_share)} of the time"
            for pool in cascade.pools
        ]
        yield f"Working in the steps: {', '.join(pools)}."
    if not math.isnan(cascade.effective_tokens_per_usd):
        per_usd = units.count(cascade.effective_tokens_per_usd)
        yield f"{per_usd} useful and fresh tokens per US$ over the whole run."
