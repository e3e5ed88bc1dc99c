"""Goodput in words: its rate, its factors, lost time, and the reward it bought."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rltrace.analysis.figures.device_use import UNKNOWN_ROLE
from rltrace.analysis.figures.goodput import Goodput
from rltrace.analysis.figures.goodput_factors import Cascade, Factor
from rltrace.analysis.summary import Summary
from rltrace.analysis.trajectories.reward_signal import GroupSignal, RewardCurve
from rltrace.report import units
from rltrace.report.layout import Section, TableColumn, numbers, table

_TITLE = "Goodput"


def goodput_section(summary: Summary) -> Section:
    goodput = summary.goodput
    if goodput is None:
        line = "Unknown: no use of a sample by the learner was recorded."
        return Section(_TITLE, (line,))
    taken = "handed to the learner" if goodput.handed_only else "trained on"
    trained = goodput.generated_tokens - sum(loss.tokens for loss in goodput.losses)
    rows = [
        (taken, trained, goodput.trained_share),
        *((loss.reason, loss.tokens, loss.share) for loss in goodput.losses),
    ]
    counted = rows if goodput.generated_tokens else ()
    cells = [(name, units.count(n), units.share(share)) for name, n, share in counted]
    grid = table(cells, "generated tokens, whole run", *numbers("tokens", "share"))
    return Section(_TITLE, tuple(_headline(goodput)), grid, tuple(_conditions(goodput)))


def _headline(goodput: Goodput) -> Iterator[str]:
    devices = goodput.devices
    rate = goodput.useful_tokens_per_device_s
    if not goodput.window_s:
        yield "Unknown: no step was completed."
        if goodput.handed_only:
            yield "The learner was handed samples; no training on them was recorded."
        return
    useful = goodput.trained.useful_tokens
    window = units.seconds(goodput.window_s)
    if not goodput.trained.is_counted:
        yield "Unknown: the samples' token counts were not recorded."
    elif math.isnan(rate):
        yield f"{units.count(useful)} useful tokens in {window} ({devices.source})."
    else:
        low = goodput.useful_known_tokens_per_device_s
        at_least = f" (at least {units.count(low)})" if low < rate else ""
        yield (
            f"{units.count(rate)} useful tokens per {devices.kind}-second{at_least}: "
            f"{units.count(useful)} tokens / "
            f"({units.plural(devices.count, devices.kind)} × {window})."
        )
        yield f"Devices counted: {devices.source}."
    if not math.isnan(joules := goodput.joules_per_useful_token):
        yield (
            f"A useful token took {units.seconds(1 / rate)} of a {devices.kind} and "
            f"{units.number(joules)} J."
        )
    yield from _dollars(goodput)


def _dollars(goodput: Goodput) -> Iterator[str]:
    price, devices = goodput.price, goodput.devices
    if price is None:
        what = devices.name or f"a {devices.kind}-hour"
        yield f"Tokens per US$ unknown: no price of {what}. Give it with --price."
        return
    if math.isnan(goodput.useful_tokens_per_usd()):  # the devices are not known, which is said
        return
    per_usd = units.count(goodput.useful_tokens_per_usd())
    line = f"{per_usd} useful tokens per US$ at {price.usd_per_hour:g} $/{devices.kind}-hour"
    source = f"indicative list price of {price.date}" if price.date else price.source
    yield f"{line} ({source})."


def _conditions(goodput: Goodput) -> Iterator[str]:
    trained = goodput.trained
    if goodput.uncounted_samples:
        of = units.count(goodput.uncounted_samples)
        of = f"{of} of {units.plural(goodput.generated_samples, 'sample')}"
        taken = "they count as long as the others" if trained.tokens else "unknown"
        yield f"No token count was recorded for {of}: {taken}."
    if not trained.tokens:
        return

    def part(tokens: int) -> str:
        return f"{units.count(tokens)} ({units.share(tokens / trained.tokens)})"

    text = f"Trained on in the measured steps: {units.count(trained.tokens)} tokens. "
    text += f"Zero advantage: {part(trained.zero_advantage_tokens)}"
    if trained.unknown_advantage_tokens:
        text += f", unknown: {part(trained.unknown_advantage_tokens)}"
    if not math.isinf(goodput.lag_budget):
        over = part(trained.over_lag_budget_tokens)
        text += f". Over the lag budget of {goodput.lag_budget:g}: {over}"
    if trained.unknown_lag_tokens:
        text += f". Lag unknown: {part(trained.unknown_lag_tokens)}"
    yield f"{text}. Useful: {part(trained.useful_tokens)}."


# --- what goodput is made of, and what it bought

_SMALL = 0.01
_MOST_REASONS = 5


def cascade_section(cascade: Cascade) -> Section:
    device = cascade.device or "device"
    rows = []
    for one in cascade.factors:
        peak = one.name == "peak rate"
        value = _rate(one.value, device) if peak else units.share(one.value)
        rows.append((one.name, _basis(one), value))
    product = _rate(cascade.effective_tokens_per_device_s, device)
    rows.append(("goodput", "the product", product))
    grid = table(rows, "factor", TableColumn("is", least_width=76), *numbers("value"))
    return Section("What goodput is made of", tuple(_lost(cascade)), grid, tuple(_notes(cascade)))


def reward_section(reward: RewardCurve, signal: GroupSignal | None) -> Section:
    """The reward against device-hours, beside steps per hour; and which groups carry a signal."""
    hours = f", after {units.number(reward.device_hours)} {reward.device}-hours"
    spent = "" if math.isnan(reward.device_hours) else hours
    line = (
        f"Mean reward {units.number(reward.first_reward)} → {units.number(reward.last_reward)} "
        f"over {units.plural(len(reward.points), 'step')}{spent}; "
        f"{units.count(reward.steps_per_hour)} steps an hour."
    )
    lines = [line, *_trend(reward)]
    if reward.components > 1:
        lines.append(
            f"This is the mean of {reward.components} reward components. The trainer's reward is "
            "their sum: `rltrace query @reward_by_step`."
        )
    return Section("Reward", (*lines, *_signal(signal)))


def _trend(reward: RewardCurve) -> Iterator[str]:
    gain = reward.gain_per_device_hour
    low, high = gain.low, gain.high
    interval = (
        f"{units.number(gain.value)} a {reward.device}-hour "
        f"(95 % {units.number(low)} to {units.number(high)})"
    )
    if low == high == 0:
        yield "It does not change."
    elif low <= 0 <= high:
        yield f"No clear trend: {interval}."
    elif not math.isnan(low):
        yield f"It {'rises' if low > 0 else 'falls'} by {interval.replace('-', '', low < 0)}."


def _signal(signal: GroupSignal | None) -> Iterator[str]:
    if signal is None:
        return
    if not signal.known:
        yield (
            "Which groups carry a signal cannot be told: their ids come again in later steps, and "
            f"the use of {signal.unclear:,} of {units.plural(signal.samples, 'sample')} was not "
            "recorded. Name a group by step and prompt."
        )
        return
    line = (
        f"{units.share(signal.share)} of {units.plural(signal.groups, 'group')} carry a signal "
        f"(95 % {100 * signal.low:.0f} to {100 * signal.high:.0f} %)"
    )
    if not math.isnan(signal.reward_without_signal):
        equal = signal.groups - signal.with_signal - signal.with_nan
        of_nan = f"; {units.count(signal.with_nan)} have a NaN" if signal.with_nan else ""
        line += (
            f"{of_nan}; {units.count(equal)} have equal rewards, their mean is "
            f"{units.number(signal.reward_without_signal)} (all groups: "
            f"{units.number(signal.reward)})"
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


def _rate(value: float, device: str) -> str:
    return units.UNKNOWN if math.isnan(value) else f"{units.count(value)} /{device}-s"


def _lost(cascade: Cascade) -> Iterator[str]:
    lost = [part for part in cascade.wall_clock if part.lost]
    all_s = sum(part.wall_s for part in lost)
    if not all_s:
        return
    shown = [part for part in lost if part.share >= _SMALL][:_MOST_REASONS]
    parts = [f"{p.reason} {units.seconds(p.wall_s)} ({units.share(p.share)})" for p in shown]
    rest_s = all_s - sum(part.wall_s for part in shown)
    if rest_s > _SMALL * cascade.wall_s:
        parts.append(f"others {units.seconds(rest_s)}")
    yield (
        f"No work on samples in {units.seconds(all_s)} of {units.seconds(cascade.wall_s)}: "
        f"{', '.join(parts) or 'many small reasons'}."
    )


def _notes(cascade: Cascade) -> Iterator[str]:
    if cascade.pools:
        counted = "device" if cascade.efficiency_of == "GPU" else cascade.efficiency_of
        pools = []
        for pool in cascade.pools:
            roles = " + ".join(role for role in pool.roles if role != UNKNOWN_ROLE)
            who = units.plural(pool.devices, counted) + (f" of {roles}" if roles else "")
            pools.append(f"{who} {units.share(pool.busy_share)}")
        yield f"Busy in the steps: {', '.join(pools)}."
