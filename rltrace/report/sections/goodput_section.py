"""Goodput in words: its rate, factors, lost time, and the reward it bought."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rltrace.analysis.figures.devices import UNKNOWN_ROLE
from rltrace.analysis.figures.goodput import Goodput
from rltrace.analysis.figures.goodput_factors import Cascade
from rltrace.analysis.summary import Summary
from rltrace.analysis.trajectories.reward_signal import GroupSignal, RewardCurve
from rltrace.report import units
from rltrace.report.layout import Section, TableColumn, numbers, table

_TITLE = "Goodput"


def goodput_section(summary: Summary) -> Section:
    goodput = summary.goodput
    if goodput is None:
        why = "Unknown: no use of a sample by the learner was recorded."
        none = f"None: {summary.verdict.because}."
        return Section(_TITLE, (none if summary.run.no_rollout else why,))
    taken = "handed to the learner" if goodput.handed_only else "trained on"
    trained = goodput.generated_tokens - sum(loss.tokens for loss in goodput.losses)
    rows = [(taken, trained, goodput.trained_share)] if goodput.generated_tokens else []
    rows += [(loss.reason, loss.tokens, loss.share) for loss in goodput.losses if rows]
    cells = [(name, units.count(n), units.share(share)) for name, n, share in rows]
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
        spent = f"{units.plural(devices.count, devices.kind)} × {window}"
        per_s = f"{units.count(rate)} useful tokens per {devices.kind}-second{at_least}"
        yield f"{per_s}: {units.count(useful)} tokens / ({spent})."
        yield f"Devices counted: {devices.source}."
    if not math.isnan(joules := goodput.joules_per_useful_token):
        took = f"{units.seconds(1 / rate)} of a {devices.kind} and {units.number(joules)} J"
        yield f"A useful token took {took}."
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
        samples = units.plural(goodput.generated_samples, "sample")
        of = f"{units.count(goodput.uncounted_samples)} of {samples}"
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


_SMALL = 0.01
_MOST_REASONS = 5
_SUM = "The trainer's reward is their sum: `rltrace query @reward_by_step`."


def cascade_section(cascade: Cascade) -> Section:
    def rate(value: float) -> str:
        known = f"{units.count(value)} /{cascade.device or 'device'}-s"
        return units.UNKNOWN if math.isnan(value) else known

    rows = []
    for one in cascade.factors:
        value = rate(one.value) if one.name == "peak rate" else units.share(one.value)
        is_prior = one.name == "freshness weight" and "prior" in one.basis
        basis = "not measured: by a prior" if is_prior else _WHAT[one.name]
        if math.isnan(one.value):
            basis = one.basis
        rows.append((one.name, basis, value))
    rows.append(("goodput", "the product", rate(cascade.effective_tokens_per_device_s)))
    grid = table(rows, "factor", TableColumn("is", least_width=76), *numbers("value"))
    return Section("What goodput is made of", tuple(_lost(cascade)), grid, tuple(_notes(cascade)))


def reward_section(reward: RewardCurve, signal: GroupSignal | None) -> Section:
    """The reward against device-hours, beside steps per hour; and which groups carry a signal."""
    hours = f", after {units.number(reward.device_hours)} {reward.device}-hours"
    spent = "" if math.isnan(reward.device_hours) else hours
    change = f"{units.number(reward.first_reward)} → {units.number(reward.last_reward)}"
    steps = f"{units.plural(len(reward.points), 'step')}{spent}"
    pace = f"{units.count(reward.steps_per_hour)} steps an hour"
    lines = [f"Mean reward {change} over {steps}; {pace}.", *_trend(reward)]
    if reward.components > 1:
        lines.append(f"This is the mean of {reward.components} reward components. {_SUM}")
    return Section("Reward", (*lines, *_signal(signal)))


def _trend(reward: RewardCurve) -> Iterator[str]:
    gain = reward.gain_per_device_hour
    low, high = gain.low, gain.high
    ends = f"(95 % {units.number(low)} to {units.number(high)})"
    interval = f"{units.number(gain.value)} a {reward.device}-hour {ends}"
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
        uses = f"the use of {signal.unclear:,} of {units.plural(signal.samples, 'sample')}"
        yield (
            "Which groups carry a signal cannot be told: their ids come again in later steps, and "
            f"{uses} was not recorded. Name a group by step and prompt."
        )
        return
    ends = f"(95 % {100 * signal.low:.0f} to {100 * signal.high:.0f} %)"
    groups = f"{units.share(signal.share)} of {units.plural(signal.groups, 'group')}"
    line = f"{groups} carry a signal {ends}"
    if not math.isnan(signal.reward_without_signal):
        equal = signal.groups - signal.with_signal - signal.with_nan
        line += f"; {units.count(signal.with_nan)} have a NaN" if signal.with_nan else ""
        mean, of_all = map(units.number, (signal.reward_without_signal, signal.reward))
        line += f"; {units.count(equal)} have equal rewards, their mean is {mean}"
        line += f" (all groups: {of_all})"
    yield f"{line}."


_WHAT = {
    "availability": "steps' time / wall-clock",
    "placement efficiency": "work / devices' time",
    "useful share": "useful / generated tokens",
    "freshness weight": "part that counts (ESS)",
    "peak rate": "generated / work",
}


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
    lost_s, of_s = units.seconds(all_s), units.seconds(cascade.wall_s)
    reasons = ", ".join(parts) or "many small reasons"
    yield f"No work on samples in {lost_s} of {of_s}: {reasons}."


def _notes(cascade: Cascade) -> Iterator[str]:
    if cascade.pools:
        counted = "device" if cascade.efficiency_of == "GPU" else cascade.efficiency_of
        pools = []
        for pool in cascade.pools:
            roles = " + ".join(role for role in pool.roles if role != UNKNOWN_ROLE)
            who = units.plural(pool.devices, counted) + (f" of {roles}" if roles else "")
            pools.append(f"{who} {units.share(pool.busy_share)}")
        yield f"Busy in the steps: {', '.join(pools)}."
