"""What-if answers in words and tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from rltrace.analysis.stats.estimate import Estimate
from rltrace.analysis.whatif.predict import NO_GAIN, Baseline, Prediction
from rltrace.report import units
from rltrace.report.layout import Section, numbers, table

_MOST_LAGS = 6


def unwell(alarms: Sequence[str]) -> str:
    """Why no gains are listed for a run with these alarms."""
    return (
        f"the run is not well, repair that before anything is tuned: {'; '.join(alarms)} (--lever "
        "NAME=VALUE answers for one change all the same)"
    )


def one(
    base: Baseline, found: Prediction, alarms: Sequence[str] = (), beside: Sequence[str] = ()
) -> Section:
    """The answer to one question: these levers moved together, below what is wrong with the run and
    what of it is left out (`beside`)."""
    warned = [f"The run is not well: {alarm}." for alarm in alarms]
    if alarms:
        warned.append("What follows is worth as much as its steps are.")
    return Section(
        f"What if {', '.join(found.levers)}",
        (*warned, *_left_out(beside), *_answer(base, found)),
        notes=("It rests on:", *found.rests_on),
    )


def ranked(base: Baseline, found: Sequence[Prediction], beside: Sequence[str] = ()) -> Section:
    """All levers that apply, one at a time, below what of the run is left out (`beside`)."""
    rows, idle, slower = [], [], []
    for one in found:
        levers, gain = ", ".join(one.levers), one.goodput_gain
        low, middle, high = map(_change, (gain.low, gain.value, gain.high))
        if one.outcome == NO_GAIN:
            idle.append(levers)
        elif gain.is_no_gain:
            slower.append(f"{levers} ({middle})")
        else:
            step, between = units.seconds(one.step_s.value), units.between(low, high)
            rows.append((levers, step, middle, between))
    return Section(
        "What if",
        (*_left_out(beside), _now(base)),
        table(rows, "lever", *numbers("step", "per device-second", "range")),
        (
            "One lever at a time, the best first; gains are in useful tokens for each second of "
            "each device, so that more devices must pay for themselves. Gains do not add up: move "
            "several with --lever to see them together.",
            *([f"No gain: {'; '.join(idle)}."] if idle else []),
            *([f"Slower for what it costs: {'; '.join(slower)}."] if slower else []),
            *(f"{note}." for note in base.rests_on),
        ),
    )


def _left_out(beside: Sequence[str]) -> list[str]:
    return [f"Left out: {says}." for says in beside]


def _now(base: Baseline) -> str:
    devices = _devices(base.devices)
    return f"Now: {units.seconds(base.step_s)} a step, {base.placement}{devices}."


def _answer(base: Baseline, found: Prediction) -> Iterator[str]:
    yield _now(base)
    yield (
        f"Then: {units.seconds(found.step_s.value)} a step"
        f"{_beside(found.step_s, units.seconds)}{_devices(found.devices)}: {found.outcome}, "
        f"{_change(found.goodput_gain.value)} useful tokens for each device-second"
        f"{_beside(found.goodput_gain, _change)}."
    )
    rate, per_usd = found.useful_tokens_per_device_s, found.useful_tokens_per_usd
    if not math.isnan(rate.value):
        line = (
            f"Goodput: {units.count(rate.value)} useful tokens per device-second"
            f"{_beside(rate, units.count)}"
        )
        if not math.isnan(per_usd.value):
            line += f", {units.count(per_usd.value)} per US${_beside(per_usd, units.count)}"
        yield f"{line}."
    if found.learner_waits_share > 0:
        share = units.share(found.learner_waits_share)
        yield f"The learner waits for samples {share} of the step."
    if found.lag_shares:
        lags = list(found.lag_shares.items())
        bars = [f"{lag}: {units.share(part)}" for lag, part in lags[:_MOST_LAGS]]
        if lags[_MOST_LAGS:]:
            rest = sum(part for _, part in lags[_MOST_LAGS:])
            bars.append(f"{lags[_MOST_LAGS][0]} to {lags[-1][0]}: {units.share(rest)}")
        stale = f"; {units.share(found.stale_share)} come too late" if found.stale_share > 0 else ""
        yield f"Lag in policy versions, by share of the groups: {', '.join(bars)}{stale}."


def _devices(devices: Mapping[str, float]) -> str:
    pools = " + ".join(f"{count:g} {pool}" for pool, count in devices.items())
    return f" on {pools}" if pools else ""


def _change(factor: float) -> str:
    """`1.25` -> `+25 %`."""
    return units.UNKNOWN if math.isnan(factor) else f"{100 * (factor - 1):+.0f} %"


def _beside(found: Estimate, show: Callable[[float], str]) -> str:
    return units.beside(show(found.value), show(found.low), show(found.high))
